"""Local-regularisation methods for federated learning, as processes of TFF.

    import tff_reg

    result = tff_reg.run("fedalign", total_rounds=5)
    result.plot()

`tff_reg.compare(["fedavg", "fedalign"], seeds=2)` compares methods under one protocol.
Sub-packages and modules: `analysis`, `data`, `experiment`, `methods`, `models`,
`runtime`, `tasks`, `testing`, `training`.

Importing this package loads neither TensorFlow nor TensorFlow Federated: they are
loaded at first use (see `tff_reg.lazy`), without their start-up messages (see
`tff_reg.quiet`).
"""

from typing import TYPE_CHECKING

from tff_reg import kernels, lazy, quiet, seam

__version__ = "0.2.0"
# The public address, https://github.com/OWNER/NAME; empty while there is none. Only if
# it is set, the site, notebooks, pyproject.toml and CITATION.cff name it; tests check.
REPOSITORY = ""

# Must run before anything imports TensorFlow or TFF.
kernels.choose()
quiet.silence()
seam.install()

if TYPE_CHECKING:
    from tff_reg import (
        analysis as analysis,
        data as data,
        experiment as experiment,
        methods as methods,
        models as models,
        runtime as runtime,
        tasks as tasks,
        testing as testing,
        training as training,
    )
    from tff_reg.public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazy.package(__name__)
