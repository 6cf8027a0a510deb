"""Tasks on the command line: a run on arrays, what is said where data are missing."""

import pytest

from tff_reg import tasks


@pytest.mark.parametrize("name", tasks.names())
def test_missing_data_are_explained_with_source_and_place(name, tmp_path):
    defaults = tasks.defaults(name)
    if "data_dir" not in defaults.options:
        tasks.check_data(name, None)
        return
    nothing = str(tmp_path / "nothing")
    with pytest.raises(tasks.DataError, match="There is nothing at") as caught:
        tasks.check_data(name, nothing)
    words = str(caught.value)
    assert defaults.source in words and defaults.layout in words
    assert words.endswith(f"(task {name}).") and "\n" not in words
    if defaults.tfds_name is None:
        with pytest.raises(tasks.DataError, match="There are no data: "):
            tasks.check_data(name, None)
    else:
        tasks.check_data(name, None)
