"""Stack Overflow: the next word of a sentence, by user.

Source: `tff.simulation.datasets.stackoverflow`, 342,477 users with training sentences.
An example is the (at most) 20 words before a word, which is the class. The vocabulary
is the first words of TFF's `stackoverflow.word_count`, if it is beside the file, and
otherwise the most frequent words of the training sentences of the clients that take
part. Token 0 pads, 1 stands for other words, which are no class, and 2 begins a
sentence.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Sequence
from typing import Any

from tff_reg.data import dtypes
from tff_reg.lazy import np
from tff_reg.models import names
from tff_reg.tasks import data_sets, reading, tff_files

_COUNTS = "stackoverflow.word_count"
_FILE = tff_files.File(
    "stackoverflow.sqlite",
    "stackoverflow",
    "the next word on Stack Overflow, by user",
    model="lstm",
    norm="none",
    kind=names.TEXTS,
    options=("data_dir", "sequence_length", "vocabulary_size"),
)
DEFAULTS, clients = _FILE.defaults, _FILE.clients


def load(
    data_dir: str,
    sequence_length: int = 20,
    vocabulary_size: int = 10_000,
    clients: Sequence[str] | None = None,
) -> data_sets.Examples:
    """Reads sentences: float32 [n, sequence_length]; see `tff_files.File.load`."""
    counts = os.path.join(data_dir, _COUNTS)
    if os.path.exists(counts):
        words = [line.split()[0] for line in reading.read_lines(counts)]
    else:
        words = _most_frequent(data_dir, clients)
    words = words[:vocabulary_size]
    tokens = {word: number for number, word in enumerate(words, 3)}

    def convert(feature: Any) -> tuple[np.ndarray, np.ndarray]:
        own = [2, *(tokens.get(word, 1) for word in _words(feature))]
        return tff_files.windows(np.array(own, np.float32), sequence_length, first=3)

    return _FILE.load(
        data_dir,
        clients,
        convert,
        words,
        normalize_fn=dtypes.Cast("int32"),
        vocabulary=("", "[UNK]", "[BEGIN]", *words),
    )


def _words(feature: Any) -> list[str]:
    return tff_files.text_of(feature, "tokens").split()


def _most_frequent(data_dir: str, clients: Sequence[str] | None) -> list[str]:
    """Returns the words of the training sentences, the most frequent first."""
    counts: collections.Counter = collections.Counter()
    for _, feature in _FILE.stored(data_dir, "train", clients):
        counts.update(_words(feature))
    return sorted(counts, key=lambda word: (-counts[word], word))
