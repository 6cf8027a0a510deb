"""A task's loaded data: arrays, names, normalisation. No TensorFlow here."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tff_reg.data import augmentation, rows
from tff_reg.lazy import np
from tff_reg.tasks.task_defaults import DataError


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of a task.

    Images are kept as stored; `normalize_fn` scales and normalises them.
    """

    # uint8 [n, height, width, channels]; float32 if the user's images are; for the
    # user's own model any array, or dict or tuple of arrays
    x_train: Any
    # int32 [n]; without class names other labels [n, ...], or a dict or tuple of such
    y_train: Any
    # Like x_train: [m, height, width, channels]
    x_test: Any
    # int32 [m], or like y_train
    y_test: Any
    # images -> float32 images; ignores its second argument, a key. Of examples that
    # models take as they are a `dtypes.Cast`.
    normalize_fn: Callable
    # A distinct name for each class, in the order of the labels; none of other labels.
    class_names: tuple[str, ...]
    # int32 [n], each training example's domain; None without domains.
    domains: np.ndarray | None = None
    # int32 [m], each test example's domain; None if they are not known.
    test_domains: np.ndarray | None = None
    # A distinct name for each domain.
    domain_names: tuple[str, ...] = ()
    # int32 [n], such as each training image's lesion: examples with the same number are
    # not divided between training and held-out examples. None without such units.
    units: np.ndarray | None = None
    # int [n], each training example's group, which partitions and splits divide in the
    # place of classes. None for the classes.
    stratify: np.ndarray | None = None
    # int32 [n], each training example's client, if the data come with clients.
    clients: np.ndarray | None = None
    # int32 [m], each test example's client; -1 for clients without training examples.
    test_clients: np.ndarray | None = None
    # A distinct name for each client.
    client_names: tuple[str, ...] = ()
    # The tokens of texts, whose examples are rows of their numbers.
    vocabulary: tuple[str, ...] = ()
    # The largest value of uint8 images.
    largest_of_uint8: float = 255.0
    # Whether normalize_fn is that of the training images' own mean and deviation.
    is_normalized_by_own: bool = False

    def __post_init__(self):
        for what, names in (
            ("class", self.class_names),
            ("domain", self.domain_names),
        ):
            for name, count in collections.Counter(names).items():
                if count > 1:
                    raise DataError(
                        f"There are {count} {what} names {name!r}; all names must"
                        " differ."
                    )

    @property
    def num_train(self) -> int:
        """The number of training examples."""
        return rows.count(self.y_train)

    @property
    def groups(self) -> np.ndarray | None:
        """Int [n], what partitions divide; None if there are no classes or groups."""
        if self.stratify is None and rows.are_classes(self.y_train):
            return self.y_train
        return self.stratify

    def strata(self) -> np.ndarray:
        """Returns numbers of each training example's group and domain, int64 [n]."""
        groups = np.zeros(self.num_train, int) if self.groups is None else self.groups
        strata = groups.astype(np.int64) * (len(self.domain_names) or 1)
        return strata if self.domains is None else strata + self.domains

    def train_part(self, positions: np.ndarray, **changes: Any) -> Examples:
        """Returns the data with some of the training examples, and other changes."""
        names = ("x_train", "y_train", "domains", "clients", "units", "stratify")
        part = self._part(names, positions)
        return dataclasses.replace(self, **part, **changes)

    def test_part(self, positions: np.ndarray) -> dict[str, Any]:
        """Returns the fields of some of the test examples."""
        names = ("x_test", "y_test", "test_domains", "test_clients")
        return self._part(names, positions)

    def _part(self, names: Sequence[str], positions: np.ndarray) -> dict[str, Any]:
        known = {name: getattr(self, name) for name in names}
        known = {name: each for name, each in known.items() if each is not None}
        return {name: rows.take(each, positions) for name, each in known.items()}

    def as_test(self, positions: np.ndarray) -> dict[str, Any]:
        """Returns the fields of a test set of these training examples."""
        fields = {"x_test": self.x_train, "y_test": self.y_train}
        fields |= {"test_domains": self.domains, "test_clients": self.clients}
        return {
            name: each if each is None else rows.take(each, positions)
            for name, each in fields.items()
        }

    @property
    def largest_pixel(self) -> float | None:
        """The largest value of uint8 images; None for float32 images of any range."""
        is_uint8 = getattr(self.x_train, "dtype", None) == np.uint8
        return self.largest_of_uint8 if is_uint8 else None

    def normalized_by(self, mean: Sequence[float], std: Sequence[float]) -> Callable:
        """Returns a normalisation by a given mean and deviation, not the data's own.

        Args:
          mean: One number, or one per channel, for pixels scaled to [0, 1].
          std: Standard deviation, in the same form.

        Returns:
          A function as `augmentation.normalize` returns it. It does not scale float32
          images.

        Raises:
          DataError: If the lengths do not fit the number of channels.
        """
        channels = np.shape(self.x_train)[-1]
        if len(mean) != len(std) or len(mean) not in (1, channels):
            raise DataError(
                f"pixel_mean has {len(mean)} numbers and pixel_std {len(std)}; give "
                f"one of both, or one of both for each of the {channels} channels."
            )
        return augmentation.normalize(mean, std, largest=self.largest_pixel or 1.0)


def normalization_of(images: np.ndarray) -> Callable:
    """Returns a normalisation by the images' own mean and deviation per channel.

    It is computed from histograms of the pixels, without a copy of the images.

    Args:
      images: uint8 [n, height, width, channels]; float32 images are not normalised.

    Returns:
      A function as `augmentation.normalize` returns it.
    """
    if images.dtype != np.uint8:
        return augmentation.normalize(0.0, 1.0, largest=1.0)
    pixels = np.arange(256) / 255.0
    means, deviations = [], []
    for channel in range(images.shape[-1]):
        counts = np.zeros(256, dtype=np.int64)
        # A few images at a time: bincount needs eight bytes for each pixel.
        for start in range(0, len(images), 1000):
            part = images[start : start + 1000, ..., channel]
            counts += np.bincount(part.ravel(), minlength=256)
        shares = counts / counts.sum()
        mean = float(shares @ pixels)
        deviation = float(np.sqrt(shares @ (pixels - mean) ** 2))
        means.append(mean)
        deviations.append(deviation or 1.0)
    return augmentation.normalize(means, deviations)


def of_parts(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    class_names: Iterable[Any],
    *where: str,
    normalize_fn: Callable | None = None,
    **options: Any,
) -> Examples:
    """Makes a data set from a training and a test part, and checks their labels.

    Args:
      train: Images as in `Examples`, and labels, whole numbers [n].
      test: Test images and labels, in the same form.
      class_names: One name for each class, in the order of the labels; none for labels
        that are no classes.
      *where: The source of the parts, for messages: one for both, or one for each.
      normalize_fn: None for the training images' own mean and deviation.
      **options: Other fields of `Examples`.

    Returns:
      The data.

    Raises:
      DataError: If there are no labels, or a label has no class.
    """
    names = tuple(map(str, class_names))
    labels = [train[1], test[1]]
    if names:
        labels = [check_labels(y, len(names), w) for y, w in zip(labels, where * 2)]
    return Examples(
        x_train=train[0],
        y_train=labels[0],
        x_test=test[0],
        y_test=labels[1],
        normalize_fn=normalize_fn or normalization_of(train[0]),
        is_normalized_by_own=normalize_fn is None,
        class_names=names,
        **options,
    )


def check_labels(labels: np.ndarray, num_classes: int, where: str) -> np.ndarray:
    """Checks labels and returns them as int32 [n].

    Raises:
      DataError: If there are no labels, or one is no integer in 0 .. num_classes - 1.
    """
    labels = np.asarray(labels)
    if not labels.size:
        raise DataError(f"{where} has no examples.")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{where} has labels of shape {labels.shape} and dtype {labels.dtype}; "
            "there must be one whole number for each example."
        )
    if labels.min() < 0 or labels.max() >= num_classes:
        raise DataError(
            f"{where} has labels from {labels.min()} to {labels.max()}; they must be "
            f"in 0 to {num_classes - 1}."
        )
    return labels.astype(np.int32)
