"""The commands: `bin/NAME`, `tff-reg NAME` or `python -m tff_reg.commands NAME`.

Each is a module with `main(argv) -> int`, which can be called from anywhere.
"""

import pathlib
import sys

# Starts a command from any folder; `-m` would look for modules in that folder first.
START = (sys.executable, str(pathlib.Path(__file__).with_name("__main__.py")))

NAMES = (
    "run",
    "compare",
    "study",
    "reproduce",
    "analyze",
    "recipes",
    "export",
)
