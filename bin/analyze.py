"""Looks into methods and runs: `bin/analyze --help` says at what and how.

The thin end of `tff_reg.analysis`.
"""

import dataclasses
import pathlib
import sys

_ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT))

# pylint: disable=wrong-import-position
from absl import app
from absl import flags

from tff_reg import quiet
from tff_reg.analysis import cost as cost_lib
from tff_reg.experiment import command_line
from tff_reg.experiment import files
from tff_reg.experiment import tables
from tff_reg.models import names
from tff_reg.processes import catalog

_COMMAND = "bin/analyze"
_FLAGS = flags.FLAGS
_PROCESSES = flags.DEFINE_list("processes", None, "Methods, separated by commas.")
_MODEL = flags.DEFINE_enum("model", "resnet56", names.MODEL_NAMES, "Network.")
_NORM = flags.DEFINE_enum("norm", "batch", names.NORM_NAMES, "Its norm.")
_CLASSES = flags.DEFINE_integer("num_classes", 10, "Classes.", lower_bound=1)
_IMAGE = flags.DEFINE_list("image_shape", "32,32,3", "Height, width, channels.")
_CSV = flags.DEFINE_string("csv", None, "File for the table.")
for _field in catalog.strength_fields():
    command_line.DEFINERS[_field.type](_field.flag, None, _field.help)
_HELP = """\
bin/analyze cost --processes=NAME[+NAME...],... [--csv=FILE]
  What a training step of each method costs a client, counted in the graph that runs:
  10^6 multiply-adds of an example, forward and backward, 10^6 stored weights, and
  10^6 bytes that go down and up in a round.

  --processes=NAME,...  methods, or sums such as feddyn+man
  --model=NAME          the network [resnet56]
  --norm=group|batch    its norm [batch]
  --num_classes=N       [10]
  --image_shape=H,W,C   [32,32,3]
  --csv=FILE            the table at full precision
  Strengths that change the cost, such as --gradaug_subnetworks, go to the methods that
  have them."""


def fail(message, exit_code=2):
    command_line.fail(message, exit_code=exit_code, command=_COMMAND)


def _write_csv(rows):
    if _CSV.value:
        files.write_text(pathlib.Path(_CSV.value), tables.to_csv(rows))


def cost():
    """Prints what methods cost."""
    if not _PROCESSES.value:
        fail("--processes is missing; --help says what it is.")
    try:
        image_shape = [int(size) for size in _IMAGE.value]
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise ValueError
    except ValueError:
        text = ",".join(_IMAGE.value)
        fail(f"--image_shape={text}: give height, width and channels, as in 32,32,3.")
    given = {
        field.flag: _FLAGS[field.flag].value
        for field in catalog.strength_fields()
        if _FLAGS[field.flag].value is not None
    }
    try:
        for process in _PROCESSES.value:
            catalog.parse(process)
        for flag in given:
            if not any(flag in _strengths(process) for process in _PROCESSES.value):
                fail(
                    f"--{flag}: its method is not part of"
                    f" --processes={','.join(_PROCESSES.value)}."
                )
        found = []
        for process in _PROCESSES.value:
            own = _strengths(process)
            found.append(
                cost_lib.measure(
                    process,
                    model=_MODEL.value,
                    norm=_NORM.value,
                    num_classes=_CLASSES.value,
                    image_shape=image_shape,
                    strengths={flag: v for flag, v in given.items() if flag in own},
                )
            )
    except ValueError as error:
        fail(error)
    rows = [dataclasses.asdict(each) for each in found]
    _write_csv(rows)
    print(*tables.to_markdown(cost_lib.columns(found)), sep="\n")


def _strengths(process):
    return {field.flag for field in catalog.strength_fields(process)}


_SUBJECTS = {"cost": cost}


def _parse(arguments):
    """Parses the flags; says in a line what is wrong with them."""
    if {"--help", "-h", "--helpshort", "--helpfull"} & set(arguments):
        print(_HELP)
        sys.exit()
    try:
        return _FLAGS(arguments)
    except flags.Error as error:
        fail(error)


def main(argv):
    """Analyses the subject that is named."""
    if len(argv) != 2 or argv[1] not in _SUBJECTS:
        found = " ".join(argv[1:]) or "nothing"
        fail(
            f"say what to look at, one of: {', '.join(_SUBJECTS)} (found {found});"
            " --help says what they are."
        )
    if _CSV.value and not pathlib.Path(_CSV.value).absolute().parent.is_dir():
        fail(f"--csv={_CSV.value}: there is no such directory.")
    quiet.silence()
    _SUBJECTS[argv[1]]()


if __name__ == "__main__":
    app.run(main, flags_parser=_parse)
