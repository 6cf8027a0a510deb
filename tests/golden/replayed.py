"""A model of ours with the weights of a golden case."""

from __future__ import annotations

import re

import numpy as np
import tensorflow as tf

from tests.golden import replay
from tff_reg import models
from tff_reg.models import forward, names as model_names

# Between PyTorch's weights and ours: the n-th convolution, norm and linear layer there
# is the n-th here.

_PARTS = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}
_STATISTICS = {"running_mean": "moving_mean", "running_var": "moving_variance"}
# Comes after the classifier in the authors' code, before it in ours.
_PROJECTORS = {"p1": "moon", "p2": "moon"}
# Whose norm is BatchNorm where a file has no statistics.
_BATCH_NORM = ("resnet56",)


def _flat_name(variable: tf.Variable) -> str:
    return variable.name.rpartition(":")[0]


def _torch_shape(shape) -> list[int]:
    """PyTorch's shape of a variable of ours."""
    shape = [int(size) for size in shape]
    return [shape[3], shape[2], *shape[:2]] if len(shape) == 4 else shape[::-1]


def _layers(shapes: dict[str, list[int]], separator: str) -> dict[int, list[str]]:
    """The names of layers with weights, in order, by the rank of their weights."""
    result = {1: [], 2: [], 4: []}
    for name, shape in shapes.items():
        layer, _, part = name.rpartition(separator)
        if _PARTS.get(part, part) == "weight":
            result[len(shape)].append(layer)
    return result


def _build_model(
    case: replay.Case, shapes: dict[str, list[int]]
) -> models.LearningModel:
    """Our model whose weights have the shapes of the file's."""
    wanted = sorted(shapes.values())
    projectors = [_PROJECTORS[one] for one in _PROJECTORS if f"{one}.weight" in shapes]
    is_residual = any(name.startswith("layer") for name in shapes)
    # Small ones first, but before them the one that the authors' name starts with.
    candidates = [
        name
        for name in reversed(model_names.MODEL_NAMES)
        if name.startswith("resnet") == is_residual
    ]
    theirs = case.config.get("model", "").lower()
    candidates.sort(key=lambda name: not theirs.startswith(name))
    channels, height, width = case.image
    for name in candidates:
        norms = model_names.norms_of(name)
        is_batch = "bn_names" in case or name in _BATCH_NORM
        try:
            model = models.build_model_fn(
                name,
                image_shape=(height, width, channels),
                num_classes=case.config["num_classes"],
                norm="batch" if is_batch and "batch" in norms else norms[0],
                projector=projectors[0] if projectors else "none",
                dtype=case.dtype,
            )()
        except models.ImageSizeError:
            continue
        if sorted(_torch_shape(v.shape) for v in model.trainable_variables) == wanted:
            return model
    raise ValueError(f"{case.name}: no model of ours has the file's weights.")


class Replayed:
    """Our model with the weights of a case, which choose the model.

    Attributes:
      model: The `LearningModel`.
    """

    def __init__(self, case: replay.Case):
        self._case = case
        self._names = [str(name) for name in case.plain("param_names")]
        shapes = {
            name: [int(size) for size in shape if size]
            for name, shape in zip(self._names, case.plain("param_shapes"))
        }
        self.model = _build_model(case, shapes)
        variables = {_flat_name(v): v for v in self.model.trainable_variables}
        ours = _layers({name: v.shape for name, v in variables.items()}, "/")
        theirs = _layers(shapes, ".")
        theirs[2].sort(key=lambda layer: layer not in _PROJECTORS)
        self._layers = {
            layer: own for rank in ours for layer, own in zip(theirs[rank], ours[rank])
        }
        by_parts = {}
        for name, variable in variables.items():
            layer, _, part = name.rpartition("/")
            by_parts[layer, _PARTS[part]] = variable
        self._variables = {}
        for name in self._names:
            layer, _, part = name.rpartition(".")
            self._variables[name] = by_parts[self._layers[layer], part]
            assert _torch_shape(self._variables[name].shape) == shapes[name], name
        self._flattened = self._find_flattened(theirs)

    def _find_flattened(self, layers) -> dict[str, list[int]]:
        """Height, width and channels of what the first linear layer reads.

        By the name of its weights, if it reads positions of all channels: PyTorch
        flattens channels first.
        """
        first, last = f"{layers[2][0]}.weight", f"{layers[4][-1]}.weight"
        channels = self._variables[last].shape[3]
        if self._variables[first].shape[0] == channels:
            return {}
        image = tf.zeros([1, *self.model.network.input_shape], self._case.dtype)
        outputs = self.model.network(image, forward.ForwardPass(training=False))
        return {first: outputs.block_outputs[-2].shape[1:].as_list()}

    def _to_torch(self, name: str, array) -> np.ndarray:
        array = np.asarray(array)
        if name in self._flattened:
            array = array.reshape(*self._flattened[name], -1).transpose(3, 2, 0, 1)
            return array.reshape(len(array), -1)
        return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T

    def _from_torch(self, name: str, array: np.ndarray) -> np.ndarray:
        if name in self._flattened:
            height, width, channels = self._flattened[name]
            array = array.reshape(-1, channels, height, width).transpose(2, 3, 1, 0)
            return array.reshape(-1, array.shape[-1])
        return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T

    def set_weights(self, by_name: dict[str, np.ndarray]):
        assert len(by_name) == len(self.model.trainable_variables)
        for name, value in by_name.items():
            value = self._from_torch(name, value).astype(self._case.dtype)
            self._variables[name].assign(value)

    def reset_statistics(self):
        for variable in self.model.non_trainable_variables:
            fill = tf.ones_like if "variance" in variable.name else tf.zeros_like
            variable.assign(fill(variable))

    def in_torch_order(self, tensors) -> list[np.ndarray]:
        """Tensors in the order of our trainable variables, to the file's order."""
        by_name = {
            _flat_name(v): tensor
            for v, tensor in zip(self.model.trainable_variables, tensors)
        }
        return [
            self._to_torch(name, by_name[_flat_name(self._variables[name])])
            for name in self._names
        ]

    def weights_in_torch_order(self) -> list[np.ndarray]:
        return self.in_torch_order(self.model.trainable_variables)

    def statistics(self, part: str) -> list[np.ndarray]:
        by_name = {_flat_name(v): v for v in self.model.non_trainable_variables}
        layers = [str(name) for name in self._case.plain("bn_names")]
        # GradAug's norms hold one BatchNorm a width.
        layers = [re.sub(r"\.bn$", "", layer) for layer in layers]
        return [
            by_name[f"{self._layers[layer]}/{_STATISTICS[part]}"].numpy()
            for layer in layers
        ]
