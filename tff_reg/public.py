"""The names that `tff_reg` offers."""

from tff_reg.experiment.start import run as run
from tff_reg.experiment.start_compare import compare as compare
