"""The two forms of client data.

For TFF both are sequences. *Batched*: an ordinary data set of batches, with epochs,
order and augmentation from the user's pipeline. *Whole-client*: a single element with
all of a client's examples and a key; epochs, shuffling, augmentation and batching
happen inside the client computation. This is faster than tf.data, and the client's
result depends only on the computation's arguments.
"""

from __future__ import annotations

import collections
import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

from tff_reg.data import dtypes, keys
from tff_reg.lazy import tf
from tff_reg.training.process_settings import batches, trained


@dataclasses.dataclass(frozen=True)
class BatchedData:
    """Batches in the given order: `OrderedDict(x, y)`, or as the model's `input_spec`.

    Attributes:
      keyed: Whether each batch has an int64 [2] `key` for the random numbers of its
        step. Otherwise they depend on the batch's content, the round and the step
        alone: on fixed batches, runs of several seeds draw the same.
    """

    keyed: bool = False

    def element_spec(self, input_spec: Any) -> collections.OrderedDict[str, Any]:
        """Returns the spec of one element, given the model's `input_spec`."""
        if not self.keyed:
            return input_spec
        spec = collections.OrderedDict(input_spec)
        spec["key"] = tf.TensorSpec([2], tf.int64)
        return spec

    def class_counts(self, data: Any, num_classes: int):
        """Counts a client's examples per class, int32 [num_classes].

        Repeated examples, for example from several epochs, count each time.
        """
        return _count_classes(data, num_classes)

    def run(
        self, step_fn: Callable[..., Any], state: Any, element: Any, round_num: Any
    ):
        """Calls `step_fn(state, batch, compute_key)` once: an element is a batch."""
        if not self.keyed:

            def of_content() -> tf.Tensor:
                return keys.of_content(element, round_num, state.num_steps)

            return step_fn(state, element, of_content)
        batch = collections.OrderedDict(element)
        key = batch.pop("key")
        return step_fn(state, batch, lambda: key)


@dataclasses.dataclass(frozen=True)
class WholeClientData:
    """All of a client's examples in one element: `OrderedDict(x, y, key)`.

    x: [n, *example_shape], y: int [n], key: int64 [2]. Epoch e visits the examples in
    `keys.epoch_order(key, e, n)`; the random numbers of step s depend on
    `keys.step_key(key, s)`.

    Attributes:
      batch_size: Examples per step; the last batch of an epoch may be shorter.
      local_epochs: Passes over the examples, perhaps a fraction: steps are rounded up.
      drop_remainder: Whether a shorter last batch is left out.
      preprocess_fn: Function of (x [batch, ...], key int64 [2]) giving the model's
        input, for augmentation and normalisation. With `None` the network casts x.
      example_shape: Shape of one example; `None` means the model's input shape.
      example_dtype: Data type of x, of dicts or tuples one of each; `None` means the
        model's.
      shuffle: Whether each epoch has a new random order instead of the data's own.
      local_steps: If given, the number of steps of every client, in as many epochs as
        needed; `local_epochs` is then ignored.
      told: The names of what elements say of a client beside the examples, float64
        scalars: `work`, in 0 to 1, is the share of its steps that it takes, rounded up;
        `factor` multiplies the arrays that it uploads, as an attack.
    """

    batch_size: int
    local_epochs: float = 1
    drop_remainder: bool = False
    preprocess_fn: Optional[Callable[..., Any]] = None
    example_shape: Optional[Sequence[int]] = None
    example_dtype: Any = None
    shuffle: bool = True
    local_steps: Optional[int] = None
    told: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("batch_size", "local_epochs", "local_steps"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 2**31:
                raise ValueError(f"{name} is {value}; it must be above 0, below 2**31.")

    def element_spec(self, input_spec: Any) -> collections.OrderedDict[str, Any]:
        """Returns the spec of one element, given the model's `input_spec`."""

        def of_features(x: tf.TensorSpec, dtype: Any) -> tf.TensorSpec:
            shape = x.shape[1:] if self.example_shape is None else self.example_shape
            return tf.TensorSpec([None, *shape], dtype)

        def of_labels(y: tf.TensorSpec) -> tf.TensorSpec:
            return tf.TensorSpec([None, *y.shape[1:]], y.dtype)

        x, types = input_spec["x"], self.example_dtype
        if types is None:
            types = tf.nest.map_structure(operator.attrgetter("dtype"), x)
        return collections.OrderedDict(
            x=tf.nest.map_structure(of_features, x, types),
            y=tf.nest.map_structure(of_labels, input_spec["y"]),
            key=tf.TensorSpec([2], tf.int64),
            **{name: tf.TensorSpec([], tf.float64) for name in self.told},
        )

    def element(self, data: Any) -> dict[str, Any]:
        """Returns a client's only element; zero examples if the data set is empty.

        Raises:
          tf.errors.InvalidArgumentError: In the graph: several elements, or x unlike y.
        """
        # An iterator takes most of a millisecond, so it is made only to look.
        element = tf.cond(
            tf.equal(data.cardinality(), 1),
            data.get_single_element,
            lambda: _only_element(data),
        )
        first_size, *sizes = (tf.shape(v)[0] for v in _examples_of(element))
        for size in sizes:
            what = "A client's x and y have different numbers of examples."
            tf.debugging.assert_equal(size, first_size, what)
        return element

    def num_examples(self, element: dict[str, Any]):
        """Returns the number of a client's examples, an int32 scalar."""
        return tf.shape(_examples_of(element)[0])[0]

    def weighed_examples(self, element: dict[str, Any]):
        """Returns the examples by which a client weighs: all, or those of full batches.

        An int64 scalar. FedAlign's code, which drops the remainder, counts so.
        """
        count = self.num_examples(element)
        return tf.cast(trained(count, self.batch_size, self.drop_remainder), tf.int64)

    def num_steps(self, element: dict[str, Any]) -> tuple[Any, Any]:
        """Returns the steps of an epoch and of all, int32 scalars."""
        count = self.num_examples(element)
        steps_per_epoch = batches(count, self.batch_size, self.drop_remainder)
        if self.local_steps is not None:
            # A client without batches has no steps to take.
            steps = tf.where(steps_per_epoch > 0, self.local_steps, 0)
        elif isinstance(self.local_epochs, int):
            steps = self.local_epochs * steps_per_epoch
        else:
            epochs = tf.constant(self.local_epochs, tf.float64)
            steps = epochs * tf.cast(steps_per_epoch, tf.float64)
        if "work" in self.told:
            steps = element["work"] * tf.cast(steps, tf.float64)
        if steps.dtype == tf.float64:  # Rounded up, but for rounding errors.
            steps = tf.cast(tf.math.ceil(steps - 1e-6), tf.int32)
        return steps_per_epoch, steps

    def class_counts(self, data: Any, num_classes: int):
        """Counts a client's examples per class, int32 [num_classes]."""
        return _count_classes(data, num_classes)

    def run(
        self,
        step_fn: Callable[..., Any],
        state: Any,
        element: dict[str, Any],
        round_num: Any,
    ):
        """Calls `step_fn(state, batch, compute_key)` for all batches of all epochs."""
        del round_num  # The client's key depends on it.
        features, labels, key = element["x"], element["y"], element["key"]
        num_examples = self.num_examples(element)
        steps_per_epoch, steps = self.num_steps(element)

        def take(step: tf.Tensor, order: tf.Tensor, state: Any):
            i = step % steps_per_epoch
            if self.shuffle:

                def new_order() -> tf.Tensor:
                    return keys.epoch_order(key, step // steps_per_epoch, num_examples)

                order = tf.cond(tf.equal(i, 0), new_order, lambda: order)
            chosen = order[i * self.batch_size : (i + 1) * self.batch_size]
            step_key = keys.step_key(key, step)

            def rows(values: tf.Tensor) -> tf.Tensor:
                return tf.gather(values, chosen)

            batch: dict[str, Any] = collections.OrderedDict(
                x=self._preprocess(tf.nest.map_structure(rows, features), step_key),
                y=tf.nest.map_structure(rows, labels),
            )
            return step + 1, order, step_fn(state, batch, lambda: step_key)

        def is_left(step: tf.Tensor, order: tf.Tensor, state: Any) -> tf.Tensor:
            return step < steps

        # One loop over all epochs' batches, not a loop per epoch: nested loops would
        # each capture every variable of the model.
        start = (tf.constant(0), tf.range(num_examples), state)
        return tf.while_loop(is_left, take, start)[-1]

    def _preprocess(self, features: Any, step_key: tf.Tensor):
        if self.preprocess_fn is None:
            return features
        return dtypes.converted(self.preprocess_fn)(features, step_key)


def _only_element(data: tf.data.Dataset) -> dict[str, tf.Tensor]:
    iterator = iter(data)
    first = iterator.get_next_as_optional()

    def no_examples(spec: tf.TensorSpec) -> tf.Tensor:
        return tf.zeros([size or 0 for size in spec.shape], spec.dtype)

    def empty() -> dict[str, tf.Tensor]:
        return tf.nest.map_structure(no_examples, data.element_spec)

    element = tf.cond(first.has_value(), first.get_value, empty)
    checked = tf.debugging.assert_equal(
        iterator.get_next_as_optional().has_value(),
        False,
        "A client's data in the whole-client form must be one element, but there "
        "are several: give all of its examples as one element.",
    )
    with tf.control_dependencies([checked] if checked is not None else []):
        return tf.nest.map_structure(tf.identity, element)


def _examples_of(element: dict[str, Any]) -> list[tf.Tensor]:
    """Returns the tensors of a client's labels and features."""
    return tf.nest.flatten([element["y"], element["x"]])


DataForm = Union[BatchedData, WholeClientData]


def _count_classes(data: Any, num_classes: int):
    def add(counts: Any, element: Any):
        return counts + tf.math.bincount(
            tf.cast(element["y"], tf.int32),
            minlength=num_classes,
            maxlength=num_classes,
        )

    return data.reduce(tf.zeros([num_classes], tf.int32), add)
