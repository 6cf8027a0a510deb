import json

from benchmarks import hessian

TINY = hessian.Setting(
    models=("cnn",),
    batch_size=2,
    turns=3,
    eigenvalue_model="cnn",
    eigenvalue_images=4,
)


def test_measures_products_and_the_top_eigenvalue():
    lines = []
    found = hessian.measure(TINY, report=lines.append)
    (ratio,) = found["ratios"]
    assert ratio["model"] == "cnn"
    assert len(ratio["ratios"]) == 3
    assert min(ratio["ratios"]) <= ratio["ratio"] <= max(ratio["ratios"])
    assert ratio["gradient_seconds"] > 0 and ratio["product_seconds"] > 0
    assert ratio["first_seconds"] > 0
    top = found["top"]
    assert top["model"] == "cnn" and top["images"] == 4 and top["seconds"] > 0
    assert 2 <= top["products"] < 100
    assert top["error"] <= 1e-5 * abs(top["value"])
    assert found["setting"]["batch_size"] == 2
    assert len(lines) == 2
    assert hessian.table(json.loads(json.dumps(found))) == hessian.table(found)
    ratio.update(gradient_seconds=0.01, product_seconds=0.0214, ratio=2.25)
    top.update(seconds=7.04, products=12, value=3.5)
    text = " ".join("\n".join(hessian.table(found)).split())
    for words in ("| cnn | 10.0 | 21.4 | 2.25 |", "3.5 (", "12 products, 7.0 s"):
        assert words in text
    assert "| model, batch of 2 |" in text
