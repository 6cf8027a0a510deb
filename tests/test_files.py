import re
import textwrap

import numpy as np
import pytest

from tests import commands
from tff_reg import files
from tff_reg.settings import SettingError


def test_a_failing_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(RuntimeError), files.atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


_ON_A_FULL_DISK = textwrap.dedent("""
    import pathlib, resource, sys
    import numpy as np
    from tff_reg.experiment.rounds import checkpoints, directory, process_state

    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    folder, array = pathlib.Path(sys.argv[1]), np.zeros(1000, np.float32)
    store = checkpoints.CheckpointStore(folder)
    states = process_state.ClientStates(array, store)
    for write in (
        lambda: directory.RunDirectory(folder).write_weights({"w": array}),
        lambda: states.store(["a"], [array]),
        lambda: store.save(1, {"a": bytes(2000)}),
    ):
        try:
            write()
        except OSError as error:
            print(error)
""")


def test_a_full_disk_is_one_error_that_names_the_file(tmp_path):
    # A limit on files' sizes stands for it.
    done = commands.python(_ON_A_FULL_DISK, tmp_path)
    assert done.stderr == ""
    weights, state, checkpoint = done.stdout.splitlines()
    assert weights == f"[Errno 27] File too large: '{tmp_path}/final_weights.npz'"
    for line in (state, checkpoint):
        assert re.search(rf"File too large: '{tmp_path}/[0-9a-f]{{64}}", line)
    assert not list(tmp_path.iterdir())


def test_arrays_come_back_and_damage_is_one_error(tmp_path):
    path = tmp_path / "a.npz"
    content = files.npz({"a/b": np.arange(3), "c": np.float32(2)})
    path.write_bytes(content)
    found = files.read_npz(path, lambda name: name != "c")
    assert list(found) == ["a/b"] and found["a/b"].tolist() == [0, 1, 2]
    # Its first byte, a byte of an array, one of an array's description (NumPy's own
    # error), and half of it.
    header = content.index(b"fortran_order")
    for damaged in (
        b"x" + content[1:],
        content.replace(np.arange(3).tobytes(), bytes(23) + b"x"),
        content[:header] + b"(" + content[header + 1 :],
        content[: len(content) // 2],
    ):
        path.write_bytes(damaged)
        with pytest.raises(files.DamagedError, match="a.npz is no .npz file"):
            files.read_npz(path)


def test_a_directory_appears_with_all_its_files(tmp_path):
    with files.atomic_path(tmp_path / "d") as temporary:
        temporary.mkdir()
        (temporary / "a").write_text("1")
        assert not (tmp_path / "d").exists()
    assert (tmp_path / "d" / "a").read_text() == "1"


def test_delete_takes_files_directories_links_and_nothing(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    files.delete(tmp_path / "link")
    assert (tmp_path / "d" / "a").exists()
    files.delete(tmp_path / "d")
    files.delete(tmp_path / "d")
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written_is_refused_and_nothing_is_made(tmp_path):
    files.check_writable(tmp_path / "a" / "b", "output_dir")
    with pytest.raises(SettingError, match="csv=.*/a/b: there is no such directory"):
        files.check_place(tmp_path / "a" / "b", "csv")
    assert not list(tmp_path.iterdir())
    made = files.make_directory(tmp_path / "a" / "b", "output_dir")
    assert made.is_dir() and not list(made.iterdir())
    (made / "file").write_text("mine")
    for path, why in (("/proc/x", "No such file"), (made / "file", "File exists")):
        with pytest.raises(SettingError, match=rf"output_dir={path}: .*\({why}.*other"):
            files.make_directory(path, "output_dir")


def test_links_in_a_circle_are_followed_once(tmp_path):
    (tmp_path / "f").write_text("abc")
    number, size, _ = files.state(tmp_path)
    for name in "ab":
        (tmp_path / name).symlink_to(tmp_path)
    found = files.state(tmp_path)
    assert found[0] == number + 2 and found[1] > size
