"""Your own arrays in an .npz file: x_train, y_train, x_test, y_test.

Our networks take images, uint8 [n, height, width, channels] (or without channels) or
float32, and labels that are whole numbers from 0. uint8 images are normalised with the
training images' own mean and deviation, float32 images are not. A Keras model takes any
examples, as they are, and the labels of its loss; of several inputs each is an array of
its own, `x_train/NAME`, or `x_train/0` and so on of a list.

The file may also hold `domain` and `test_domain` (a whole number from 0 for each
training and test example), `class_names` and `domain_names`; for the partition
`natural`, `client` and `test_client` (a whole number or a text for each example); and
`stratify`, the group of each training example, which partitions divide in the place of
classes. The file is read without pickles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg import files, lazy
from tff_reg.data import dtypes, rows
from tff_reg.lazy import np
from tff_reg.tasks import data_sets, natural
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

own_data = lazy.module("tff_reg.tasks.own_data")
_LARGEST_NUMBER = 100_000

DEFAULTS = TaskDefaults(
    name="arrays",
    summary="your own arrays, in an .npz file",
    model="resnet20",
    norm="group",
    augmentation="none",
    num_domains=None,
    options=("data_dir",),
    layout="an .npz file with x_train, y_train, x_test and y_test",
)


def load(data_dir: str, is_raw: bool = False) -> data_sets.Examples:
    """Reads the .npz file `data_dir`; the data have domains if the file has them.

    If they are `raw`, a model takes them as they are.

    Raises:
      DataError: If the file is damaged or its arrays do not fit together.
    """
    names = ("x_train", "y_train", "x_test", "y_test")
    extras = ("domain", "test_domain", "class_names", "domain_names")
    extras += ("client", "test_client", "stratify")
    content = read_npz(data_dir, names, extras)
    x_train, y_train, x_test, y_test = (content[name] for name in names)
    parts = [("x_train", (x_train, y_train)), ("x_test", (x_test, y_test))]
    checked = own_data.examples if is_raw else _images
    (x_train, y_train), (x_test, y_test) = (
        checked(part, f"{name} in {data_dir}") for name, part in parts
    )
    pairs = [("x", x_train, x_test), ("y", y_train, y_test)]
    for what, train, test in pairs if is_raw else pairs[:1]:
        if rows.kinds(train) != rows.kinds(test):
            raise DataError(
                f"{data_dir} has {what}_train {rows.kinds(train)} and {what}_test"
                f" {rows.kinds(test)}; they must be alike."
            )
    class_names = ()
    if not is_raw or rows.are_classes(y_train) and rows.are_classes(y_test):
        class_names = _names(content.get("class_names"), y_train, y_test)
    domains, domain_names = {}, ()
    if "domain" in content:
        names = ("domain", "test_domain")
        domains = {name: content[name] for name in names if name in content}
        domain_names = _names(content.get("domain_names"), *domains.values())
    for name, found in domains.items():
        y, where = y_train if name == "domain" else y_test, f"{name} in {data_dir}"
        domains[name] = data_sets.check_labels(found, len(domain_names), where)
        if len(found) != rows.count(y):
            raise DataError(
                f"{where} has {len(found)} numbers for {rows.count(y)} examples; each"
                " example needs one."
            )
    clients = _clients(content, data_dir, y_train, y_test)
    groups = content.get("stratify")
    if groups is not None and groups.shape != (rows.count(y_train),):
        raise DataError(
            f"stratify in {data_dir} has the shape {groups.shape}; give the group of"
            f" each training example, [{rows.count(y_train)}]."
        )
    if not is_raw:
        check_scale(x_train, x_test, f"{data_dir}: x_train", "x_test")
    return data_sets.of_parts(
        (x_train, y_train),
        (x_test, y_test),
        class_names,
        data_dir,
        domains=domains.get("domain"),
        test_domains=domains.get("test_domain"),
        domain_names=domain_names,
        normalize_fn=dtypes.Cast("float32") if is_raw else None,
        stratify=None if groups is None else np.unique(groups, return_inverse=True)[1],
        **clients,
    )


def _images(part: tuple[Any, Any], where: str) -> tuple[Any, Any]:
    """Returns images and labels for our networks, checked."""
    images, labels = part
    if isinstance(images, (dict, tuple)):
        raise DataError(
            f"{where} are several arrays, and our networks take one: give a Keras model"
            " that takes them (model=FILE.keras)."
        )
    images = check_images(images, where)
    if rows.count(labels) != len(images):
        raise DataError(
            f"{where} has {len(images)} images and {rows.count(labels)} labels; each"
            " image needs one label."
        )
    return images, labels


def clients(data_dir: str) -> Sequence[str]:
    """Returns the clients' names; none without an array `client`."""
    content = read_npz(data_dir, (), ("client",))
    return natural.numbered(content["client"])["client_names"] if content else ()


def _clients(content: Mapping[str, Any], path: str, *labels: np.ndarray) -> dict:
    """Returns the fields of the clients; none without an array `client`."""
    if "client" not in content:
        return {}
    found = [content["client"], content.get("test_client")]
    for each, count in zip(found, map(rows.count, labels)):
        kinds = "U" if found[0].dtype.kind == "U" else "iu"
        if each is not None and (
            each.shape != (count,) or each.dtype.kind not in kinds
        ):
            raise DataError(
                f"{path} has clients {each.dtype} {each.shape} for {count} examples;"
                " give each example one, whole numbers or texts."
            )
    return natural.numbered(*found)


def check_scale(x_train: np.ndarray, x_test: np.ndarray, *names: str) -> None:
    """Checks that float32 test images have the scale of the training images.

    Raises:
      DataError: If not; the message has the names of both.
    """
    train, test = (float(np.abs(x).max()) for x in (x_train, x_test))
    if x_train.dtype == np.float32 and not train / 10 <= test <= 10 * train:
        raise DataError(
            f"{names[0]} reaches up to {train:g} and {names[1]} up to {test:g};"
            " bring both to one scale."
        )


def _names(names: np.ndarray | None, *numbers: np.ndarray) -> tuple[str, ...]:
    """Returns the given names; by default, the numbers from 0 to the largest."""
    if names is not None:
        return tuple(map(str, names.ravel()))
    whole = [one for one in numbers if one.dtype.kind in "iu" and one.size]
    return tuple(map(str, range(count_numbers(*whole))))


def count_numbers(*numbers: np.ndarray) -> int:
    """Returns how many classes or domains there are by their numbers, from 0.

    Raises:
      DataError: If there are too many, or they are numbered from 1.
    """
    largest = max((int(one.max()) for one in numbers), default=0)
    if largest > _LARGEST_NUMBER:
        raise DataError(f"There is a class or domain {largest}; number them from 0.")
    from_one = np.arange(1, largest + 1)
    if largest > 1 and np.array_equal(np.unique(np.concatenate(numbers)), from_one):
        raise DataError(
            f"Classes or domains are numbered from 1 to {largest}; number them from 0,"
            " as by labels - 1."
        )
    return largest + 1


def read_npz(
    path: str, names: Sequence[str], extras: Sequence[str] = ()
) -> dict[str, Any]:
    """Reads arrays of an .npz file, without pickles.

    Args:
      path: The file.
      names: The required arrays.
      extras: The optional arrays.

    Returns:
      The arrays by name; dicts and tuples of those that are called NAME/PART.

    Raises:
      DataError: If the file is damaged, lacks an array, or holds pickled objects.
    """
    wanted = {*names, *extras}
    try:
        stored = files.read_npz(path, lambda name: name.partition("/")[0] in wanted)
    except files.DamagedError as error:
        raise DataError(str(error)) from error
    content: dict[str, Any] = {}
    for whole, array in stored.items():
        name, is_part, part = whole.partition("/")
        if is_part:
            content.setdefault(name, {})[part] = array
        else:
            content[name] = array
    for name, parts in content.items():
        if isinstance(parts, dict) and all(map(str.isdecimal, parts)):  # A list's.
            content[name] = tuple(parts[n] for n in sorted(parts, key=int))
    for name in names:
        if name not in content:
            raise DataError(f"{path} has no array {name}.")
    return content


def check_images(images: np.ndarray, where: str) -> np.ndarray:
    """Checks images and returns them as [n, height, width, channels].

    Raises:
      DataError: If images have another shape or order of axes, are neither uint8 nor
        float32, or have values that are not finite.
    """
    known = images.dtype in (np.uint8, np.float32)
    if images.ndim not in (3, 4) or not images.size or not known:
        raise DataError(
            f"{where} is {images.dtype} {images.shape}; it must be uint8 or float32 "
            "[n, height, width] or [n, height, width, channels]."
        )
    # Unlike np.isfinite, the sum makes no second array.
    if images.dtype == np.float32 and not np.isfinite(images.sum(dtype=np.float64)):
        raise DataError(f"{where} has values that are not finite numbers.")
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.shape[1] in (1, 3) and images.shape[3] > 4:
        raise DataError(
            f"{where} is {images.shape} and seems to have its channels before height "
            "and width; they must come last: np.transpose(images, (0, 2, 3, 1))."
        )
    return images
