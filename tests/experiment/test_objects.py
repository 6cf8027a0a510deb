"""Methods and aggregators as objects, in place of their names."""

import dataclasses
import json

import numpy as np
import pytest

import tff_reg
from tff_reg import methods, runtime, settings, training
from tff_reg.lazy import tf, tff
from tff_reg.methods import catalogue, method

SMALL = dict(total_rounds=1, scale="tiny", model="cnn", progress=None)
SMALL |= dict(norm="none", synthetic_data=True)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """What a test adds to the methods is gone after it."""
    found = dict(catalogue.REGISTRY._found)
    monkeypatch.setattr(catalogue.REGISTRY, "_found", found)


@dataclasses.dataclass(frozen=True)
class Near(method.Method):
    """FedProx, by another name."""

    name = "near_object"
    strength: float = settings.setting(0.5, help="mu", minimum=0)

    def term(self, step):
        pairs = zip(step.weights, step.global_weights)
        total = tf.add_n([tf.reduce_sum((w - g) ** 2) for w, g in pairs])
        return 0.5 * self.strength * total


@dataclasses.dataclass(frozen=True)
class Loose(Near):
    name = "loose_object"
    other: int = 3


class Taken(method.Method):
    name = "fedprox"


def _config(path):
    return json.loads((path / "config.json").read_text())


def test_an_object_is_a_method_of_its_name_and_values(tmp_path):
    where = dict(output_dir=str(tmp_path), **SMALL)
    found = tff_reg.run(Near(0.2), **where)
    config = _config(tmp_path)
    assert (config["process"], config["near_object_strength"]) == ("near_object", 0.2)
    assert __name__.partition(".")[0] in {name for c in config["code"] for name in c}
    same = tff_reg.run("fedprox", fedprox_strength=0.2, **SMALL)
    for one, other in zip(found.weights.trainable, same.weights.trainable):
        np.testing.assert_allclose(one, other, atol=1e-6)
    for other, why in [
        (Near(0.3), "near_object_strength=0.2, not 0.3"),
        (Near, "near_object_strength=0.2, not 0.5"),
        (methods.FedProx(0.2), "process=near_object, not fedprox"),
        ([Near(0.2), methods.MAN], "process=near_object, not near_object.man"),
    ]:
        with pytest.raises(settings.SettingError, match=why):
            tff_reg.run(process=other, **where)


def test_a_comparison_takes_objects_and_lists_of_them(tmp_path):
    rows = tff_reg.compare(
        [methods.FedAvg, Near(0.2), [methods.FedProx(0.01), Near(0.2)]],
        output_dir=str(tmp_path),
        **SMALL,
    )
    assert not rows.failed and len(rows.rows) == 3
    config = _config(tmp_path / "fedprox+near_object-seed0")
    values = config["fedprox_strength"], config["near_object_strength"]
    assert values == (0.01, 0.2)


@pytest.mark.parametrize(
    "given",
    [
        ["fedprox+man", methods.FedProx(0.5)],
        [[methods.FedProx, "man"], methods.FedProx(0.5)],
        ["fedavg", methods.FedProx(0.5), methods.FedProx],
    ],
)
def test_values_of_one_object_are_not_those_of_others(given):
    words = "also given as an object|another object has"
    with pytest.raises(settings.SettingError, match=words):
        tff_reg.compare(given, **SMALL)


def test_an_aggregator_may_be_a_factory_of_tffs(tmp_path):
    def clipped(norm):
        mean = tff.aggregators.MeanFactory()
        return tff.aggregators.clipping_factory(norm, mean)

    where = dict(output_dir=str(tmp_path), **SMALL)
    found = tff_reg.run("fedavg", aggregator=clipped(1e-3), **where)
    assert "Robust" in _config(tmp_path)["model_aggregator"]
    plain = tff_reg.run("fedavg", **SMALL)
    first = tff_reg.run("fedavg", client_learning_rate=1e-9, **SMALL)

    def moved(result):
        pairs = zip(result.weights.trainable, first.weights.trainable)
        return np.sqrt(sum(((a - b) ** 2).sum() for a, b in pairs))

    # A mean of updates of this length is not longer.
    assert 1e-4 < moved(found) < 1.001e-3 and moved(plain) > 0.01
    for other in (None, clipped(1e-2)):
        with pytest.raises(settings.SettingError, match="model_aggregator"):
            tff_reg.run("fedavg", aggregator=other, **where)


def test_factories_of_other_arguments_are_told_apart():
    library = tff.learning
    with runtime.running("in_process"):
        found = [
            training.aggregators.identified(each)
            for each in (
                library.robust_aggregator(),
                library.robust_aggregator(zeroing=False),
                library.secure_aggregator(),
                tff.aggregators.MeanFactory(),
                tff.aggregators.UnweightedMeanFactory(),
                library.robust_aggregator(),
            )
        ]
        noisy = [
            training.aggregators.identified(library.dp_aggregator(noise, 20))
            for noise in (0.5, 0.6, 0.5)
        ]
        coded = [
            training.aggregators.identified(
                tff.aggregators.MeanFactory(
                    tff.aggregators.EncodedSumFactory.quantize_above_threshold(
                        quantization_bits=bits, threshold=10
                    )
                )
            )
            for bits in (8, 1, 8)
        ]
    assert len({*found}) == 5 and found[0] == found[-1]
    for first, other, again in (noisy, coded):
        assert first == again != other
    assert "UnweightedRobustFactory" in noisy[0]


def _near(strength):
    class Same(method.Method):
        name = "same_object"

        def term(self, step):
            pairs = zip(step.weights, step.global_weights)
            return strength * tf.add_n([tf.reduce_sum((w - g) ** 2) for w, g in pairs])

    return Same


def test_two_classes_of_one_name_are_not_taken_for_one(tmp_path, capsys):
    with pytest.raises(settings.SettingError, match="two classes are called 'same_ob"):
        tff_reg.compare([_near(0.1), _near(0.5)], **SMALL)
    where = dict(output_dir=str(tmp_path), **SMALL)
    for strength in (0.1, 0.5):
        tff_reg.run(_near(strength), **where)
    assert "It was made by other code: tests Same" in capsys.readouterr().out


def test_a_metric_of_other_code_is_another_run(tmp_path):
    def of(worth):
        return {"own": lambda labels, outputs: np.full(len(labels), worth)}

    where = dict(output_dir=str(tmp_path), **SMALL)
    first = dict(metrics=of(1.0), sample_fn=lambda number, ids: ids[:2])
    tff_reg.run("fedavg", **first, **where)
    tff_reg.run("fedavg", **first, **where)
    for other in (
        {"metrics": of(2.0)},
        {"sample_fn": lambda number, ids: ids[1:3]},
    ):
        with pytest.raises(settings.SettingError, match="differs in the code of its m"):
            tff_reg.run("fedavg", **{**first, **other}, **where)


@pytest.mark.parametrize(
    "given, error, why",
    [
        (dict(process=3), TypeError, "3 is no method"),
        (dict(process=Loose(other=4)), TypeError, "no run would record"),
        (dict(process=Taken()), ValueError, "another method 'fedprox': rename it"),
        (
            dict(process=Near(0.1), near_object_strength=1.0),
            ValueError,
            "the method that is given has it already",
        ),
        (dict(process="fedavg", aggregator=3), TypeError, "aggregator is 3"),
    ],
)
def test_what_is_no_such_object_is_refused(given, error, why):
    with pytest.raises(error, match=why):
        tff_reg.run(**given, **SMALL)


def test_a_comparison_has_one_value_of_a_hyperparameter():
    with pytest.raises(settings.SettingError, match="another object has 0.01"):
        tff_reg.compare([methods.FedProx(0.01), methods.FedProx(0.1)], **SMALL)
