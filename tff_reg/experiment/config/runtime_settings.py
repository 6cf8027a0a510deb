"""The settings of the runtime: where the clients of a run are trained.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Optional

from tff_reg import runtime as runtime_lib
from tff_reg.settings import setting
from tff_reg.training import process_settings

# Heading of the help.
WHERE = "Where clients run"
_of_where = functools.partial(setting, group=WHERE)
# Settings on which a run's numbers do not depend.
_of_machine = functools.partial(
    _of_where, tags=(process_settings.NO_EFFECT_ON_RESULTS,)
)
_RAY = {"runtime": ("ray",)}
_DEFAULTS = runtime_lib.Options


@dataclasses.dataclass(frozen=True)
class RuntimeSettings:
    """The settings of the runtime; see `tff_reg.runtime.running`."""

    runtime: str = _of_where(
        "in_process", help="where the clients run", choices=runtime_lib.KINDS
    )
    devices: Optional[tuple[str, ...]] = _of_machine(
        None,
        help="devices such as GPU:0,GPU:1; all GPUs, or the CPU, by default",
        only_with={"runtime": ("in_process",)},
    )
    clients_in_parallel: Optional[int] = _of_machine(
        None,
        help="clients at a time on each device; ray: in total",
        minimum=1,
    )
    require_gpu: bool = _of_machine(
        False,
        help="fail if there is no GPU",
        only_with={"runtime": ("in_process", "ray")},
    )
    ray_address: Optional[str] = _of_machine(
        None,
        help="ray: host:port of the head node, or auto on a node of the cluster; by"
        " default Ray is started on this machine for the run",
        only_with=_RAY,
    )
    gpus_per_client: float = _of_machine(
        _DEFAULTS.gpus_per_client,
        help="ray: the fraction of a GPU that a client takes, if there are GPUs",
        minimum=0,
        maximum=1,
        only_with=_RAY,
    )
    cpus_per_client: float = _of_machine(
        _DEFAULTS.cpus_per_client,
        help="ray: the CPUs that a client takes",
        above=0,
        only_with=_RAY,
    )
    data_on_nodes: bool = _of_machine(
        False,
        help="ray: whether each node loads the data itself instead of receiving it",
        only_with=_RAY,
    )
