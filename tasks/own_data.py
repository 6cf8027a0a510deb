"""Tasks of the user's own arrays and Keras model, for `tff_reg.run`.

Both classes have the functions of the module `tff_reg.tasks` that a run calls.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_reg import lazy, models, scores
from tff_reg.data import dtypes, rows
from tff_reg.experiment.config import task_settings
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.lazy import np, tf, tree
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
        self._given = model, given
        if not getattr(model, "inputs", None) and hasattr(model, "layers"):
            raise ValueError(
                f"The model {model.name!r} does not know what it takes: begin it with"
                " keras.Input(shape)."
            )
        self._model_fn = _model_fn(model, given)
        self.names, self.check_data = lazy.tasks.names, lazy.tasks.check_data
        self.count_clients, self.read = lazy.tasks.count_clients, lazy.tasks.read

    def __reduce__(self) -> Any:
        """Copies what was given: a Keras model is copied as a whole alone."""
        return type(self), self._given

    def defaults(self, name: str) -> Any:
        """Returns a task's defaults, without a network."""
        of_model = {"model": None, "norm": None, "score": self._model_fn.score}
        return dataclasses.replace(lazy.tasks.defaults(name), **of_model)

    def build(self, task: str, **arguments: Any) -> Any:
        """Builds a task with the user's model; see `tff_reg.tasks.build`."""
        return lazy.tasks.build(task, own_model_fn=self._model_fn, **arguments)


class OwnData:
    """A single task: the user's arrays, with one of our networks or the user's model.

    Attributes:
      x, y: All training examples, arrays or dicts or tuples of arrays.
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
        stratify: Any = None,
    ):
        """Checks the data.

        Args:
          client_data: The training examples: (x, y), a dict of such pairs by client, or
            an `ArrayClientData`.
          test_data: The test examples (x, y), or a dict of such pairs by client; None
            with a `validation_share`.
          model: A Keras model, or None for the network that the settings name.
          given: The settings that the user gave, by name.
          stratify: The group of each example [n], which partitions divide in the place
            of classes.

        Raises:
          TypeError: If an argument is of another type.
          ValueError: If the data do not fit together or to the model, or a setting does
            not apply.
        """
        self._given = client_data, test_data, model, given, stratify
        for name in ("task", "recipe", "synthetic_data"):
            if name in given:
                raise ValueError(f"Leave {name} out: client_data takes its place.")
        self._examples = functools.partial(examples, is_ours=model is None)
        self.positions: Optional[list[Any]] = None
        self.held_out: Optional[list[Any]] = None
        self.client_ids: Optional[list[str]] = None
        self._tests: Optional[list[Any]] = None
        self._read_clients(client_data, given)
        self.test = self._read_test(test_data, given)
        self.stratify = self._read_groups(stratify)
        self._model_fn = None
        labels = [self.y, *(() if self.test is None else [self.test[1]])]
        if model is None:
            self._take_images(arrays.count_numbers(*labels))
        else:
            self._model_fn = _model_fn(model, given, self.x)
            self.x, _ = self._model_fn.adapted(self.x, self.y, "client_data")
            if self.test is not None:
                x, _ = self._model_fn.adapted(*self.test, "test_data")
                self.test = (x, self.test[1])
            is_image = getattr(self.x, "ndim", 0) == 4
            if not is_image and given.get("augmentation", "none") != "none":
                raise ValueError(
                    "Leave augmentation out: the examples are no images [n, height,"
                    " width, channels]."
                )
        self._class_names: tuple[str, ...] = ()
        if self._model_fn is None or self._model_fn.is_classifier:
            # An output for a class 0 may have no examples.
            largest = int(max(map(np.max, labels)))
            self._class_names = tuple(map(str, range(1 + largest)))

    def __reduce__(self) -> Any:
        """As in `OwnModel`."""
        return type(self), self._given

    def _read_groups(self, stratify: Any) -> Any:
        if stratify is None:
            return None
        groups = np.asarray(stratify)
        if self.positions is not None or groups.shape != (rows.count(self.y),):
            raise ValueError(
                f"stratify has the shape {groups.shape}; give the group of each example"
                f" of client_data=(x, y), [{rows.count(self.y)}]."
            )
        return np.unique(groups, return_inverse=True)[1]

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
        kinds = {repr(rows.kinds(each)) for each in parts}
        if len(kinds) > 1:
            raise ValueError(
                "The clients of client_data have examples or labels of several kinds:"
                f" {' and '.join(sorted(kinds))}; give all of them one shape and data"
                " type."
            )
        ends = np.cumsum([rows.count(y) for _, y in parts])
        self.x, self.y = map(rows.join, zip(*parts))
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
                of_tests = rows.count(y)
                x, y = map(rows.join, zip((x, y), tests))
            held = map(clients.tests.client_positions, names)
            parts += [own + of_tests for own in held]
        # Once each and in the clients' order; what clients share, they still share.
        used, first, inverse = np.unique(
            np.concatenate(parts), return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        x, y = (rows.take(each, used[order]) for each in (x, y))
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
        if isinstance(test_data, Mapping):
            test = self._read_tests_of_clients(test_data, given)
        else:
            test = self._examples(test_data, "test_data")
        kinds = [rows.kinds(x) for x in (self.x, test[0])]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"client_data has examples {kinds[0]} and test_data {kinds[1]}; give"
                " both one shape and data type."
            )
        return test

    def _read_tests_of_clients(self, test_data: Mapping[Any, Any], given: Any) -> Any:
        """Returns the test examples of all clients, and notes who has which."""
        tests = {str(name): each for name, each in test_data.items()}
        if self.client_ids is None or not {*tests} <= {*self.client_ids} or not tests:
            raise ValueError(
                "test_data is a dict: give client_data={client: (x, y)}, too, and tests"
                " of some of these clients by the same names."
            )
        if self.held_out or given.get("client_test_share") is not None:
            raise ValueError(
                "The clients have tests already: leave out test_data={client: (x, y)},"
                " client_test_share or the tests of client_data."
            )
        parts = [self._examples(e, f"test_data[{n!r}]") for n, e in tests.items()]
        ends = np.cumsum([rows.count(y) for _, y in parts])
        positions = np.split(np.arange(ends[-1]), ends[:-1])
        own = dict(zip(tests, positions))
        self._tests = [own.get(name, positions[0][:0]) for name in self.client_ids]
        return tuple(map(rows.join, zip(*parts)))

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
            num_classes=len(self._class_names) or None,
            num_train_examples=rows.count(self.y),
            score=self._model_fn.score if self._model_fn else scores.DEFAULT,
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
        one = (rows.take(each, slice(1)) for each in (self.x, self.y))
        x_test, y_test = self.test or one
        own, names = self._model_fn, self._class_names
        normalize_fn = own.cast if own else data_sets.normalization_of(self.x)
        data = data_sets.Examples(
            *(self.x, self.y, x_test, y_test, normalize_fn, names),
            stratify=self.stratify,
        )
        if self.positions is None:
            return dealt.deal(data, TaskSettings(task=task, **settings))
        tests = self.held_out and (self.x, self.y, self.held_out)
        if self._tests is not None:
            tests = (data.x_test, data.y_test, self._tests)
        return dealt.Dealt(data, self.positions, self.client_ids, tests)

    def build(self, task: str, *, examples: Any = None, **settings: Any) -> Any:
        """Builds the task; see `tff_reg.tasks.build` for the arguments and errors."""
        examples = examples or self.read(task, **settings)
        if self.positions is not None:
            settings["partition"] = "iid"  # Not used: the clients are the user's.
        chosen = TaskSettings(task=task, **settings)
        return task_lib.build(self.defaults(task), examples, chosen, self._model_fn)


def examples(given: Any, name: str, is_ours: bool = False) -> tuple[Any, Any]:
    """Converts examples and labels to arrays, alone or in dicts and tuples.

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
    if not is_pair:
        raise TypeError(
            f"{name} is a {type(given).__name__}; give a pair (x, y) of arrays, the"
            " examples and their labels."
        )
    try:
        x, y = map(_arrays, given)
    except ValueError as error:
        raise ValueError(
            f"The examples or the labels of {name} are lists of several shapes; give"
            " arrays."
        ) from error
    if not rows.same_count(x, y):
        shapes = (
            ", ".join(str(a.shape) for a in tree.flatten(each)) for each in (x, y)
        )
        raise ValueError(
            f"{name} has x of shape {' and y of shape '.join(shapes)}; give at least"
            " one example, and one label for each."
        )
    y = tree.map_structure(lambda each: _labels(each, name), y)
    if is_ours and not rows.are_classes(y):
        raise ValueError(
            f"The labels of {name} are no class numbers [n] from 0, such as"
            " y.argmax(axis=-1) of one-hot labels: give them, or a Keras model that is"
            " compiled with a loss of such labels."
        )
    for each in tree.flatten(x) if is_ours else ():
        if each.dtype.kind in "iu" and each.dtype != np.uint8:
            raise ValueError(
                f"The images of {name} are {each.dtype}; give uint8, which is"
                " normalised, or floats that are already."
            )
    return tree.map_structure(lambda each: _features(each, name), x), y


def _arrays(given: Any) -> Any:
    """Converts to arrays; a list or tuple of arrays stays one."""
    if isinstance(given, Mapping):
        return {name: np.asarray(each) for name, each in given.items()}
    is_several = isinstance(given, (list, tuple)) and len(given) > 0
    if is_several and all(getattr(each, "ndim", 0) for each in given):
        return tuple(map(np.asarray, given))
    return np.asarray(given)


def _labels(y: Any, name: str) -> Any:
    """Checks labels; a column of class numbers, as Keras's data sets have, is flat."""
    if y.dtype.kind not in "biuf":
        raise ValueError(f"The labels of {name} are {y.dtype}; give numbers.")
    dtypes.check_finite(y, name, "labels")
    if y.ndim == 2 and y.shape[1] == 1 and y.dtype.kind in "biu":
        y = y[:, 0]
    if y.ndim == 1 and y.dtype.kind in "biu":
        if y.min() < 0 or y.max() > _LARGEST_LABEL:
            wrong = y.min() if y.min() < 0 else y.max()
            raise ValueError(
                f"{name} has the label {wrong}; number classes from 0, or give floats"
                " that are no classes."
            )
        return y.astype(np.int32)
    return y


def _is_pair(value: Any) -> bool:
    is_one = isinstance(value, (tuple, list)) and len(value) == 2
    return is_one and all(getattr(each, "ndim", 0) for each in value)


def _features(x: Any, name: str) -> Any:
    """Converts examples to uint8 or float32."""
    if x.dtype == np.uint8:
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
        x = x.astype(np.float32)
    dtypes.check_finite(x, name)
    return x


def _model_fn(model: Any, given: Mapping[str, Any], x: Any = None) -> Any:
    """Makes the `model_fn` of a Keras model, which may not know what it takes."""
    for name in _OF_NETWORKS:
        if name in given:
            raise ValueError(f"Leave {name} out: the Keras model is trained as it is.")
    spec = None
    if x is not None and not getattr(model, "inputs", None):
        spec = tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]]), x)
    return models.from_keras(model, input_spec=spec)
