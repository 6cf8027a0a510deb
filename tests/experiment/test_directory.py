import json

import pytest

from tff_reg.experiment.rounds import directory


@pytest.fixture
def begun(tmp_path):
    """The directory of a run that has begun."""
    run = directory.RunDirectory(tmp_path / "run")
    run.begin({"total_rounds": 3, "batch_size": 4, "versions": {"tff_reg": "1.2"}})
    run.close()
    return tmp_path / "run"


def test_nothing_is_written_before_it_begins(tmp_path):
    run = directory.RunDirectory(tmp_path / "a" / "b")
    run.check({"batch_size": 5})
    assert run.config is None and run.summary() is None
    assert not list(tmp_path.iterdir())


def test_config_is_there_as_soon_as_it_begins(begun):
    config = json.loads((begun / "config.json").read_text())
    assert config["made_by"] == "tff_reg 1.2" and config["batch_size"] == 4
    assert directory.RunDirectory(begun).config == config


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "3", '{"made_by": 4}', '{"made_by": "another tool"}']
)
def test_a_config_that_is_not_ours_protects_a_directory(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(directory.DirectoryError, match="left alone"):
        directory.RunDirectory(tmp_path)


def test_half_written_files_of_ours_do_not_make_a_directory_foreign(tmp_path):
    (tmp_path / ".tmp-tff_reg-4-config.json").write_text("{")
    assert directory.RunDirectory(tmp_path).config is None


def test_settings_that_change_no_number_or_are_new_may_differ(begun):
    run = directory.RunDirectory(begun)
    run.check({"batch_size": 4, "devices": ["GPU:1"], "total_rounds": 5})
    run.check({"something_that_a_newer_version_added": 1})
    with pytest.raises(
        directory.DirectoryError,
        match="output_dir=.*/run: it has a run with batch_size=4, not 5; give another",
    ):
        run.check({"batch_size": 5})


def test_checkpoints_of_an_earlier_version_are_not_deleted(begun):
    before = begun / "checkpoints" / "round_000002"
    before.mkdir(parents=True)
    with pytest.raises(directory.DirectoryError, match="of an earlier version, so giv"):
        directory.RunDirectory(begun).check({"batch_size": 4, "total_rounds": 5})
    assert before.is_dir()


def test_overwriting_deletes_what_is_ours_only(begun):
    (begun / "metrics.csv").write_text("1")
    (begun / "events.out.tfevents.1").write_text("1")
    directory.RunDirectory(begun).checkpoints.save(1, {})
    (begun / "notes.txt").write_text("mine")
    run = directory.RunDirectory(begun)
    run.begin({"total_rounds": 1}, overwrite=True)
    run.close()
    assert {p.name for p in begun.iterdir()} == {"config.json", "notes.txt"}


def test_it_is_finished_with_the_rounds_of_its_summary(begun):
    run = directory.RunDirectory(begun)
    assert not run.is_finished(1)
    run.write_summary({"rounds": 3})
    assert run.is_finished(3) and run.is_finished(2) and not run.is_finished(4)


@pytest.mark.parametrize("content", ["[]", "null", "3", "{", "[" * 100_000, ""])
def test_a_summary_of_another_shape_is_none(begun, content):
    (begun / "summary.json").write_text(content)
    run = directory.RunDirectory(begun)
    assert run.summary() is None and not run.is_finished(1)


def test_a_run_that_began_in_between_is_noticed(tmp_path):
    late = directory.RunDirectory(tmp_path / "run")
    early = directory.RunDirectory(tmp_path / "run")
    early.begin({"total_rounds": 1})
    early.close()
    with pytest.raises(directory.DirectoryError, match="began a run there; try again"):
        late.begin({"total_rounds": 2})
    assert directory.RunDirectory(tmp_path / "run").config["total_rounds"] == 1


def test_a_file_is_refused_with_setting_value_and_reason(tmp_path):
    (tmp_path / "file").write_text("1")
    with pytest.raises(directory.DirectoryError) as caught:
        directory.RunDirectory(tmp_path / "file")
    reason = "it cannot be read (Not a directory)."
    assert caught.value.args == ("output_dir", tmp_path / "file", reason)
