"""Which J files are of the later methods, whose settings are others."""

from tests.golden import replay


def _is_later(name):
    config = replay.Case(name, "float64").config
    return not any("with_man" in own for own in config.values())


NAMES = [name for name in replay.names("J_*") if _is_later(name)]
