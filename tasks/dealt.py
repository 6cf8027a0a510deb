"""Partitions of a task's examples across clients. No TensorFlow here."""

from __future__ import annotations

from tff_reg.data import keys, partitions
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.lazy import np
from tff_reg.settings import SettingError
from tff_reg.tasks import splits
from tff_reg.tasks.image_data import ImageData


def deal(data: ImageData, settings: TaskSettings) -> tuple[ImageData, list[np.ndarray]]:
    """Partitions a task's training examples across clients.

    Args:
      data: The task's data.
      settings: The partition, the number of clients and other settings of the split.

    Returns:
      The data and each client's positions in the training examples. With a
      `validation_share`, held out training examples replace the test examples.

    Raises:
      PartitionError: If the partition does not fit the data.
    """
    seed = settings.seed_of_split
    if settings.validation_share is not None:
        data = _with_validation(data, settings.validation_share, seed)
    positions = partitions.partition(
        settings.partition,
        data.y_train,
        settings.num_clients,
        seed=seed,
        concentration=settings.concentration,
        classes_per_client=settings.classes_per_client,
        domains=data.domains,
        split_file=settings.split_file,
    )
    return data, positions


def _with_validation(data: ImageData, share: float, seed: int) -> ImageData:
    """Replaces the test examples by a share of the training examples."""
    units = np.arange(len(data.y_train)) if data.units is None else data.units
    count = max(1, round(share * np.unique(units).size))
    key = int(keys.driver_generator("validation", seed).integers(2**63))
    if count == np.unique(units).size:
        raise SettingError("validation_share", share, "it leaves nothing to train on.")
    train, held = splits.by_share(data.strata(), count, seed=key, units=units)
    return data.train_part(train, **data.as_test(held))
