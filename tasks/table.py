"""Your own table, CSV or Parquet: numbers in columns, and a column of classes.

All columns but those of the classes, the clients and the split are features, which are
standardised by the training examples' own mean and deviation.
"""

from __future__ import annotations

from typing import Any

from tff_reg.data import dtypes
from tff_reg.lazy import np
from tff_reg.models import names
from tff_reg.tasks import data_sets, tables
from tff_reg.tasks.tables import clients as clients
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

DEFAULTS = TaskDefaults(
    name="table",
    summary="your own table of numbers, a CSV or Parquet file",
    model="mlp",
    norm="none",
    augmentation="none",
    kind=names.ROWS,
    options=tables.OPTIONS,
    layout=f"a .csv or .parquet file with a column label, {tables.LAYOUT}",
)


def load(data_dir: str, **columns: Any) -> data_sets.Examples:
    """Reads the file `data_dir`: float32 [n, features]; see `tables.load`."""

    def features(frame: Any, train: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        texts = [
            str(n) for n, column in frame.items() if column.dtype.kind not in "biuf"
        ]
        if texts or not frame.shape[1]:
            what = f"texts in {', '.join(texts)}" if texts else "no features"
            raise DataError(f"{data_dir} has {what}; give columns of numbers.")
        if nameless := [n for n in frame if str(n).startswith("Unnamed: ")]:
            raise DataError(
                f"{data_dir} has a column without a name, which pandas calls"
                f" {nameless[0]}: remove it, or write the file with index=False."
            )
        tables.check_cells(frame, data_dir)
        x = frame.to_numpy(np.float64)
        dtypes.check_finite(x.astype(np.float32), data_dir)
        mean, deviation = x[train].mean(axis=0), x[train].std(axis=0)
        deviation = np.where(np.ptp(x[train], axis=0) * deviation > 0, deviation, 1)
        normalize_fn = dtypes.Standardized((*mean.tolist(),), (*deviation.tolist(),))
        x = ((x - mean) / deviation).astype(np.float32)
        return x, {"normalize_fn": normalize_fn}

    return tables.load(data_dir, features, **columns)
