"""The papers' backbones: their definitions again in NumPy, and what methods ask for."""

import numpy as np
import pytest
import tensorflow as tf

from tests import local_steps
from tests.models import definitions
from tff_reg import methods, models
from tff_reg.models import forward

TRAIN = forward.ForwardPass(training=True)
EVALUATE = forward.ForwardPass()
# The smallest images that they take.
SMALLEST = {
    **dict.fromkeys(("feddyn_cnn", "univarfl_cnn"), 16),
    **dict.fromkeys(("vgg9", "squeezenet", "man_convnet"), 8),
    "feduv_cnn": 21,
}
BRANCHES = {
    "resnet18_imagenet": 8,
    "resnet18_no_maxpool": 8,
    "resnet18_feduv": 8,
    "mobilenet": 10,
    "shufflenet": 13,
    "squeezenet": 3,
    "resnet8": 3,
    "resnet20": 9,
    "resnet56": 18,
}


def _shape(name):
    """Of images that are large enough."""
    return (24, 24, 3) if name == "feduv_cnn" else (16, 16, 3)


def _network(name, image_shape=None, num_classes=5, **options):
    model_fn = models.build_model_fn(
        name,
        image_shape=image_shape or _shape(name),
        num_classes=num_classes,
        **options,
    )
    return model_fn().network


def _images(*shape, dtype="float32"):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


NAMES = tuple(definitions.DEFINITIONS)


@pytest.mark.parametrize("name", NAMES)
def test_computes_its_definition(name):
    norm = "group" if "group" in models.norms_of(name) else "none"
    network = _network(name, norm=norm, dtype="float64")
    rng = np.random.default_rng(1)
    for variable in network.trainable_variables:
        # Norms and biases begin with values that would hide which is which.
        variable.assign_add(0.1 * rng.normal(size=variable.shape))
    x = _images(2, *_shape(name), dtype="float64")
    outputs = network(x, forward.ForwardPass(record_activations=True))
    with definitions.Definition(network) as net:
        logits = definitions.DEFINITIONS[name](net, x)
    np.testing.assert_allclose(outputs.logits, logits, rtol=1e-8, atol=1e-9)
    assert len(outputs.activations) == len(net.activations)
    for got, expected in zip(outputs.activations, net.activations):
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    "name, options, count",
    [
        # torchvision's resnet18; max-pooling has no weights.
        ("resnet18_imagenet", dict(num_classes=1000), 11_689_512),
        ("resnet18_no_maxpool", dict(num_classes=1000), 11_689_512),
        # FedMA's VGG-9 (Wang et al., ICLR 2020).
        ("vgg9", dict(num_classes=10, norm="none"), 3_491_530),
        # Two numbers a channel more with a norm.
        ("vgg9", dict(num_classes=10, norm="batch"), 3_491_530 + 2 * 864),
        ("vgg9", dict(num_classes=10, norm="group"), 3_491_530 + 2 * 864),
        # A 64x64 image leaves 8x8 positions of 64 channels.
        ("man_convnet", dict(image_shape=(64, 64, 3), num_classes=200), 2_447_688),
        # FedDyn's network for CIFAR-10.
        ("feddyn_cnn", dict(image_shape=(32, 32, 3), num_classes=10), 797_962),
        # LeNet-5 of three channels.
        ("univarfl_cnn", dict(image_shape=(32, 32, 3), num_classes=10), 62_006),
        # FedUV's two.
        ("feduv_cnn", dict(num_classes=10, projector="feduv"), 161_594),
        ("resnet18_feduv", dict(num_classes=10, projector="feduv"), 11_705_546),
        # FedML's.
        ("resnet56", dict(num_classes=10, norm="batch"), 591_322),
        ("resnet56", dict(num_classes=100, norm="group"), 614_452),
        ("resnet20", dict(num_classes=10), 272_474),
        ("resnet18", dict(num_classes=10), 11_173_962),
    ],
)
def test_has_the_published_number_of_parameters(name, options, count):
    variables = _network(name, **options).trainable_variables
    assert sum(int(np.prod(v.shape)) for v in variables) == count


BLOCKS = {
    "resnet18_imagenet": "stem stage1 stage2 stage3 stage4 classifier",
    "resnet18_no_maxpool": "stem stage1 stage2 stage3 stage4 classifier",
    "resnet18_feduv": "stem stage1 stage2 stage3 stage4 classifier",
    "vgg9": "conv1 conv2 conv3 conv4 conv5 conv6 classifier",
    "mobilenet": "stem stage1 stage2 stage3 stage4 stage5 stage6 classifier",
    "shufflenet": "stem stage2 stage3 stage4 classifier",
    "squeezenet": "stem fire2 fire3 fire4 fire5 fire6 fire7 fire8 classifier",
    "feddyn_cnn": "conv1 conv2 classifier",
    "man_convnet": "conv1 conv2 conv3 classifier",
    "univarfl_cnn": "conv1 conv2 classifier",
    "feduv_cnn": "conv1 conv2 conv3 conv4 conv5 conv6 conv7 conv8 classifier",
}


@pytest.mark.parametrize("name", NAMES)
def test_is_cut_into_its_blocks(name):
    assert _network(name).block_names == BLOCKS[name].split()


@pytest.mark.parametrize("name", models.MODEL_NAMES)
def test_running_from_a_block_continues_the_forward_pass(name):
    network = _network(name)
    whole = network(_images(2, *_shape(name)), models.ForwardPass())
    assert len(whole.block_outputs) == len(network.blocks) == len(network.block_names)
    for first in {1, len(network.blocks) // 2, len(network.blocks) - 1}:
        rest = network.run_from(first, whole.block_outputs[first - 1], EVALUATE)
        for one, other in (
            (rest.logits, whole.logits),
            (rest.embedding, whole.embedding),
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    logits = network.blocks[-1].classify(whole.embedding, EVALUATE)
    np.testing.assert_allclose(logits, whole.logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["vgg9", pytest.param("shufflenet", marks=pytest.mark.slow)]
)
def test_fedmlbs_gradient_reaches_every_block(name):
    local, received = (models.LearningModel(_network(name)) for _ in range(2))
    for variable in received.trainable_variables:
        variable.assign_add(0.01 * _images(*variable.shape))
    batch = dict(x=tf.constant(_images(3, 16, 16, 3)), y=tf.constant([0, 1, 4]))
    options = dict(references={"global": received})
    gradients, _, _ = local_steps.gradient(local, [methods.FedMLB()], batch, **options)
    plain, _, _ = local_steps.gradient(local, [], batch)
    sizes = [len(block.trainable_variables) for block in local.network.blocks]
    for last in np.cumsum(sizes):
        assert np.abs(gradients[last - 1] - plain[last - 1]).max() > 1e-6


@pytest.mark.parametrize("name", ["vgg9", "shufflenet", "man_convnet"])
def test_examples_are_independent_but_for_batch_norm(name):
    x = _images(3, 16, 16, 3, dtype="float64")
    for norm in ("group", "batch"):
        network = _network(name, norm=norm, dtype="float64")
        features = network(x, TRAIN).block_outputs[-2]
        alone = network(x[:1], TRAIN).block_outputs[-2]
        same = np.allclose(features[:1], alone, rtol=1e-9, atol=1e-12)
        assert same == network.has_independent_examples == (norm == "group")


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_differs_from_training_by_batch_norm_alone(name):
    x = _images(4, *_shape(name))
    for norm in models.norms_of(name)[-2:]:
        network = _network(name, norm=norm)
        before = [v.numpy() for v in network.non_trainable_variables]
        assert bool(before) == (norm == "batch")
        counting = forward.ForwardPass(training=True, update_statistics=True)
        trained = network(x, counting).logits
        for variable, value in zip(network.non_trainable_variables, before):
            assert np.abs(variable - value).max() > 0, variable.name
        evaluated = network(x, models.ForwardPass()).logits
        if norm == "batch":
            assert np.abs(evaluated - trained).max() > 1e-3
        else:
            np.testing.assert_array_equal(evaluated, trained)


@pytest.mark.parametrize("name", [*NAMES, "cnn", "resnet8"])
def test_takes_images_of_any_size_from_its_smallest(name):
    smallest = SMALLEST.get(name, 1)
    for shape in ((smallest, smallest, 1), (smallest + 4, smallest + 1, 2)):
        outputs = _network(name, shape)(_images(2, *shape), TRAIN)
        assert outputs.logits.shape == [2, 5]
        assert np.isfinite(outputs.logits).all()
    if smallest > 1:
        with pytest.raises(models.ImageSizeError):
            _network(name, (smallest - 1, 64, 3))


@pytest.mark.parametrize("name", [*NAMES, "cnn", "resnet8", "resnet20", "resnet56"])
def test_drops_its_residual_branches_or_has_none(name):
    network = _network(name)
    count = network.num_branches
    assert count == BRANCHES.get(name, 0)
    x = _images(2, *_shape(name))
    if not count:
        with pytest.raises(models.MissingCapabilityError, match="no residual branches"):
            network(x, forward.ForwardPass(branch_scales=tf.ones([1])))
        return
    whole = network(x, models.ForwardPass()).logits

    def logits(scales):
        return network(
            x, forward.ForwardPass(training=True, branch_scales=tf.constant(scales))
        ).logits

    np.testing.assert_allclose(logits(np.ones(count)), whole, rtol=1e-4, atol=1e-5)
    # Each scale belongs to a branch of its own.
    changed = [logits(1.0 - np.eye(count)[i]).numpy() for i in {0, count - 1}]
    assert all(np.abs(other - whole).max() > 1e-5 for other in changed)
    assert np.abs(changed[0] - changed[-1]).max() > 1e-5


@pytest.mark.parametrize("name", [*NAMES, "cnn"])
def test_runs_at_a_fraction_of_its_width_or_says_that_it_cannot(name):
    network = _network(name)
    x = _images(2, *_shape(name))
    settings = forward.ForwardPass(training=True, width=0.5)
    if not network.supports_width:
        with pytest.raises(models.MissingCapabilityError, match="width 0.5"):
            network(x, settings)
        return
    whole = network(x, models.ForwardPass())
    narrow = network(x, settings)
    for wide, output in zip(whole.block_outputs[:-1], narrow.block_outputs):
        assert output.shape[:3] == wide.shape[:3]
        assert 0.45 < output.shape[-1] / wide.shape[-1] < 0.7
    assert narrow.logits.shape == whole.logits.shape
    assert np.isfinite(narrow.logits).all()


def test_stages_of_mobilenet_run_at_widths_that_are_drawn_at_run_time():
    network = _network("mobilenet")
    # With a stride, a residual branch, and neither.
    stages = (1, 2)

    def run(x, width):
        settings = forward.ForwardPass(training=True, width=width)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for stage in stages:
                y = network.run_block(stage, y, settings)
            value = tf.reduce_sum(tf.sin(y))
        return y, tape.gradient(value, x)

    specs = [tf.TensorSpec([None, 6, 6, None]), tf.TensorSpec([], tf.float64)]
    traced = tf.function(run, input_signature=specs)
    for width, channels in ((0.5, 16), (0.8, 24)):
        x = tf.constant(_images(2, 6, 6, channels))
        got = traced(x, tf.constant(width, tf.float64))
        for one, expected in zip(got, run(x, width)):
            np.testing.assert_allclose(one, expected, rtol=1e-3, atol=1e-4)


def test_vgg9_begins_as_its_code_does():
    network = _network("vgg9")
    kernel, bias = network.trainable_variables[20:22]
    assert kernel.shape == (3, 3, 256, 256) and not bias.numpy().any()
    expected = np.sqrt(2 / (9 * 256))
    assert np.std(kernel) == pytest.approx(expected, rel=0.01)
    # Normal: 4.6 % lie beyond two standard deviations.
    assert np.mean(np.abs(kernel) > 2 * expected) == pytest.approx(0.0455, rel=0.05)


@pytest.mark.parametrize(
    "name, layer, fan_in",
    [
        ("mobilenet", "stage6/unit1/widen/conv", 96),
        ("mobilenet", "stage6/unit1/depthwise/conv", 9),
        ("mobilenet", "classifier/dense", 1280),
        ("shufflenet", "stage4/unit2/reduce/conv", 960 // 3),
        ("shufflenet", "stage4/unit2/depthwise/conv", 9),
        ("squeezenet", "fire8/expand3/conv", 9 * 64),
        ("feddyn_cnn", "conv2/conv", 25 * 64),
        ("man_convnet", "classifier/hidden1", 64 * 2 * 2),
    ],
)
def test_the_others_begin_with_pytorchs_defaults(name, layer, fan_in):
    values = {v.name[:-2]: v.numpy() for v in _network(name).trainable_variables}
    limit = fan_in**-0.5
    for part, tolerance in (("kernel", 0.05), ("bias", 0.2)):
        value = values[f"{layer}/{part}"]
        assert np.abs(value).max() <= limit
        assert np.abs(value).max() > 0.9 * limit
        assert np.std(value) == pytest.approx(limit / np.sqrt(3), rel=tolerance)
