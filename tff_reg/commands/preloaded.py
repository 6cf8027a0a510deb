"""What a run imports, for the process whose forks are runs; starts no TensorFlow."""

import contextlib
import importlib
import warnings

from tff_reg.experiment.config import identity
from tff_reg.lazy import mpl_agg, mpl_figure, tff

# What fails here fails again in a run, which reports it.
with contextlib.suppress(BaseException):
    identity.code({})  # Its digest is that of what is imported now, also in forks.
    for _name in (
        *("commands.run", "commands.analyze", "data.public", "models.public"),
        *("runtime.context", "tasks.networks", "training.public"),
    ):
        importlib.import_module(f"tff_reg.{_name}")
    _ = tff.__version__, mpl_agg.FigureCanvasAgg, mpl_figure.Figure
    importlib.import_module("tensorboard.summary.v2")  # For `tf.summary`.
# Python warns of forks beside threads: these are idle, and no fork waits for them.
warnings.filterwarnings("ignore", "This process .* is multi-threaded")
