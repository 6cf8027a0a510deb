"""The papers' backbones in NumPy: what `test_backbones` holds ours against."""

import numpy as np


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


class Definition:
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
