import pytest

from tff_reg.experiment import files
from tff_reg.settings import SettingError


def test_writes_replace_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    files.write_text(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(RuntimeError), files.atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


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


def test_leftovers_are_what_has_the_temporary_prefix(tmp_path):
    (tmp_path / f"{files.TEMPORARY_PREFIX}9-d").mkdir()
    (tmp_path / "kept").write_text("1")
    files.delete_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


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


def test_sha256_is_that_of_the_standard(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert files.sha256(tmp_path / "a") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
