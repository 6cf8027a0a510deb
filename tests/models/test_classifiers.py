import numpy as np
import pytest
import tensorflow as tf

from tff_reg import models
from tff_reg.models import forward

TRAIN = forward.ForwardPass(training=True)


def _network(name="resnet8", projector="moon", **options):
    model_fn = models.build_model_fn(
        name,
        image_shape=(8, 8, 3),
        num_classes=5,
        projector=projector,
        dtype="float64",
        **options,
    )
    return model_fn().network


def _images(count=4, size=8):
    values = np.random.default_rng(0).normal(size=(count, size, size, 3))
    return tf.constant(values)


def _shapes(network):
    return {v.name[:-2]: tuple(v.shape) for v in network.blocks[-1].trainable_variables}


def _value(network, name):
    (variable,) = [v for v in network.trainable_variables if v.name == f"{name}:0"]
    return variable.numpy()


def _projector_shapes(*sizes):
    shapes = {}
    for number, (size, next_size) in enumerate(zip(sizes, sizes[1:]), start=1):
        shapes[f"classifier/projector/dense{number}/kernel"] = (size, next_size)
        shapes[f"classifier/projector/dense{number}/bias"] = (next_size,)
    shapes["classifier/dense/kernel"] = (sizes[-1], 5)
    shapes["classifier/dense/bias"] = (5,)
    return shapes


@pytest.mark.parametrize(
    "name, moon, univarfl",
    [
        ("cnn", (128, 128, 128), (128, 256, 256)),
        ("resnet8", (64, 64, 64), (64, 256, 256)),
        ("resnet18", (512, 512, 256), (512, 512, 512)),
        ("resnet20", (64, 64, 64), (64, 256, 256)),
        ("resnet56", (256, 256, 256), (256, 256, 256)),
    ],
)
def test_projectors_have_the_sizes_of_the_papers(name, moon, univarfl):
    hidden = {"classifier/hidden/kernel": (256, 128), "classifier/hidden/bias": (128,)}
    hidden = hidden if name == "cnn" else {}
    assert _shapes(_network(name, "moon")) == {**hidden, **_projector_shapes(*moon)}
    norm = {
        "classifier/projector/norm/gamma": (univarfl[1],),
        "classifier/projector/norm/beta": (univarfl[1],),
    }
    network = _network(name, "univarfl")
    assert _shapes(network) == {**hidden, **norm, **_projector_shapes(*univarfl)}
    statistics = network.blocks[-1].non_trainable_variables
    assert [v.name for v in statistics] == [
        "classifier/projector/norm/moving_mean:0",
        "classifier/projector/norm/moving_variance:0",
    ]
    assert network(_images(), models.ForwardPass()).embedding.shape == [4, univarfl[-1]]


@pytest.mark.parametrize("name", ["cnn", "resnet8"])
@pytest.mark.parametrize("projector", ["moon", "univarfl", "feduv"])
def test_the_classifier_reads_the_projected_features(name, projector):
    plain, network = _network(name, "none"), _network(name, projector)
    weights = {v.name: v for v in network.trainable_variables}
    kept = [v for v in plain.trainable_variables if "classifier/dense" not in v.name]
    # The features' own layers start as they do without a projector.
    for variable in kept:
        np.testing.assert_array_equal(weights[variable.name], variable)
    features = plain(_images(), TRAIN).embedding.numpy()
    hidden = features @ _value(network, "classifier/projector/dense1/kernel")
    hidden += _value(network, "classifier/projector/dense1/bias")
    if projector != "moon":
        hidden = _normalized(hidden)
    hidden = np.maximum(hidden, 0)
    expected = hidden @ _value(network, "classifier/projector/dense2/kernel")
    expected += _value(network, "classifier/projector/dense2/bias")
    recorded = [hidden]
    if projector == "feduv":
        expected = np.maximum(_normalized(expected), 0)
        recorded.append(expected)
    settings = forward.ForwardPass(training=True, record_activations=True)
    outputs = network(_images(), settings)
    np.testing.assert_allclose(outputs.embedding, expected, rtol=1e-9, atol=1e-12)
    logits = expected @ _value(network, "classifier/dense/kernel")
    logits += _value(network, "classifier/dense/bias")
    np.testing.assert_allclose(outputs.logits, logits, rtol=1e-9, atol=1e-12)
    for got, activation in zip(outputs.activations[-len(recorded) :], recorded):
        np.testing.assert_allclose(got, activation, rtol=1e-9, atol=1e-12)
    count = len(plain(_images(), settings).activations)
    assert len(outputs.activations) == count + len(recorded)


def _normalized(x):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


@pytest.mark.parametrize("projector", ["moon", "univarfl"])
def test_projectors_run_below_full_width_and_leave_their_statistics(projector):
    network = _network("resnet8", projector)
    half = forward.ForwardPass(training=True, width=0.5)
    static = network(_images(), half)
    assert (
        static.embedding.shape
        == network(_images(), models.ForwardPass()).embedding.shape
    )

    @tf.function(input_signature=[tf.TensorSpec([], tf.float64)])
    def run(width):
        outputs = network(_images(), forward.ForwardPass(training=True, width=width))
        assert outputs.embedding.shape == static.embedding.shape
        return outputs.logits

    got = run(tf.constant(0.5, tf.float64))
    np.testing.assert_allclose(got, static.logits, rtol=1e-9, atol=1e-12)
    for variable in network.blocks[-1].non_trainable_variables:
        assert np.ptp(variable.numpy()) == 0


def test_unknown_projectors_are_named():
    asked = dict(num_classes=3, projector="simclr")
    with pytest.raises(ValueError, match="Unknown projector 'simclr'.*none, moon, uni"):
        models.build_model_fn("cnn", image_shape=(8, 8, 1), **asked)
