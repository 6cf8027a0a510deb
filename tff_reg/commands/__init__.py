"""The commands: `bin/NAME` is `tff-reg NAME` is `python -m tff_reg.commands NAME`.

Each is a module with `main(argv) -> int`, which can be called from anywhere.
"""

import pathlib
import sys

# What starts one from any folder: not by `-m`, which looks in that folder first.
START = (sys.executable, str(pathlib.Path(__file__).with_name("__main__.py")))

NAMES = (
    "run",
    "compare",
    "reproduce",
    "analyze",
    "recipes",
    "export",
    "test",
)
