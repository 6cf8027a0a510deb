"""The names that `tff_reg` offers."""

from tff_reg.experiment.start import compare as compare, run as run
