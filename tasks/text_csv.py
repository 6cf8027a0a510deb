"""Your own texts in a CSV or Parquet file with the columns text and label.

Keras's `TextVectorization` numbers the most frequent words of all training texts, in
lower case and without punctuation; a federation would have to agree on these first.
Token 0 pads, 1 stands for other words. Of a longer text the first words are read.
"""

from __future__ import annotations

from typing import Any

from tff_reg.data import dtypes
from tff_reg.lazy import np, tf
from tff_reg.models import names
from tff_reg.tasks import data_sets, tables
from tff_reg.tasks.tables import clients as clients
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

_TEXT = "text"

DEFAULTS = TaskDefaults(
    name="text_csv",
    summary="your own texts, in a CSV or Parquet file",
    model="lstm",
    norm="none",
    augmentation="none",
    kind=names.TEXTS,
    options=(*tables.OPTIONS, "sequence_length", "vocabulary_size"),
    layout=f"a .csv or .parquet file with columns text and label, {tables.LAYOUT}",
)


def load(
    data_dir: str,
    sequence_length: int = 64,
    vocabulary_size: int = 10_000,
    **columns: Any,
) -> data_sets.Examples:
    """Reads the file `data_dir`: float32 [n, sequence_length]; see `tables.load`."""

    def features(frame: Any, train: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        if _TEXT not in frame:
            raise DataError(f"{data_dir} has no column {_TEXT}.")
        texts = frame[_TEXT].fillna("").astype(str).to_numpy().astype(str)
        layer = tf.keras.layers.TextVectorization(
            max_tokens=vocabulary_size + 2, output_sequence_length=sequence_length
        )
        layer.adapt(tf.constant(texts[train]))
        x = np.asarray(layer(tf.constant(texts)), np.float32)
        x[:, 0] = np.maximum(x[:, 0], 1)  # An empty text is one other word.
        words = tuple(map(str, layer.get_vocabulary()))
        return x, {"normalize_fn": dtypes.Cast("int32"), "vocabulary": words}

    return tables.load(data_dir, features, **columns)
