"""What is true of every method's part in a local step, its term above all."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import local_steps
from tests.training import every_method
from tff_reg import methods, settings
from tff_reg.data import keys
from tff_reg.methods import catalogue, method
from tff_reg.models import forward

_IN_A_STEP = ("term", "change_batch", "change_pass", "change_logits", "gradient")
# FedVLS without its prior, which is no term.
ALL = [
    cls(prior=False) if cls.name == "fedvls" else cls()
    for cls in catalogue.methods().values()
]
IN_A_STEP = [m for m in ALL if any(method.overrides(m, what) for what in _IN_A_STEP)]
# FedProto's term is 0 until the server has a table.
WITH_TERM = [m for m in ALL if method.overrides(m, "term") and m.name != "fedproto"]
# FedAlign rescaled to the cross-entropy has a gradient that is not its value's; the
# value's is checked without the rescaling.
DIFFERENTIABLE = [
    dataclasses.replace(m, lipschitz_scaling="absolute") if m.name == "fedalign" else m
    for m in WITH_TERM
]


def _name(one):
    return one.name


def _model(norm="group"):
    model = every_method.model_fn(norm=norm, dtype="float64")
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign_add(0.05 * rng.normal(size=variable.shape))
    return model


def _batch(size=4, seed=0, scale=1.0, classes=3):
    rng = np.random.default_rng(seed)
    return dict(
        x=tf.constant(scale * rng.normal(size=(size, 4, 4, 1))),
        y=tf.constant(rng.integers(0, classes, size), tf.int32),
    )


def _with_weights(model, weights):
    """Another model of the same shape with other trainable weights."""
    other = _model("batch" if model.non_trainable_variables else "group")
    for variable, value in zip(other.trainable_variables, weights):
        variable.assign(value)
    return other


@functools.cache
def _needs(one):
    """What a method needs, whatever the norm and the batch."""
    return local_steps.find_needs(_model(), [one])


def _references(model, term, weights):
    """The models that the term reads, all with weights of their own."""
    names = (method.GLOBAL, method.PREVIOUS, "averaged", method.EVALUATED)
    return {
        name: _with_weights(model, [w + 0.01 * i for w in weights])
        for i, name in enumerate(names)
        if name in _needs(term).references
    }


def _outputs(model, batch):
    return model.network(
        batch["x"],
        forward.ForwardPass(training=True, record_activations=True),
    )


def _term(model, term, batch, global_weights, outputs=None):
    references = _references(model, term, global_weights)
    constant = forward.ForwardPass(training=True)
    outputs = outputs or _outputs(model, batch)

    return term.term(
        methods.Step(
            network=model.network,
            outputs=outputs,
            features=batch["x"],
            labels=batch["y"],
            class_counts=tf.math.bincount(batch["y"], minlength=3),
            task_loss=model.loss_fn(batch["y"], outputs.logits),
            weights=model.trainable_variables,
            start=global_weights,
            global_weights=global_weights,
            compute_loss=lambda logits: model.loss_fn(batch["y"], logits),
            outputs_of=lambda name: references[name].network(batch["x"], constant),
            classify_from=lambda name, features: references[name].network.classify_from(
                features, constant
            ),
            key=keys.part_key(local_steps.key(), term.name),
        )
    )


def _gradient(model, one, batch, global_weights):
    references = _references(model, one, global_weights)
    return local_steps.gradient(
        *(model, [one], batch),
        **dict(start=global_weights, references=references, needs=_needs(one)),
    )


def _global_weights(model, distance):
    rng = np.random.default_rng(7)
    return [
        tf.constant(v.numpy() + distance * rng.normal(size=v.shape))
        for v in model.trainable_variables
    ]


@pytest.mark.parametrize("term", DIFFERENTIABLE, ids=_name)
def test_the_gradient_is_that_of_the_value(term):
    model = _model()
    if term.name == "fedalign":
        term = dataclasses.replace(term, stop_gradients=False)
    variables, batch = model.trainable_variables, _batch()
    global_weights = _global_weights(model, 0.1)
    # GradAug's target is constant, so it is held fixed for the differences too.
    fixed = _outputs(model, batch) if term.name == "gradaug" else None
    with tf.GradientTape() as tape:
        value = _term(model, term, batch, global_weights, fixed).weighted
    gradients = tape.gradient(
        value, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    rng = np.random.default_rng(1)
    direction = [rng.normal(size=v.shape) for v in variables]
    expected = sum(np.sum(g * d) for g, d in zip(gradients, direction))
    values, step = [], 1e-6
    start = [v.numpy() for v in variables]
    for sign in (1, -1):
        for variable, value, d in zip(variables, start, direction):
            variable.assign(value + sign * step * d)
        term_value = _term(model, term, batch, global_weights, fixed)
        values.append(float(term_value.weighted))
    assert expected == pytest.approx(
        (values[0] - values[1]) / (2 * step), rel=1e-4, abs=1e-8
    )


_SITUATIONS = {
    "at the global weights": dict(distance=0.0),
    "with a class that is absent": dict(classes=2),
    "with zero features": dict(scale=0.0),
    "with one example": dict(size=1),
    "with huge features": dict(scale=1e6),
}


_QUICK = ("at the global weights", "with zero features", "with one example")


@pytest.mark.parametrize(
    "situation",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n not in _QUICK))
        for n in _SITUATIONS
    ],
)
@pytest.mark.parametrize("one", IN_A_STEP, ids=_name)
def test_value_and_gradient_are_finite(one, situation):
    """With BatchNorm, which divides by more that can be 0 than GroupNorm."""
    options = dict(_SITUATIONS[situation])
    model = _model("batch")
    global_weights = _global_weights(model, options.pop("distance", 0.1))
    batch = _batch(**options)
    gradients, _, measurements = _gradient(model, one, batch, global_weights)
    assert all(np.isfinite(g).all() for g in gradients)
    assert all(np.isfinite(m) for m in measurements.values())


@pytest.mark.parametrize("term", WITH_TERM, ids=_name)
def test_reports_the_raw_term_its_share_and_measurements(term):
    model, batch = _model(), _batch()
    global_weights = _global_weights(model, 0.1)
    _, _, measurements = _gradient(model, term, batch, global_weights)
    value = _term(model, term, batch, global_weights)
    names = ["term", "share", *value.measurements]
    assert list(measurements) == [f"{term.name}/{name}" for name in names]
    ce = model.loss_fn(
        batch["y"], model.network(batch["x"], forward.ForwardPass(training=True)).logits
    )
    assert float(measurements[f"{term.name}/term"]) == pytest.approx(
        float(value.raw), rel=1e-5
    )
    assert float(measurements[f"{term.name}/share"]) == pytest.approx(
        float(value.weighted / (ce + value.weighted)), rel=1e-5
    )


@pytest.mark.parametrize("term", WITH_TERM, ids=_name)
def test_strength_zero_leaves_the_gradient_but_is_measured(term):
    model, batch = _model(), _batch()
    global_weights = _global_weights(model, 0.1)
    plain, _, _ = local_steps.gradient(model, [], batch)
    zero = dataclasses.replace(term, strength=0.0)
    gradients, _, measurements = _gradient(model, zero, batch, global_weights)
    for expected, gradient in zip(plain, gradients):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
    assert measurements[f"{term.name}/term"] != 0
    assert measurements[f"{term.name}/share"] == 0


# By the type of a strength, or of its items.
_WRONG = {
    float: (-0.1, float("nan"), float("inf"), "1", True, None),
    int: (0, 1.5, "1", True, None),
    bool: ("true", 1),
    str: ("there is none", 1),
}


@pytest.mark.parametrize("cls", catalogue.methods().values(), ids=_name)
def test_every_strength_is_described_and_bounded(cls):
    hyperparameters = catalogue.hyperparameters(cls.name)
    fields = [f.name for f in dataclasses.fields(cls)]
    assert [s.setting.name for s in hyperparameters] == fields
    for flag, setting in [(s.flag, s.setting) for s in hyperparameters]:
        assert setting.help.endswith(".")
        for value in _WRONG[setting.type]:
            if value is None and setting.is_optional:
                continue
            wrong = [value, (value,)] if setting.is_tuple else [value]
            for each in wrong:
                with pytest.raises(settings.SettingError) as caught:
                    cls(**{setting.name: each})
                assert (caught.value.setting, caught.value.value) == (flag, each)
                assert "\n" not in str(caught.value)
