"""The networks, and a client's training, in plain PyTorch.

They compute the same as this package's networks of the same names; `bin/bench peers`
compares the weights after a round.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.simulators import serving

CLASSES = 10
_GROUPS = 2
# FedAlign's and MOON's hyperparameters, those of the FedAlign paper.
_FEDALIGN_STRENGTH, _FEDALIGN_WIDTH, _POWER_ITERATIONS = 0.45, 0.25, 10
_MOON_STRENGTH, _MOON_TEMPERATURE = 1.0, 0.5
_MOON_FEATURES = 256


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "group":
        return nn.GroupNorm(_GROUPS, channels)
    return nn.BatchNorm2d(channels)


class CNN(nn.Module):
    """Two convolutions with max-pooling and two linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.hidden = nn.Linear(6 * 6 * 64, 64)
        self.linear = nn.Linear(64, CLASSES)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        # In TensorFlow's order of an image's values.
        x = x.permute(0, 2, 3, 1).flatten(1)
        return self.linear(functional.relu(self.hidden(x)))


class Unit(nn.Module):
    """A residual unit of convolutions (kernel size, channels, stride)."""

    def __init__(self, kernels, in_channels: int, norm: str):
        super().__init__()
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        channels, total_stride = in_channels, 1
        for size, out_channels, stride in kernels:
            conv = nn.Conv2d(
                channels, out_channels, size, stride, size // 2, bias=False
            )
            self.convs.append(conv)
            self.norms.append(_norm(norm, out_channels))
            channels, total_stride = out_channels, total_stride * stride
        self.shortcut_conv = self.shortcut_norm = None
        # In this package's order.
        self.in_order = [*self.convs, *self.norms]
        if total_stride != 1 or channels != in_channels:
            self.shortcut_conv = nn.Conv2d(
                in_channels, channels, 1, total_stride, bias=False
            )
            self.shortcut_norm = _norm(norm, channels)
            self.in_order += [self.shortcut_conv, self.shortcut_norm]

    def forward(self, x, width: float = 1.0):
        y = x
        for conv, norm in zip(self.convs, self.norms):
            if conv is not self.convs[0]:
                y = functional.relu(y)
            y = _at_width(conv, norm, y, width)
        if self.shortcut_conv is not None:
            x = _at_width(self.shortcut_conv, self.shortcut_norm, x, width)
        return functional.relu(x + y)


def _channels(channels: int, width: float) -> int:
    """The nearest multiple of 8 that is at least nine tenths of the number."""
    exact = channels * width
    rounded = max(8, int(exact + 4) // 8 * 8)
    return min(channels, rounded + 8 if rounded < 0.9 * exact else rounded)


def _at_width(conv, norm, x, width: float):
    """A convolution and its norm; below full width on the first channels."""
    if width == 1.0:
        return norm(conv(x))
    channels = _channels(conv.out_channels, width)
    kernel = conv.weight[:channels, : x.shape[1]]
    x = functional.conv2d(x, kernel, None, conv.stride, conv.padding)
    gamma, beta = norm.weight[:channels], norm.bias[:channels]
    if isinstance(norm, nn.GroupNorm):
        return functional.group_norm(x, _GROUPS, gamma, beta)
    return functional.batch_norm(x, None, None, gamma, beta, training=True)


class ResNet(nn.Module):
    """A residual network for small images, as in `tff_reg.models.resnet`."""

    def __init__(self, name: str, norm: str, channels: int, has_projector: bool):
        super().__init__()
        units = {"resnet8": 1, "resnet20": 3, "resnet56": 6, "resnet18": 2}[name]
        all_planes = (16, 32, 64) if name != "resnet18" else (64, 128, 256, 512)
        self.stem = nn.Conv2d(channels, all_planes[0], 3, 1, 1, bias=False)
        self.stem_norm = _norm(norm, all_planes[0])
        self.stages = nn.ModuleList()
        self.in_order = [self.stem, self.stem_norm]
        channels = all_planes[0]
        for planes in all_planes:
            stage = nn.ModuleList()
            for index in range(units):
                stride = 2 if planes > all_planes[0] and not index else 1
                kernels = [(3, planes, stride), (3, planes, 1)]
                if name == "resnet56":
                    kernels = [(1, planes, 1), (3, planes, stride), (1, 4 * planes, 1)]
                stage.append(Unit(kernels, channels, norm))
                channels = kernels[-1][1]
                self.in_order += stage[-1].in_order
            self.stages.append(stage)
        self.projector = None
        if has_projector:
            hidden = nn.Linear(channels, channels)
            out = nn.Linear(channels, min(channels, _MOON_FEATURES))
            self.projector = nn.Sequential(hidden, nn.ReLU(), out)
            self.in_order += [hidden, out]
            channels = out.out_features
        self.linear = nn.Linear(channels, CLASSES)
        self.in_order.append(self.linear)

    def run_stage(self, index: int, x, width: float = 1.0):
        for unit in self.stages[index]:
            x = unit(x, width)
        return x

    def run_stem(self, x):
        return functional.relu(self.stem_norm(self.stem(x)))

    def run_blocks(self, x, first: int = 0):
        """Runs the network's blocks from index `first` on, where 0 is the stem.

        Returns each block's output.
        """
        last = len(self.stages) + 1
        outputs = []
        for block in range(first, last + 1):
            if block == 0:
                x = self.run_stem(x)
            elif block < last:
                x = self.run_stage(block - 1, x)
            else:
                x = self.linear(x.mean((2, 3)))
            outputs.append(x)
        return outputs

    def embed(self, x):
        """The input and the output of the last stage, and the embedding."""
        before = self.run_stem(x)
        for stage in range(len(self.stages) - 1):
            before = self.run_stage(stage, before)
        after = self.run_stage(len(self.stages) - 1, before)
        embedding = after.mean((2, 3))
        if self.projector is not None:
            embedding = self.projector(embedding)
        return before, after, embedding

    def at_width(self, x, width: float):
        """The logits of its first channels."""
        x = functional.relu(_at_width(self.stem, self.stem_norm, x, width))
        for index in range(3):
            x = self.run_stage(index, x, width)
        kernel = self.linear.weight[:, : x.shape[1]]
        return functional.linear(x.mean((2, 3)), kernel, self.linear.bias)

    def forward(self, x):
        return self.linear(self.embed(x)[2])


def build(case: serving.Case) -> nn.Module:
    """Makes the network of a case, with its initial weights."""
    if case.network == "cnn":
        model: nn.Module = CNN()
    else:
        channels = case.images.shape[-1]
        model = ResNet(case.network, case.norm, channels, case.method == "moon")
    with torch.no_grad():
        parameters = in_order(model)
        assert len(parameters) == len(case.weights)
        for parameter, value in zip(parameters, case.weights):
            parameter.copy_(torch.from_numpy(_transposed(value, (3, 2, 0, 1))))
    return model


def in_order(model: nn.Module) -> list[nn.Parameter]:
    """A network's weights in the order of `Case.weights`."""
    layers = getattr(model, "in_order", [model])
    return [parameter for layer in layers for parameter in layer.parameters()]


def to_arrays(model: nn.Module) -> list[np.ndarray]:
    """A network's weights as in `Case.weights`."""
    arrays = [p.detach().cpu().numpy() for p in in_order(model)]
    return [_transposed(array, (2, 3, 1, 0)) for array in arrays]


def _transposed(array: np.ndarray, order) -> np.ndarray:
    if array.ndim == 4:
        return np.ascontiguousarray(array.transpose(order))
    return np.ascontiguousarray(array.T)


def tensors(case: serving.Case) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The clients' images [examples, channels, height, width] and labels."""
    images = torch.from_numpy(case.images.transpose(0, 1, 4, 2, 3).copy())
    labels = torch.from_numpy(case.labels.astype(np.int64))
    return list(zip(images, labels))


def train(
    case: serving.Case,
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    previous: nn.Module | None = None,
) -> None:
    """Trains a network on a client's examples, once, in their order.

    Args:
      case: The batch size, optimiser and method.
      model: The network with the global weights; changed in place.
      images: float32 [examples, channels, height, width].
      labels: int64 [examples].
      previous: The weights at the end of the client's last round; only MOON uses them.
    """
    model.train()
    received = None
    if case.method in ("moon", "fedmlb"):
        received = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(
        model.parameters(), case.learning_rate, momentum=case.momentum
    )
    for x, y in zip(images.split(case.batch_size), labels.split(case.batch_size)):
        step(case, model, optimizer, loss(case, model, x, y, received, previous))


def step(case: serving.Case, model, optimizer, value: torch.Tensor) -> None:
    """A step of an optimiser down the gradient of a loss's value, clipped."""
    optimizer.zero_grad()
    value.backward()
    if case.max_gradient_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), case.max_gradient_norm)
    optimizer.step()


def loss(case: serving.Case, model, x, y, received, previous) -> torch.Tensor:
    """The loss of a batch; `received` and `previous` are as in `train`."""
    if case.method == "fedavg":
        return functional.cross_entropy(model(x), y)
    if case.method == "fedmlb":
        return _branched(model, received, x, y)
    before, after, embedding = model.embed(x)
    task_loss = functional.cross_entropy(model.linear(embedding), y)
    if case.method == "fedalign":
        alignment = _alignment(model, before.detach(), after.detach(), task_loss)
        return task_loss + alignment
    with torch.no_grad():
        others = [other.embed(x)[2] for other in (received, previous)]
    near, far = (functional.cosine_similarity(embedding, other) for other in others)
    logits = torch.stack([near, far], 1) / _MOON_TEMPERATURE
    contrast = functional.cross_entropy(logits, torch.zeros_like(y))
    return task_loss + _MOON_STRENGTH * contrast


def _branched(model: ResNet, received: ResNet, x, y):
    """FedMLB's loss: the local blocks' features through the rest of the global ones."""
    *features, logits = model.run_blocks(x)
    ours = functional.log_softmax(logits, 1)
    values = []
    for block, feature in enumerate(features, start=1):
        path = functional.log_softmax(received.run_blocks(feature, block)[-1], 1)
        divergence = functional.kl_div(
            ours, path, reduction="batchmean", log_target=True
        )
        values.append(functional.nll_loss(path, y) + divergence)
    return functional.nll_loss(ours, y) + sum(values) / len(values)


def _alignment(model: ResNet, before, after, loss):
    x = before[:, : int(before.shape[1] * _FEDALIGN_WIDTH)]
    sub = model.run_stage(2, x, _FEDALIGN_WIDTH)
    gap = functional.mse_loss(_spectral_norm(x, sub), _spectral_norm(before, after))
    return _FEDALIGN_STRENGTH * (loss / gap).detach() * gap


def _spectral_norm(x, y):
    """The norms of the matrices that transmit x to y, by power iteration."""
    x = functional.adaptive_avg_pool2d(x, y.shape[2:]).flatten(2)
    y = y.flatten(2)
    matrix = torch.bmm(x, y.transpose(1, 2)) / y.shape[2]
    vector = torch.ones_like(matrix[:, :, :1])
    for step in range(_POWER_ITERATIONS):
        if step:
            vector = functional.normalize(vector, dim=1)
        vector = torch.bmm(matrix, torch.bmm(matrix.transpose(1, 2), vector))
    return vector.norm(dim=1)[:, 0].sqrt()


def mean_states(
    states: Sequence[dict[str, torch.Tensor]], examples: Sequence[int]
) -> dict[str, torch.Tensor]:
    """The mean of state dictionaries, weighted by numbers of examples."""
    total = sum(examples)
    device = next(iter(states[0].values())).device
    weights = torch.tensor([n / total for n in examples], device=device)
    mean = {}
    for name, value in states[0].items():
        stacked = torch.stack([state[name] for state in states])
        mean[name] = torch.tensordot(weights, stacked.float(), 1).to(value.dtype)
    return mean


def linear_layers(weights: Sequence[np.ndarray]) -> list[nn.Linear]:
    """Makes linear layers from kernels [in, out] and biases in turn."""
    layers = []
    for kernel, bias in zip(weights[::2], weights[1::2]):
        layers.append(nn.Linear(*kernel.shape))
        layers[-1].weight.data = torch.tensor(kernel.T.copy())
        layers[-1].bias.data = torch.tensor(bias)
    return layers


def linear_arrays(module: nn.Module) -> list[np.ndarray]:
    """The kernels [in, out] and biases of a module's linear layers."""
    return [v.detach().numpy().T.copy() for v in module.parameters()]
