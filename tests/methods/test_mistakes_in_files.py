"""Mistakes in files of methods: names for the command line, flags, origins."""

import pytest

from tff_reg import plugins
from tff_reg.methods import catalogue

_FILE = """
import dataclasses
from tff_reg import methods, settings
@dataclasses.dataclass(frozen=True)
class X(methods.Method):
    name = {name!r}
    {field}: float = settings.setting({default}, help="x")
"""


@pytest.fixture(name="add")
def fixture_add(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "_loaded", {})

    def add(file, name, field="x", default=1.0):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(_FILE.format(name=name, field=field, default=default))
        return catalogue.add_file(str(path))

    return add


def test_two_methods_have_no_flag_of_one_name(add):
    add("a.py", "a", "b_c")
    with pytest.raises(plugins.PluginError, match="a_b_c .* a and a_b"):
        add("ab.py", "a_b", "c")


@pytest.mark.parametrize("name", ["Mine", ""])
def test_a_files_method_has_a_name_for_the_command_line(add, name):
    with pytest.raises(plugins.PluginError, match="small letters|has a name"):
        add("a.py", name)
