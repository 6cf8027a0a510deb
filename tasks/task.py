"""The common form of all image-classification tasks."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Optional

import attrs
import numpy as np
import tensorflow as tf

from tff_reg import models
from tff_reg.data import (
    augmentation as augmentation_lib,
    client_data as client_data_lib,
    dtypes,
    skews,
)
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.lazy import tff
from tff_reg.tasks import networks
from tff_reg.tasks.data_sets import Examples
from tff_reg.tasks.dealt import Dealt
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

# The batch size in TFF's own view of a task; no setting changes it.
_BASELINE_BATCH_SIZE = 64


@attrs.define(frozen=True)
class Task(tff.simulation.baselines.BaselineTask):
    """A `BaselineTask` that also has its clients' arrays and its augmentation.

    `datasets` and `model_fn` are TFF's own view, for code that takes a `BaselineTask`:
    its preprocessing normalises and cuts batches of 64, without augmentation and in the
    stored order. Our own runs use `client_data`, whose data sets contain keys.

    Attributes:
      client_data: The training examples, by client.
      class_names: One name for each class, in the order of the labels.
      image_shape: (height, width, channels), or the shape of another example; empty if
        examples are dicts or tuples.
      augment_fn: (images, key int64 [2]) -> float32 images, for training.
      normalize_fn: images -> float32 images, for evaluation.
      partition: For each client, the positions of what it trains on, in the training
        examples.
      train_labels: int32 [n], the right labels of all training examples; or those that
        the loss of the user's model takes.
      domains: int32 [n], the domains of the same examples; None without domains.
      test_domains: int32 [m], the domains of the test examples, or None.
      domain_names: One name for each domain.
      vocabulary: The tokens of texts, in the order of their numbers.
    """

    client_data: client_data_lib.ArrayClientData
    class_names: tuple
    image_shape: tuple
    augment_fn: Callable
    normalize_fn: Callable
    partition: list
    train_labels: Any
    domains: Optional[np.ndarray]
    test_domains: Optional[np.ndarray]
    domain_names: tuple
    vocabulary: tuple
    _test_arrays: tuple

    def __attrs_post_init__(self):
        """Leaves out TFF's check, which makes the model once more."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def test_arrays(self) -> tuple[Any, Any]:
        """Returns the test examples as stored, and their labels as `train_labels`."""
        return self._test_arrays


def build(
    defaults: TaskDefaults,
    dealt: Dealt,
    settings: TaskSettings,
    own_model_fn: Any = None,
) -> Task:
    """Makes a task from its examples; see `tff_reg.tasks.build` for the errors.

    Args:
      defaults: The task's description.
      dealt: The task's examples and clients.
      settings: The settings of the partition and of the model.
      own_model_fn: Makes the user's Keras model; None for the settings' network.

    Returns:
      The task.
    """
    if own_model_fn is not None:
        dealt = dealt.for_model(own_model_fn, f"the task {defaults.name}")
    elif not dealt.data.class_names:
        raise DataError(
            f"The labels of the task {defaults.name} are no class numbers from 0, and"
            " our networks are classifiers: give a Keras model that is compiled with a"
            " loss of such labels (model=FILE.keras)."
        )
    data = dealt.data
    shape = getattr(data.x_train, "shape", (0,))[1:]
    normalize_fn = data.normalize_fn
    if own_model_fn is not None and isinstance(normalize_fn, dtypes.Cast):
        normalize_fn = own_model_fn.cast
    if settings.pixel_mean or settings.pixel_std:
        normalize_fn = data.normalized_by(settings.pixel_mean, settings.pixel_std)
    if own_model_fn is None:
        model, norm = settings.model or defaults.model, settings.norm
        if norm is None and defaults.norm in models.norms_of(model):
            norm = defaults.norm
        model_fn = networks.model_fn(
            vars(settings),
            model,
            norm,
            image_shape=shape,
            num_classes=len(data.class_names),
            vocabulary=len(data.vocabulary) or None,
        )
    else:
        model_fn = networks.begun(own_model_fn, vars(settings))
    array_data = client_data_lib.ArrayClientData
    names, seed = dealt.names, settings.seed_of_split
    client_data = array_data(data.x_train, data.y_train, dealt.positions, names)
    if dealt.tests is not None:
        client_data.tests = array_data(*dealt.tests, names)
    client_data = client_data.hold_out(settings.client_test_share, seed, data.units)
    client_data = skews.apply(
        client_data,
        vars(settings),
        seed=seed,
        num_classes=len(data.class_names),
        largest=data.largest_pixel,
    )
    return Task(
        datasets=_baseline_datasets(client_data, data, normalize_fn),
        model_fn=model_fn,
        client_data=client_data,
        class_names=data.class_names,
        image_shape=shape,
        augment_fn=augmentation_lib.build(
            settings.augmentation or defaults.augmentation,
            normalize_fn,
            largest=data.largest_pixel,
        ),
        normalize_fn=normalize_fn,
        partition=[client_data.client_positions(n) for n in client_data.client_ids],
        train_labels=data.y_train,
        domains=data.domains,
        test_domains=data.test_domains,
        domain_names=data.domain_names,
        vocabulary=data.vocabulary,
        test_arrays=(data.x_test, data.y_test),
    )


def _baseline_datasets(
    client_data: client_data_lib.ArrayClientData,
    data: Examples,
    normalize_fn: Callable,
) -> tff.simulation.baselines.BaselineTaskDatasets:
    """Returns TFF's view of the data: normalised batches in the stored order."""

    @tf.autograph.experimental.do_not_convert
    def normalize(batch):
        return collections.OrderedDict(x=normalize_fn(batch["x"]), y=batch["y"])

    def to_batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.batch(_BASELINE_BATCH_SIZE).map(normalize)

    return tff.simulation.baselines.BaselineTaskDatasets(
        train_data=client_data,
        test_data=tf.data.Dataset.from_tensor_slices(
            collections.OrderedDict(x=data.x_test, y=data.y_test)
        ),
        train_preprocess_fn=to_batches,
        eval_preprocess_fn=to_batches,
    )
