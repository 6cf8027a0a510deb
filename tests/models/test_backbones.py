"""The papers' backbones: their definitions again in NumPy, and what methods ask for."""

import numpy as np
import pytest
import tensorflow as tf

from tests import local_steps
from tff_reg import methods, models
from tff_reg.models import forward

TRAIN = forward.ForwardPass(training=True, update_statistics=False)
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


# The definitions ----------------------------------------------------------------------


def _relu(x):
    return np.maximum(x, 0)


def _relu6(x):
    return np.clip(x, 0, 6)


def _pool(x, size, stride, padding, reduce, fill):
    around = (padding, padding)
    x = np.pad(x, [(0, 0), around, around, (0, 0)], constant_values=fill)
    rows, columns = ((side - size) // stride + 1 for side in x.shape[1:3])
    windows = [
        x[:, i : i + rows * stride : stride, j : j + columns * stride : stride]
        for i in range(size)
        for j in range(size)
    ]
    return reduce(windows, axis=0)


def _max_pool(x, size=2, stride=2, padding=0):
    return _pool(x, size, stride, padding, np.max, -np.inf)


# Residual units keep their convolutions before their norms.
_PARTS = ["conv1", "norm1", "conv2", "norm2", "shortcut_conv", "shortcut_norm"]


def _in_order_of_use(variables):
    units = list(dict.fromkeys(v.name.rsplit("/", 2)[0] for v in variables))

    def place(variable):
        unit, part, _ = variable.name.rsplit("/", 2)
        return units.index(unit), _PARTS.index(part) if part in _PARTS else 0

    return sorted(variables, key=place)


class _Definition:
    """PyTorch's layers in NumPy, which take a network's weights one after another."""

    def __init__(self, network):
        variables = _in_order_of_use(network.trainable_variables)
        self._weights = iter([v.numpy() for v in variables])
        self.activations = []

    def __enter__(self):
        return self

    def __exit__(self, kind, *unused):
        assert kind is not None or next(self._weights, None) is None

    def conv(self, x, channels, size, stride=1, padding=0, groups=1, bias=True):
        kernel = next(self._weights)
        inputs = x.shape[-1] // groups
        if groups == 1:
            kernel = kernel[:, :, np.newaxis]
        elif inputs == 1:
            kernel = kernel[:, :, :, np.newaxis]
        else:
            kernel = kernel[np.newaxis, np.newaxis]
        assert kernel.shape == (size, size, groups, inputs, channels // groups)
        x = np.pad(x, [(0, 0), (padding,) * 2, (padding,) * 2, (0, 0)])
        rows, columns = ((side - size) // stride + 1 for side in x.shape[1:3])
        y = np.zeros([len(x), rows, columns, groups, channels // groups])
        for i in range(size):
            for j in range(size):
                part = x[:, i:, j:][:, ::stride, ::stride][:, :rows, :columns]
                part = part.reshape(len(x), rows, columns, groups, inputs)
                y += np.matmul(part[..., np.newaxis, :], kernel[i, j])[..., 0, :]
        return y.reshape(*y.shape[:3], channels) + (next(self._weights) if bias else 0)

    def norm(self, x, groups=2):
        gamma, beta = next(self._weights), next(self._weights)
        cut = x.reshape(len(x), -1, groups, x.shape[-1] // groups)
        cut = cut - cut.mean((1, 3), keepdims=True)
        cut = cut / np.sqrt((cut**2).mean((1, 3), keepdims=True) + 1e-5)
        return cut.reshape(x.shape) * gamma + beta

    def linear(self, x):
        return x @ next(self._weights) + next(self._weights)

    def active(self, x, function=_relu):
        self.activations.append(function(x))
        return self.activations[-1]

    def hidden(self, x, units):
        x = x.reshape(len(x), -1)
        for expected in units:
            x = self.active(self.linear(x))
            assert x.shape[1] == expected
        return x


def _resnet18(net, x, has_pool):
    x = net.active(net.norm(net.conv(x, 64, 7, 2, 3, bias=False)))
    return _stages(net, _max_pool(x, 3, 2, 1) if has_pool else x, (1, 2, 2, 2))


def _resnet18_feduv(net, x):
    x = net.active(net.norm(net.conv(x, 64, 3, 1, 1, bias=False)))
    return _stages(net, x, (2, 2, 2, 2))


def _stages(net, x, strides):
    for channels, first_stride in zip((64, 128, 256, 512), strides):
        for unit in range(2):
            stride = 1 if unit else first_stride
            y = net.norm(net.conv(x, channels, 3, stride, 1, bias=False))
            y = net.norm(net.conv(net.active(y), channels, 3, 1, 1, bias=False))
            if stride == 2:
                x = net.norm(net.conv(x, channels, 1, 2, bias=False))
            x = net.active(x + y)
    return net.linear(x.mean((1, 2)))


def _vgg9(net, x):
    for number, channels in enumerate((32, 64, 128, 128, 256, 256), start=1):
        x = net.active(net.norm(net.conv(x, channels, 3, padding=1)))
        x = x if number % 2 else _max_pool(x)
    # Images of 16x16 leave 2x2 positions of the 4x4.
    x = x.repeat(2, axis=1).repeat(2, axis=2)
    return net.linear(net.hidden(x, (512, 512)))


def _mobilenet(net, x):
    x = net.active(net.norm(net.conv(x, 32, 1, padding=1)), _relu6)
    for expansion, channels, units, first_stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 1),
        (6, 320, 1, 1),
    ):
        for unit in range(units):
            stride, wide = 1 if unit else first_stride, expansion * x.shape[-1]
            y = net.active(net.norm(net.conv(x, wide, 1)), _relu6)
            y = net.conv(y, wide, 3, stride, 1, groups=wide)
            y = net.norm(net.conv(net.active(net.norm(y), _relu6), channels, 1))
            x = x + y if stride == 1 and x.shape == y.shape else y
    x = net.active(net.norm(net.conv(x, 1280, 1)), _relu6)
    return net.linear(x.mean((1, 2)))


def _shufflenet(net, x):
    x = net.active(net.norm(net.conv(x, 24, 3, padding=1)))
    for channels, units in ((240, 4), (480, 8), (960, 4)):
        for unit in range(units):
            quarter = channels // 4
            y = net.active(net.norm(net.conv(x, quarter, 1, groups=3)))
            shuffled = np.empty_like(y)
            for i in range(quarter):
                shuffled[..., i % (quarter // 3) * 3 + i // (quarter // 3)] = y[..., i]
            y = net.conv(shuffled, quarter, 3, 1 if unit else 2, 1, groups=quarter)
            y = net.norm(y)
            if unit:
                total = x + net.norm(net.conv(y, channels, 1, groups=3))
            else:
                y = net.norm(net.conv(y, channels - x.shape[-1], 1, groups=3))
                total = np.concatenate([_pool(x, 3, 2, 1, np.mean, 0), y], axis=-1)
            x = net.active(total)
    return net.linear(x.mean((1, 2)))


def _squeezenet(net, x):
    x = _max_pool(net.active(net.norm(net.conv(x, 96, 3, padding=1))))
    sizes = (128, 128, 256, 256, 384, 384, 512, 512)
    for number, channels in enumerate(sizes, start=2):
        squeezed = net.active(net.norm(net.conv(x, channels // 8, 1)))
        one = net.active(net.norm(net.conv(squeezed, channels // 2, 1)))
        three = net.active(net.norm(net.conv(squeezed, channels // 2, 3, padding=1)))
        y = np.concatenate([one, three], axis=-1)
        y = y + x if number in (3, 5, 7) else y
        x = _max_pool(y) if number in (4, 8) else y
    # Here as in the paper: a convolution to the classes, then the average.
    kernel, bias = next(net._weights), next(net._weights)
    return (x @ kernel + bias).mean((1, 2))


def _man_convnet(net, x):
    for _ in range(3):
        x = _max_pool(net.active(net.norm(net.conv(x, 64, 3, padding=1), groups=4)))
    return net.linear(net.hidden(x, (512, 384)))


def _univarfl_cnn(net, x):
    for channels in (6, 16):
        x = _max_pool(net.active(net.conv(x, channels, 5)))
    return net.linear(net.hidden(x, (120, 84)))


def _feduv_cnn(net, x):
    shapes = [(16, 3, 1), (16, 1, 1), (32, 3, 2), (32, 3, 1), (32, 1, 1)]
    for channels, size, stride in [*shapes, (64, 3, 2), (64, 3, 1), (64, 1, 1)]:
        x = net.active(net.norm(net.conv(x, channels, size, stride, bias=False)))
    return net.linear(x.mean((1, 2)))


def _feddyn_cnn(net, x):
    for _ in range(2):
        x = _max_pool(net.active(net.conv(x, 64, 5)))
    return net.linear(net.hidden(x, (384, 192)))


DEFINITIONS = {
    "resnet18_imagenet": lambda net, x: _resnet18(net, x, has_pool=True),
    "resnet18_no_maxpool": lambda net, x: _resnet18(net, x, has_pool=False),
    "resnet18_feduv": _resnet18_feduv,
    "vgg9": _vgg9,
    "mobilenet": _mobilenet,
    "shufflenet": _shufflenet,
    "squeezenet": _squeezenet,
    "feddyn_cnn": _feddyn_cnn,
    "man_convnet": _man_convnet,
    "univarfl_cnn": _univarfl_cnn,
    "feduv_cnn": _feduv_cnn,
}
NAMES = tuple(DEFINITIONS)


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
    with _Definition(network) as net:
        logits = DEFINITIONS[name](net, x)
    np.testing.assert_allclose(outputs.logits, logits, rtol=1e-8, atol=1e-9)
    assert len(outputs.activations) == len(net.activations)
    for got, expected in zip(outputs.activations, net.activations):
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-9)


# The numbers of parameters ------------------------------------------------------------


def _count(name, **options):
    network = _network(name, **options)
    return sum(int(np.prod(v.shape)) for v in network.trainable_variables)


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
    ],
)
def test_has_the_published_number_of_parameters(name, options, count):
    assert _count(name, **options) == count


# What methods ask for -----------------------------------------------------------------

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
    whole = network(_images(2, *_shape(name)))
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


_DEEP = ("mobilenet", "shufflenet", "squeezenet", "resnet18_imagenet")
_WITHOUT_FEDMLB = ("resnet18_no_maxpool", "resnet18_feduv", "feduv_cnn")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in _DEEP else [])
        for name in NAMES
        if name not in _WITHOUT_FEDMLB
    ],
)
def test_fedmlb_runs_on_it_and_its_gradient_reaches_every_block(name):
    def model_fn():
        return models.LearningModel(_network(name))

    local, received = model_fn(), model_fn()
    for variable in received.trainable_variables:
        variable.assign_add(0.01 * _images(*variable.shape))
    batch = dict(x=tf.constant(_images(3, 16, 16, 3)), y=tf.constant([0, 1, 4]))
    term = methods.FedMLB()
    gradients, _, measured = local_steps.gradient(
        local, [term], batch, references={"global": received}
    )
    assert 0 < float(measured["fedmlb/term"]) < 100
    assert all(np.isfinite(g).all() for g in gradients)
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
        trained = network(x, forward.ForwardPass(training=True)).logits
        for variable, value in zip(network.non_trainable_variables, before):
            assert np.abs(variable - value).max() > 0, variable.name
        evaluated = network(x).logits
        if norm == "batch":
            assert np.abs(evaluated - trained).max() > 1e-3
        else:
            np.testing.assert_array_equal(evaluated, trained)


@pytest.mark.parametrize("name", ["vgg9", "squeezenet"])
def test_the_seed_decides_the_weights_in_graphs_too(name):
    def weights(seed):
        model_fn = models.build_model_fn(
            name, image_shape=(16, 16, 3), num_classes=5, seed=seed
        )
        return model_fn, models.initial_weights(model_fn).trainable

    model_fn, first = weights(4)
    eager = model_fn().trainable_variables
    assert len(first) == len(eager)
    for one, other in zip(first, eager):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(first[0], weights(5)[1][0])


@pytest.mark.parametrize("projector", ["moon", "univarfl"])
@pytest.mark.parametrize("name, features", [("vgg9", 512), ("univarfl_cnn", 84)])
def test_has_a_projector_if_asked(name, features, projector):
    network = _network(name, projector=projector)
    embedding = network(_images(2, 16, 16, 3), TRAIN).embedding
    expected = {"moon": min(features, 256), "univarfl": max(features, 256)}[projector]
    assert embedding.shape == [2, expected]


@pytest.mark.parametrize("name", NAMES)
def test_takes_images_of_any_size_from_its_smallest(name):
    smallest = SMALLEST.get(name, 1)
    for shape in ((smallest, smallest, 1), (smallest + 4, smallest + 1, 2)):
        outputs = _network(name, shape)(_images(2, *shape), TRAIN)
        assert outputs.logits.shape == [2, 5]
        assert np.isfinite(outputs.logits).all()


@pytest.mark.parametrize("name", SMALLEST)
def test_says_that_an_image_is_too_small(name):
    smallest = SMALLEST[name]
    for shape in ((smallest - 1, 64, 3), (64, smallest - 1, 3)):
        with pytest.raises(models.ImageSizeError) as error:
            _network(name, shape)
        message = str(error.value)
        assert name in message and f"from {smallest}x{smallest} pixels" in message
        assert f"{shape[0]}x{shape[1]}" in message


@pytest.mark.parametrize("name", NAMES)
def test_drops_its_residual_branches_or_has_none(name):
    network = _network(name)
    count = network.num_branches
    assert count == BRANCHES.get(name, 0)
    x = _images(2, *_shape(name))
    if not count:
        with pytest.raises(models.MissingCapabilityError, match="no residual branches"):
            network(x, forward.ForwardPass(branch_scales=tf.ones([1])))
        return
    whole = network(x).logits

    def logits(scales):
        return network(
            x, forward.ForwardPass(training=True, branch_scales=tf.constant(scales))
        ).logits

    np.testing.assert_allclose(logits(np.ones(count)), whole, rtol=1e-4, atol=1e-5)
    # Each scale belongs to a branch of its own.
    changed = [logits(1.0 - np.eye(count)[i]).numpy() for i in {0, count - 1}]
    assert all(np.abs(other - whole).max() > 1e-5 for other in changed)
    assert np.abs(changed[0] - changed[-1]).max() > 1e-5


def test_a_dropped_branch_leaves_the_shortcut():
    settings = forward.ForwardPass(training=True, branch_scales=tf.zeros([10]))
    network = _network("mobilenet")
    feature = network(_images(2, 16, 16, 3)).block_outputs[1]
    first = network.blocks[2].units[0](feature, settings)
    np.testing.assert_array_equal(network.run_block(2, feature, settings), first)


@pytest.mark.parametrize("name", NAMES)
def test_runs_at_a_fraction_of_its_width_or_says_that_it_cannot(name):
    network = _network(name)
    x = _images(2, *_shape(name))
    settings = forward.ForwardPass(training=True, width=0.5)
    if not network.supports_width:
        with pytest.raises(models.MissingCapabilityError, match="width 0.5"):
            network(x, settings)
        return
    whole = network(x)
    narrow = network(x, settings)
    for wide, output in zip(whole.block_outputs[:-1], narrow.block_outputs):
        assert output.shape[:3] == wide.shape[:3]
        assert 0.45 < output.shape[-1] / wide.shape[-1] < 0.7
    assert narrow.logits.shape == whole.logits.shape
    assert np.isfinite(narrow.logits).all()


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_stages_of_mobilenet_run_at_widths_that_are_drawn_at_run_time(norm):
    network = _network("mobilenet", norm=norm)
    # With a stride, a residual branch, and neither.
    stages = (1, 2)

    def run(x, width):
        settings = forward.ForwardPass(
            training=True, width=width, update_statistics=False
        )
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


def test_fedalign_runs_on_mobilenet():
    local = models.LearningModel(_network("mobilenet"))
    batch = dict(x=tf.constant(_images(2, 16, 16, 3)), y=tf.constant([0, 1]))
    term = methods.FedAlign()
    gradients, _, measured = local_steps.gradient(local, [term], batch)
    assert float(measured["fedalign/term"]) > 0
    assert all(np.isfinite(g).all() for g in gradients)


# How it begins ------------------------------------------------------------------------


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
