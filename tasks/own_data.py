"""Tasks of the user's own arrays and Keras model, for `tff_reg.run`.

Both classes have the functions of the module `tff_reg.tasks` that a run calls.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import attrs

from tff_reg import lazy, models
from tff_reg.data import dtypes
from tff_reg.experiment.config import task_settings
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.lazy import np, tf
from tff_reg.settings import SettingError

arrays = lazy.module("tff_reg.tasks.arrays")
dealt = lazy.module("tff_reg.tasks.dealt")
data_sets = lazy.module("tff_reg.tasks.data_sets")
task_defaults = lazy.module("tff_reg.tasks.task_defaults")
task_lib = lazy.module("tff_reg.tasks.task")

NAME = task_settings.OWN_DATA
# Whole numbers above this are not exact in float32.
_LARGEST_EXACT = 2**24
# A label above this is no class number.
_LARGEST_LABEL = 100_000
# The default network for images, as in the task `arrays`.
_NETWORK = ("resnet20", "group")
# Settings that apply to our own networks only, and to partitions only.
_OF_NETWORKS = ("norm", "projector", "pixel_mean", "pixel_std")
_OF_PARTITIONS = ("partition", "concentration", "classes_per_client", "num_clients")
_OF_PARTITIONS += ("split_file", "scale", "validation_share", "imbalance_factor")


class OwnModel:
    """The tasks of `tff_reg.tasks` with the user's model in place of their networks."""

    def __init__(self, model: Any, given: Mapping[str, Any]):
        """Checks the model and the other settings.

        Args:
          model: A Keras model.
          given: The settings that the user gave, by name.

        Raises:
          TypeError: If it is no Keras model.
          ValueError: If it cannot be trained, or a setting is for our networks only.
        """
        if not getattr(model, "inputs", None) and hasattr(model, "layers"):
            raise ValueError(
                f"The model {model.name!r} does not know what it takes: begin it with"
                " keras.Input(shape)."
            )
        self._model_fn = _model_fn(model, given)
        self.names, self.check_data = lazy.tasks.names, lazy.tasks.check_data
        self.count_clients, self.read = lazy.tasks.count_clients, lazy.tasks.read

    def defaults(self, name: str) -> Any:
        """Returns a task's defaults, without a network."""
        return dataclasses.replace(lazy.tasks.defaults(name), model=None, norm=None)

    def build(self, task: str, **arguments: Any) -> Any:
        """Builds a task with the user's model; see `tff_reg.tasks.build`."""
        own = self._model_fn
        built = lazy.tasks.build(task, own_model_fn=own, **arguments)
        _check_model(own, built.image_shape, built.num_classes, task)
        if not built.vocabulary:
            return built
        cast = dtypes.Cast(own.plan.input_spec.dtype.name)
        return attrs.evolve(built, augment_fn=cast, normalize_fn=cast)


class OwnData:
    """A single task: the user's arrays, with one of our networks or the user's model.

    Attributes:
      x, y: All training examples.
      positions: Each client's positions; None if a partition is still to be drawn.
      held_out: Each client's positions of its own test examples, likewise.
      client_ids: The clients' names; None for `client_0000` and so on.
      test: The test examples; None if training examples are held out instead.
    """

    def __init__(
        self,
        client_data: Any,
        test_data: Any,
        model: Any,
        given: Mapping[str, Any],
    ):
        """Checks the data.

        Args:
          client_data: The training examples: (x, y), a dict of such pairs by client, or
            an `ArrayClientData`.
          test_data: The test examples (x, y); None with a `validation_share`.
          model: A Keras model, or None for the network that the settings name.
          given: The settings that the user gave, by name.

        Raises:
          TypeError: If an argument is of another type.
          ValueError: If the data do not fit together or to the model, or a setting does
            not apply.
        """
        for name in ("task", "recipe", "synthetic_data"):
            if name in given:
                raise ValueError(f"Leave {name} out: client_data takes its place.")
        self._examples = functools.partial(_examples, is_ours=model is None)
        self.positions: Optional[list[Any]] = None
        self.held_out: Optional[list[Any]] = None
        self.client_ids: Optional[list[str]] = None
        self._read_clients(client_data, given)
        self.test = self._read_test(test_data, given)
        self._model_fn = None
        if model is not None:
            self._model_fn = _model_fn(model, given, self.x.shape[1:])
        labels = {"client_data": self.y}
        if self.test is not None:
            labels["test_data"] = self.test[1]
        where = max(labels, key=lambda name: labels[name].max())
        num_classes = 1 + int(labels[where].max())
        if self._model_fn is None:
            self._take_images(arrays.count_numbers(*labels.values()))
        else:  # Which may have an output for a class 0 that has no examples.
            _check_model(self._model_fn, self.x.shape[1:], num_classes, where)
            if self.x.ndim != 4 and given.get("augmentation", "none") != "none":
                raise ValueError(
                    "Leave augmentation out: the examples are no images [n, height,"
                    " width, channels]."
                )
        self._class_names = tuple(map(str, range(num_classes)))

    def _read_clients(self, client_data: Any, given: Mapping[str, Any]) -> None:
        is_ready = hasattr(client_data, "client_examples")
        if not (is_ready or isinstance(client_data, Mapping)):
            self.x, self.y = self._examples(client_data, "client_data")
            return
        if not (is_ready or client_data):
            raise ValueError("client_data has no clients; give at least one.")
        for name in _OF_PARTITIONS:
            if name in given:
                raise ValueError(
                    f"Leave {name} out: the examples of client_data belong to clients"
                    " already."
                )
        if is_ready:
            self._take_over(client_data, given)
            return
        parts = [
            self._examples(each, f"client_data[{name!r}]")
            for name, each in client_data.items()
        ]
        kinds = {(x.shape[1:], x.dtype.name) for x, _ in parts}
        if len(kinds) > 1:
            raise ValueError(
                f"The clients of client_data have examples of several kinds: {kinds};"
                " give all of them one shape and data type."
            )
        ends = np.cumsum([len(y) for _, y in parts])
        self.x, self.y = (np.concatenate(each) for each in zip(*parts))
        self.positions = np.split(np.arange(ends[-1]), ends[:-1])
        self.client_ids = [str(name) for name in client_data]

    def _take_over(self, clients: Any, given: Mapping[str, Any]) -> None:
        """Takes the examples of an `ArrayClientData`, held-out ones included."""
        self.client_ids = names = clients.client_ids
        parts = [clients.client_positions(name) for name in names]
        x, y = clients.arrays
        if clients.tests is not None:
            if given.get("client_test_share") is not None:
                raise ValueError("Leave client_test_share out: client_data has tests.")
            tests, of_tests = clients.tests.arrays, 0
            if tests[1] is not y:  # They do not share the arrays.
                x, y, of_tests = *map(np.concatenate, zip((x, y), tests)), len(y)
            held = map(clients.tests.client_positions, names)
            parts += [own + of_tests for own in held]
        # Once each and in the clients' order; what clients share, they still share.
        rows, first, inverse = np.unique(
            np.concatenate(parts), return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        x, y = (each[rows[order]] for each in (x, y))
        self.x, self.y = self._examples((x, y), "client_data")
        ends = np.cumsum([*map(len, parts)])
        parts = np.split(np.argsort(order)[inverse], ends[:-1])
        self.positions, self.held_out = parts[: len(names)], parts[len(names) :] or None

    def _read_test(self, test_data: Any, given: Mapping[str, Any]) -> Any:
        # A grid holds out examples for its own runs only.
        share = None if given.get("grid") else given.get("validation_share")
        if test_data is None:
            if share is None:
                raise ValueError(
                    "test_data is missing: give test_data=(x_test, y_test) or,"
                    " without a grid, validation_share=0.1 to hold out training"
                    " examples."
                )
            return None
        if share:
            raise ValueError(
                "test_data and validation_share are both given; give one of them."
            )
        test = self._examples(test_data, "test_data")
        kinds = [(x.dtype.name, x.shape[1:]) for x in (self.x, test[0])]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"client_data has examples {kinds[0][0]} {kinds[0][1]} and test_data"
                f" {kinds[1][0]} {kinds[1][1]}; give both one shape and data type."
            )
        return test

    def _take_images(self, num_classes: int) -> None:
        """Checks that our networks can train on the examples."""
        if num_classes < 2:
            raise ValueError("All labels are 0; there must be at least two classes.")
        self.x = arrays.check_images(self.x, "client_data")
        if self.test is not None:
            self.test = (arrays.check_images(self.test[0], "test_data"), self.test[1])
            arrays.check_scale(self.x, self.test[0], "client_data", "test_data")

    def names(self) -> Sequence[str]:
        """Returns the name of the only task."""
        return (NAME,)

    def defaults(self, name: str) -> Any:
        """Returns the task's defaults."""
        overrides = {}
        if self.positions is not None:
            found = {"num_clients": len(self.positions), "partition": None}
            reason = "the clients are the user's"
            overrides = {
                key: task_defaults.Override(value, reason)
                for key, value in {**found, "concentration": None}.items()
            }
        model, norm = (None, None) if self._model_fn else _NETWORK
        return task_defaults.TaskDefaults(
            name=name,
            summary="the user's arrays",
            model=model,
            norm=norm,
            augmentation="none",
            num_classes=len(self._class_names),
            num_train_examples=len(self.y),
            overrides=overrides,
        )

    def check_data(self, name: str, data_dir: Any) -> None:
        """Does nothing: the data are in memory."""

    def count_clients(self, name: str, settings: Mapping[str, Any]) -> Optional[int]:
        """Refuses clients that come with a task's files."""
        why = "client_data has no clients; give a dict of pairs (x, y) by client."
        raise SettingError("partition", "natural", why)

    def read(self, task: str, **settings: Any) -> Any:
        """Partitions the examples across clients, unless they have clients already.

        Raises:
          PartitionError: If the partition does not fit the data.
        """
        # If examples are held out, they replace these test examples.
        x_test, y_test = self.test or (self.x[:1], self.y[:1])
        normalize_fn = data_sets.normalization_of(self.x)
        if self._model_fn is not None:
            normalize_fn = dtypes.Cast(self._model_fn.plan.input_spec.dtype.name)
        data = data_sets.Examples(
            self.x, self.y, x_test, y_test, normalize_fn, self._class_names
        )
        if self.positions is None:
            return dealt.deal(data, TaskSettings(task=task, **settings))
        tests = self.held_out and (self.x, self.y, self.held_out)
        return dealt.Dealt(data, self.positions, self.client_ids, tests)

    def build(self, task: str, *, examples: Any = None, **settings: Any) -> Any:
        """Builds the task; see `tff_reg.tasks.build` for the arguments and errors."""
        examples = examples or self.read(task, **settings)
        if self.positions is not None:
            settings["partition"] = "iid"  # Not used: the clients are the user's.
        chosen = TaskSettings(task=task, **settings)
        return task_lib.build(self.defaults(task), examples, chosen, self._model_fn)


def _examples(given: Any, name: str, is_ours: bool) -> tuple[Any, Any]:
    """Converts examples and labels to arrays for client data.

    Raises:
      TypeError, ValueError: If that is impossible, or they do not suit our networks.
    """
    is_pair = isinstance(given, (tuple, list)) and len(given) == 2
    if isinstance(given, (tuple, list)) and given and all(map(_is_pair, given)):
        raise TypeError(
            f"{name} is a {type(given).__name__} of {len(given)} pairs; give a dict of"
            " pairs (x, y) by the client's name, such as"
            " {f'client_{i}': pair for i, pair in enumerate(pairs)}."
        )
    if is_pair and isinstance(given[0], (Mapping, tuple)):
        raise TypeError(
            f"The examples of {name} are a {type(given[0]).__name__}; give one array. A"
            " model of several inputs is trained by experiment.train."
        )
    if not is_pair:
        raise TypeError(
            f"{name} is a {type(given).__name__}; give a pair (x, y) of arrays, the"
            " examples and their class numbers."
        )
    try:
        x, y = (np.asarray(each) for each in given)
    except ValueError as error:
        raise ValueError(
            f"The examples or the labels of {name} are arrays of several shapes; give"
            " one array of each. A model of several inputs is trained by"
            " experiment.train."
        ) from error
    if y.ndim == 2 and y.shape[1] == 1:  # As Keras's own data sets have them.
        y = y[:, 0]
    if y.dtype.kind not in "iu" or y.ndim != 1:
        if y.dtype.kind in "fb" and y.ndim == 1 and np.array_equal(y, y.astype(int)):
            y = y.astype(np.int32)
        else:
            raise ValueError(
                f"The labels of {name} are {y.dtype} {y.shape}; give one class number"
                " for each example, [n] from 0, such as y.argmax(axis=-1) of one-hot"
                " labels."
            )
    if not x.ndim or len(x) != len(y) or not len(x):
        raise ValueError(
            f"{name} has x of shape {x.shape} and y of shape {y.shape}; give at least"
            " one example, and one label for each."
        )
    if y.min() < 0 or y.max() > _LARGEST_LABEL:
        wrong = y.min() if y.min() < 0 else y.max()
        raise ValueError(f"{name} has the label {wrong}; number classes from 0.")
    if is_ours and x.dtype.kind in "iu" and x.dtype != np.uint8:
        raise ValueError(
            f"The images of {name} are {x.dtype}; give uint8, which is normalised, or"
            " floats that are already."
        )
    x = _features(x, name)
    dtypes.check_finite(x, name)
    return x, y.astype(np.int32)


def _is_pair(value: Any) -> bool:
    is_one = isinstance(value, (tuple, list)) and len(value) == 2
    return is_one and all(getattr(each, "ndim", 0) for each in value)


def _features(x: Any, name: str) -> Any:
    """Converts examples to uint8 or float32."""
    if x.dtype in (np.uint8, np.float32):
        return x
    if x.dtype.kind not in "biuf":
        raise ValueError(
            f"The examples of {name} are {x.dtype}; give an array of numbers."
        )
    if x.dtype.kind in "iu" and x.size and np.abs(x).max() > _LARGEST_EXACT:
        raise ValueError(
            f"The examples of {name} have whole numbers above {_LARGEST_EXACT}, which"
            " float32 does not hold exactly; scale them down."
        )
    with np.errstate(over="ignore"):  # Later refused as not finite.
        return x.astype(np.float32)


def _model_fn(
    model: Any, given: Mapping[str, Any], shape: Optional[Sequence[int]] = None
) -> Any:
    """Makes the `model_fn` of a Keras model for examples of a shape."""
    for name in _OF_NETWORKS:
        if name in given:
            raise ValueError(f"Leave {name} out: the Keras model is trained as it is.")
    spec = None
    if shape is not None and not getattr(model, "inputs", None):
        spec = tf.TensorSpec([None, *shape])
    return models.from_keras(model, input_spec=spec)


def _check_model(model_fn: Any, shape: Any, num_classes: int, where: str) -> None:
    """Checks that a Keras model takes examples of a shape and has enough outputs."""
    spec, plan = model_fn.plan.input_spec, model_fn.plan
    name = plan.model.name
    if not isinstance(spec, tf.TensorSpec):
        raise ValueError(
            f"The model {name!r} has several inputs, and {where} has one array of"
            " examples; such a model is trained by experiment.train."
        )
    if not spec.shape[1:].is_compatible_with(shape):
        raise ValueError(
            f"The model {name!r} takes examples of shape {tuple(spec.shape[1:])}, and"
            f" {where} has examples of shape {tuple(shape)}."
        )
    if plan.num_classes is None:
        raise ValueError(
            f"The model {name!r} is not compiled as a classifier of class numbers: give"
            " it one output for each class (two for yes and no) and compile it with"
            " sparse_categorical_crossentropy (without ignore_class, reduction and"
            " loss_weights) or not at all. experiment.train trains other models."
        )
    if num_classes > plan.num_classes:
        raise ValueError(
            f"The model {name!r} has {plan.num_classes} outputs, and {where} has labels"
            f" up to {num_classes - 1}; number the classes from 0, and give the model"
            " one output for each."
        )
