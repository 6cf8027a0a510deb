"""Data sets through TensorFlow Datasets (TFDS), which downloads missing ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tff_reg.lazy import np, requests, tfds
from tff_reg.tasks import data_sets
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

_BATCH_SIZE = 1000
_PATIENCE_SECONDS = 10


def load_or_read(
    defaults: TaskDefaults,
    data_dir: str | None,
    read: Callable[[str], tuple],
    **options: Any,
) -> data_sets.Examples:
    """Reads a task's data set from its own files, or through TFDS.

    Args:
      defaults: The task's description, with a `tfds_name`.
      data_dir: The folder of the files; None for TFDS.
      read: Takes `data_dir`; returns training images and labels, test images and
        labels, and the classes' names.
      **options: Options of `data_sets.of_parts`.

    Returns:
      The data.

    Raises:
      DataError: If data are missing, cut off or damaged.
    """
    if data_dir is None:
        train, test = load(defaults, "train"), load(defaults, "test")
        names = _builder(defaults).info.features["label"].names
    else:
        train, test, names = read(data_dir)
    where = data_dir or f"TFDS's {defaults.tfds_name}"
    if len(names) != defaults.num_classes:
        raise DataError(
            f"{where} names {len(names)} classes; there should be "
            f"{defaults.num_classes}."
        )
    return data_sets.of_parts(train, test, names, where, **options)


def load(defaults: TaskDefaults, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads one split of a task's data set.

    If TFDS knows each example's number in the original files, the examples come in that
    order, so that split files fit.

    Args:
      defaults: The task's description, with a `tfds_name`.
      split: The split's name, such as 'train'.

    Returns:
      uint8 [n, height, width, channels] and int64 [n].

    Raises:
      DataError: If the data are missing and cannot be downloaded.
    """
    builder = _builder(defaults)
    images, labels, ids = bytearray(), [], []
    for batch in builder.as_dataset(split=split).batch(_BATCH_SIZE).as_numpy_iterator():
        # Grows in place, so that the images are never in memory twice.
        images += batch["image"].tobytes()
        labels.append(batch["label"])
        ids.append(batch.get("id", np.arange(0)))
        shape = batch["image"].shape[1:]
    if not labels:
        raise defaults.missing(f"TFDS has no {split} examples of {defaults.tfds_name}")
    x = np.frombuffer(images, np.uint8).reshape(-1, *shape)
    y, ids = np.concatenate(labels), np.concatenate(ids)
    if ids.size:
        _sort(x, y, np.argsort(ids, kind="stable"))
    return x, y


def _builder(defaults: TaskDefaults):
    # Without this, TFDS first waits for a cloud address; there is no public switch.
    tfds.core.utils.gcs_utils._is_gcs_disabled = True  # pylint: disable=protected-access
    try:
        builder = tfds.builder(defaults.tfds_name, try_gcs=False)
        if not builder.is_prepared():
            # TFDS would try for minutes.
            requests.head(defaults.source, timeout=_PATIENCE_SECONDS)
        builder.download_and_prepare()
    # A missing network raises many errors, and not all are OSErrors.
    except (OSError, AssertionError, RuntimeError, ValueError) as error:
        raise defaults.missing(
            f"TFDS could not download {defaults.tfds_name} ({type(error).__name__})"
        ) from error
    return builder


def _sort(x: np.ndarray, y: np.ndarray, order: np.ndarray) -> None:
    """Puts row order[i] into row i, in place."""
    y[:] = y[order]
    source = order.copy()
    for start in range(order.size):
        # Follow each cycle of the permutation once, with one row kept aside.
        if source[start] == start:
            continue
        kept, row = x[start].copy(), start
        while source[row] != start:
            x[row], following = x[source[row]], source[row]
            source[row], row = row, following
        x[row], source[row] = kept, row
