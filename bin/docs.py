"""Writes the API reference as HTML: `bin/docs --help` says how.

pdoc reads the docstrings. What it cannot find by itself, such as names that a package
imports when they are asked for (`tff_reg.lazy.exports`), is looked up for it first.
"""

import importlib
import inspect
import pathlib
import pkgutil
import shutil
import sys
import tempfile
import typing
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tff_reg import interruption

    STOP = interruption.Interruption()
    STOP.take_over()

from tff_reg import quiet
from tff_reg.experiment import command_line, files
from tff_reg.lazy import flags
from tff_reg.methods import overview

_COMMAND = "bin/docs"
_PACKAGES = ("tff_reg",)
_FIRST_PAGE = "index.html"
_TITLE = "<title>tff_reg: API reference</title>"
README = ROOT / "README.md"
_TABLE_BEGINS = "<!-- bin/docs --readme writes this table. -->"
_TABLE_ENDS = "<!-- The table ends. -->"
_HELP = """\
bin/docs [--output_dir=DIR]
  Writes the reference of tff_reg as HTML; DIR/index.html is its first page.
  Exit code 1 if a docstring or a name of it is wrong, a line each.

bin/docs --readme
  Writes the README's table of methods anew, which follows from their files.

  --output_dir=DIR        where to; an older reference there is replaced
                          [docs/api of this repository]"""


def fail(message, exit_code=2):
    """Ends the command with a line that says why."""
    command_line.fail(message, exit_code=exit_code, command=_COMMAND)


def show_everything(name):
    """Makes a package's names and modules visible to pdoc, and so on downwards.

    A package that says what it offers keeps that first; its modules follow.
    """
    package = importlib.import_module(name)
    offered = list(getattr(package, "__all__", ()))
    for each in offered:
        setattr(package, each, getattr(package, each))
    for module in pkgutil.iter_modules(package.__path__):
        full_name = f"{name}.{module.name}"
        if module.name.startswith("_"):
            continue
        if module.ispkg:
            show_everything(full_name)
        else:
            resolve_annotations(importlib.import_module(full_name))
        if offered and module.name not in offered:
            package.__all__.append(module.name)


def resolve_annotations(module):
    """Says what annotations mean where pdoc would look for their names elsewhere."""
    for value in vars(module).values():
        is_own = getattr(value, "__module__", None) == module.__name__
        if is_own and inspect.isclass(value) and hasattr(value, "_field_defaults"):
            # Python writes the constructors of named tuples in no module.
            value.__new__.__annotations__ = typing.get_type_hints(value)
        elif is_own and inspect.isfunction(value) and "__signature__" in vars(value):
            # Another function's, with names of that one's module.
            del value.__signature__


def use_public_names():
    """Has pdoc call classes of TensorFlow and TFF as users do: `tff.Computation`.

    Where a class is defined is nothing that a reader of a signature wants to know.
    """
    import tensorflow as tf
    import tensorflow_federated as tff

    names = {
        tf.Tensor: ("tf", "Tensor"),
        tf.Variable: ("tf", "Variable"),
        tf.DType: ("tf", "DType"),
        tf.data.Dataset: ("tf.data", "Dataset"),
        tf.keras.layers.Layer: ("tf.keras.layers", "Layer"),
    }
    modules = {tff: "tff"}
    waiting = [tff]
    while waiting:
        module = waiting.pop(0)
        for key, value in vars(module).items():
            if key.startswith("_"):
                continue
            if inspect.isclass(value) and value.__module__.startswith(tff.__name__):
                names.setdefault(value, (modules[module], key))
            elif (
                inspect.ismodule(value)
                and value.__name__.startswith(tff.__name__)
                and value not in modules
            ):
                modules[value] = f"{modules[module]}.{key}"
                waiting.append(value)
    for each, (module_name, name) in names.items():
        each.__module__, each.__qualname__ = module_name, name


def write(packages, output_dir):
    """Writes the pages of packages; returns what pdoc complained of."""
    import pdoc
    import pdoc.render

    pdoc.render.configure(
        docformat="google",
        show_source=False,
        template_directory=ROOT / "docs" / "templates",
    )
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        pdoc.pdoc(*packages, output_directory=output_dir)
    folder = pathlib.Path(pdoc.__file__).parent
    return [
        str(each.message)
        for each in complaints
        if folder in pathlib.Path(each.filename).parents
    ]


def is_free(output_dir):
    """Whether there is nothing but an older reference, if anything."""
    try:
        if not any(output_dir.iterdir()):
            return True
        return _TITLE in (output_dir / _FIRST_PAGE).read_text("utf-8")
    except FileNotFoundError:
        return not output_dir.exists()
    except (OSError, UnicodeDecodeError):
        return False


def replace(output_dir, pages):
    """Puts the new pages in the place of the old ones."""
    if output_dir.exists():
        shutil.rmtree(output_dir)
    shutil.copytree(pages, output_dir)


def with_table_of_methods(text):
    """The README's text with the table of methods as it should be."""
    rows = overview.rows()
    lines = [rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows)]
    table = [f"| {' | '.join(cells)} |" for cells in lines]
    before, _, rest = text.partition(_TABLE_BEGINS)
    _, _, after = rest.partition(_TABLE_ENDS)
    return "\n".join([before + _TABLE_BEGINS, *table, _TABLE_ENDS + after])


@command_line.command(_HELP)
def main(argv, stop):
    """Writes the reference where the flags say.

    Classes of TensorFlow and TFF have other names in this process afterwards.
    """
    stop.say(lambda: "nothing was written")
    given = flags.FlagValues()
    flags.DEFINE_string("output_dir", str(ROOT / "docs" / "api"), "Directory.", given)
    flags.DEFINE_bool("readme", False, "Only the README's table.", given)
    command_line.parse(argv, given, command=_COMMAND)
    if given.readme:
        text = with_table_of_methods(README.read_text("utf-8"))
        files.write_text(README, text)
        return
    output_dir = pathlib.Path(given.output_dir)
    if not is_free(output_dir):
        fail(f"--output_dir={output_dir} has something else in it; give another one.")
    quiet.silence()
    for name in _PACKAGES:
        show_everything(name)
    use_public_names()
    with tempfile.TemporaryDirectory() as pages:
        complaints = write(_PACKAGES, pathlib.Path(pages))
        try:
            replace(output_dir, pages)
        except OSError as error:
            fail(f"--output_dir={output_dir}: {error.strerror}", exit_code=1)
    for complaint in complaints:
        print(f"{_COMMAND}: {' '.join(complaint.split())}", file=sys.stderr)
    if complaints:
        raise command_line.Ended(1)
    print(f"{output_dir / _FIRST_PAGE}")


if __name__ == "__main__":
    command_line.execute(main, STOP)
