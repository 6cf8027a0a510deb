"""Shakespeare: the next character of a line, by speaking character.

Source: LEAF, as `tff.simulation.datasets.shakespeare` packs it: 715 characters of the
plays, each with training and test lines. An example is the (at most) 80 characters
before a character, which is the class. Token 0 pads, 1 stands for other characters than
the 86 of TFF's vocabulary; these are no class.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from tff_reg.data import dtypes
from tff_reg.lazy import np
from tff_reg.models import names
from tff_reg.tasks import data_sets, tff_files

_CHARACTERS = string.ascii_letters + string.digits + "\n\r !\"#$%&'()*,-./:;?@[]_"
_TOKENS = {character: number for number, character in enumerate(_CHARACTERS, 2)}
_FILE = tff_files.File(
    "shakespeare.sqlite",
    "shakespeare",
    "the next character of Shakespeare's plays, by speaker",
    model="lstm",
    norm="none",
    kind=names.TEXTS,
    num_classes=len(_CHARACTERS),
    options=("data_dir", "sequence_length"),
)
DEFAULTS, clients = _FILE.defaults, _FILE.clients


def load(
    data_dir: str, sequence_length: int = 80, clients: Sequence[str] | None = None
) -> data_sets.Examples:
    """Reads lines: uint8 [n, sequence_length]; see `tff_files.File.load`."""

    def convert(feature: Any) -> tuple[np.ndarray, np.ndarray]:
        text = tff_files.text_of(feature, "snippets")
        tokens = np.array([_TOKENS.get(each, 1) for each in text], np.uint8)
        return tff_files.windows(tokens, sequence_length, first=2)

    return _FILE.load(
        data_dir,
        clients,
        convert,
        [repr(each)[1:-1] for each in _CHARACTERS],
        normalize_fn=dtypes.Cast("int32"),
        vocabulary=("", "[UNK]", *_CHARACTERS),
    )
