"""The common form of all image-classification tasks."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks.task_defaults import TaskDefaults
from tff_reg import models
from tff_reg.data import client_data as client_data_lib
from tff_reg.data import partitions

# Only for TFF's own view of a task, where no command gives a batch size.
_BASELINE_BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True)
class ImageData:
    """What a task's module loads.

    Images are kept as stored: scaling and normalising belong to the functions.
    """

    # uint8 [n, height, width, channels]
    x_train: np.ndarray
    # int32 [n]
    y_train: np.ndarray
    # uint8 [m, height, width, channels]
    x_test: np.ndarray
    # int32 [m]
    y_test: np.ndarray
    # (images, key int64 [2]) -> float32 images, for training.
    augment_fn: Callable
    # images -> float32 images, for evaluation.
    normalize_fn: Callable


@attrs.define(frozen=True)
class Task(tff.simulation.baselines.BaselineTask):
    """A `BaselineTask` that also knows its clients' arrays and its augmentation.

    `datasets` and `model_fn` are TFF's own view, for anybody's code that takes a
    `BaselineTask`: its preprocessing normalises and cuts batches of 64, without
    augmentation and in the stored order. Our own runs take `client_data`, whose data
    sets carry keys.

    Attributes:
      client_data: The training examples, by client.
      num_classes: How many classes there are.
      image_shape: (height, width, channels).
      augment_fn: (images, key int64 [2]) -> float32 images, for training.
      normalize_fn: images -> float32 images, for evaluation.
      partition: One array of positions in the training examples a client.
    """

    client_data: client_data_lib.ArrayClientData
    num_classes: int
    image_shape: tuple
    augment_fn: Callable
    normalize_fn: Callable
    partition: list
    _test_arrays: tuple

    def test_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The test examples: images as stored, and int32 labels."""
        return self._test_arrays


def build(
    defaults: TaskDefaults,
    data: ImageData,
    *,
    partition: str,
    concentration: float | None,
    num_clients: int,
    seed: int,
    model: str | None,
    norm: str | None,
    projector: str = "none",
) -> Task:
    """Makes a task of loaded data; see `tasks.build` for the arguments and errors."""
    dealt = partitions.partition(
        partition, data.y_train, num_clients, seed=seed, concentration=concentration
    )
    client_data = client_data_lib.ArrayClientData(data.x_train, data.y_train, dealt)
    model_fn = models.build_model_fn(
        model or defaults.model,
        image_shape=defaults.image_shape,
        num_classes=defaults.num_classes,
        norm=norm or defaults.norm,
        projector=projector,
        seed=seed,
    )

    def to_batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
        def normalize(batch):
            return collections.OrderedDict(
                x=data.normalize_fn(batch["x"]), y=tf.cast(batch["y"], tf.int32)
            )

        return dataset.batch(_BASELINE_BATCH_SIZE).map(normalize)

    datasets = tff.simulation.baselines.BaselineTaskDatasets(
        train_data=client_data,
        test_data=tf.data.Dataset.from_tensor_slices(
            collections.OrderedDict(x=data.x_test, y=data.y_test)
        ),
        train_preprocess_fn=to_batches,
        eval_preprocess_fn=to_batches,
    )
    return Task(
        datasets=datasets,
        model_fn=model_fn,
        client_data=client_data,
        num_classes=defaults.num_classes,
        image_shape=defaults.image_shape,
        augment_fn=data.augment_fn,
        normalize_fn=data.normalize_fn,
        partition=dealt,
        test_arrays=(data.x_test, data.y_test),
    )
