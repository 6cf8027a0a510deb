"""Every table of the four papers, and of the newest methods, with experiments.

MAN's Table 3 is left out, because it counts operations by formulae.
"""

from __future__ import annotations

from tff_reg.tasks.recipes import (
    fedalign_tables,
    fedmlb_tables,
    man_tables,
    newest_tables,
    simulator_tables,
    univarfl_tables,
)

TABLES = (
    *fedalign_tables.TABLES,
    *fedmlb_tables.TABLES,
    *man_tables.TABLES,
    *univarfl_tables.TABLES,
    *simulator_tables.TABLES,
    *newest_tables.TABLES,
)
