import json

from bin import bench
from tests import commands
from tff_reg.analysis import hessian_benchmark

TINY = hessian_benchmark.Setting(
    models=("cnn",),
    batch_size=2,
    turns=3,
    eigenvalue_model="cnn",
    eigenvalue_images=4,
)


def test_measures_products_and_the_top_eigenvalue():
    lines = []
    found = hessian_benchmark.measure(TINY, report=lines.append)
    (ratio,) = found.ratios
    assert len(ratio.ratios) == 3
    assert min(ratio.ratios) <= ratio.ratio <= max(ratio.ratios)
    assert ratio.gradient_seconds > 0 and ratio.product_seconds > 0
    assert ratio.first_seconds > 0
    assert found.top.images == 4 and found.top.seconds > 0
    assert 2 <= found.top.products < 100
    assert found.top.error <= 1e-5 * abs(found.top.value)
    assert len(lines) == 2


def test_the_table_says_what_was_found():
    measurement = hessian_benchmark.Measurement(
        TINY,
        [hessian_benchmark.Ratio("cnn", 0.01, 0.0214, [2.0, 2.25, 3.0], 2.25, 1.5)],
        hessian_benchmark.TopEigenvalue("cnn", 4, 7.04, 12, 3.5, 1e-7),
    )
    row = json.loads(json.dumps(hessian_benchmark.as_json(measurement)))
    text = "\n".join(hessian_benchmark.table(row))
    for words in ("| cnn | 10.0 | 21.4 | 2.25 |", "3.5 (", "12 products, 7.0 s"):
        assert words in text


def test_the_command_knows_the_subject_and_says_so():
    assert "bin/bench hessian" in commands.call(bench.main, "--help").stdout
