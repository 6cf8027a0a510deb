"""What the replays do with a folder's files."""

import pytest

from tests.golden import replay


def test_our_own_files_are_complete():
    letters = {path.name[0] for path in replay.OWN_FOLDER.glob("*.npz")}
    assert letters == set(replay.LETTERS)


@pytest.mark.golden
def test_every_file_has_a_test():
    others = [name for name in replay.names("*") if name[0] not in replay.LETTERS]
    for name in others:
        replay.not_compared(name, ["all of it"])
