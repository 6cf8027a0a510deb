"""Tables of CSV and Parquet files, read by pandas: classes, clients and the split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tff_reg.lazy import np, pandas
from tff_reg.tasks import data_sets, natural, splits
from tff_reg.tasks.task_defaults import DataError

LABEL, CLIENT, SPLIT = "label", "client", "split"
OPTIONS = ("data_dir", "label_column", "client_column")
LAYOUT = "and perhaps client, and split (train or test)"
_SEED = 1307


def load(
    path: str,
    features: Callable[[Any, np.ndarray], tuple[np.ndarray, dict[str, Any]]],
    label_column: str | None = None,
    client_column: str | None = None,
) -> data_sets.Examples:
    """Reads a table.

    Without a column `split`, a tenth of the rows of each client (of each class, without
    clients) are test examples, always the same ones.

    Args:
      path: The file.
      features: From the other columns and the positions of the training examples to the
        examples [n, ...] and other fields of `Examples`.
      label_column: The column of the classes; None for `label`.
      client_column: The column of the clients; None for `client`, if there is one.

    Raises:
      DataError: If the file cannot be read, or a column is missing or does not fit.
    """
    label, client = label_column or LABEL, client_column or CLIENT
    frame = _frame(path)
    for name, needs_it in ((label, True), (client, client_column)):
        if needs_it and name not in frame:
            setting = "label_column" if name == label else "client_column"
            has = ", ".join(map(str, frame))
            raise DataError(
                f"{path} has no column {name}, only {has}; give {setting}=NAME."
            )
    classes, labels = np.unique(_values(frame, label, path), return_inverse=True)
    if classes.dtype.kind == "f":
        raise DataError(f"{label} in {path} has fractions; give classes.")
    owners = _values(frame, client, path) if client in frame else None
    if SPLIT in frame:
        parts = [np.flatnonzero(frame[SPLIT] == kind) for kind in ("train", "test")]
        if not all(map(len, parts)) or sum(map(len, parts)) < len(frame):
            raise DataError(f"{SPLIT} in {path} must be train or test, and have both.")
    else:
        groups = labels if owners is None else np.unique(owners, return_inverse=True)[1]
        parts = splits.by_share(groups, max(1, round(len(frame) / 10)), seed=_SEED)
    rest = frame.drop(columns=[label, client, SPLIT], errors="ignore")
    x, fields = features(rest, parts[0])
    if owners is not None:
        fields |= natural.numbered(*(owners[rows] for rows in parts))
    train, test = ((x[rows], labels[rows]) for rows in parts)
    return data_sets.of_parts(train, test, classes, path, **fields)


def clients(
    data_dir: str, label_column: Any = None, client_column: Any = None, **_: Any
) -> Sequence[str]:
    """Returns the names of the clients with training examples."""
    nothing = lambda frame, train: (np.zeros([len(frame), 1], np.float32), {})  # noqa: E731
    return load(data_dir, nothing, label_column, client_column).client_names


def _frame(path: str) -> Any:
    try:
        if path.endswith((".parquet", ".pq")):
            frame = pandas.read_parquet(path)
        else:  # A text such as "null" is not missing.
            frame = pandas.read_csv(path, keep_default_na=False, na_values=[""])
    except ImportError as error:
        raise DataError(
            f"{path} is read by pyarrow: pip install pyarrow, or in a clone"
            " bin/launch --dev -m pip install pyarrow."
        ) from error
    except (OSError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise DataError(f"{path} cannot be read as a table ({why}).") from error
    if len(frame) < 2:
        raise DataError(f"{path} has {len(frame)} rows; there must be more.")
    return frame


def check_cells(frame: Any, path: str) -> None:
    """Checks that a table of a file has no empty cells."""
    rows, columns = np.nonzero(frame.isna().to_numpy())
    if rows.size:
        raise DataError(
            f"{path} has empty cells, the first in row {frame.index[rows[0]] + 1} of"
            f" {frame.columns[columns[0]]}; fill or remove these rows."
        )


def _values(frame: Any, name: str, path: str) -> np.ndarray:
    """Returns a column as whole numbers or texts, or floats if it has fractions."""
    check_cells(frame[[name]], path)
    values = frame[name].to_numpy()
    if values.dtype.kind not in "biuf":
        return values.astype(str)
    # From 2**53 on a float may stand for several whole numbers.
    is_exact = (np.rint(values) == values) & (np.abs(values) < 2**53)
    return values.astype(np.int64) if is_exact.all() else values
