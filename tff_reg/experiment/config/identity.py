"""The rule by which two runs are the same experiment, for the whole library."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from tff_reg.data import digests
from tff_reg.experiment.config import provenance
from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.settings import settings_of
from tff_reg.training import process_settings

_FREE = frozenset(
    each.name for each in settings_of(RunConfig) if process_settings.FREE in each.tags
)


def identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings on which a run's numbers depend.

    Settings of files, devices and reports are left out, and the provenance. Two runs
    with the same identity have the same numbers.

    Args:
      values: Settings by name, as in `config.json`.
    """
    left_out = _FREE | provenance.NAMES
    return {name: value for name, value in values.items() if name not in left_out}


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], but: Container[str] = ()
) -> list[str]:
    """Returns the settings in which two runs are different experiments.

    Args:
      first: As for `identity`.
      second: As for `identity`.
      but: Names that may differ: `seed`, or `total_rounds` of a run that is continued.

    Returns:
      Names, in the order of `second`. A setting that only one run has is not compared:
      the other run is of another version.
    """
    known = identity(first)
    return [
        name
        for name, value in identity(second).items()
        if name not in but and known.get(name, value) != value
    ]


def decided_by_seed(values: Mapping[str, Any]) -> set[str]:
    """Returns the settings that may differ if runs differ only in their seed.

    They are the seed, and the digests of the data and weights that depend on it.
    """
    if values.get("validation_share") is not None:
        return {"seed", *digests.NAMES}
    return {"seed", digests.SPLIT, digests.INITIAL_WEIGHTS}
