"""The commands: `bin/NAME` is `tff-reg NAME` is `python -m tff_reg.commands NAME`.

Each is a module with `main(argv) -> int`, which can be called from anywhere.
"""

NAMES = ("run", "compare", "analyze", "recipes", "export", "worker")
