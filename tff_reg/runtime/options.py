"""The settings and options of the runtimes.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Optional

from tff_reg import settings
from tff_reg.runtime import devices as devices_lib
from tff_reg.settings import only_with, setting

KINDS = ("in_process", "ray")
# Heading of the help.
WHERE = "Where clients run"
_of_where = functools.partial(setting, group=WHERE)
_of_machine = functools.partial(_of_where, tags=(settings.NO_EFFECT,))
_RAY = (only_with("runtime", "ray"),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
    """The settings of a run's runtime; see `tff_reg.runtime.running`."""

    runtime: str = _of_where("in_process", help="where the clients run", choices=KINDS)
    devices: Optional[tuple[str, ...]] = _of_machine(
        None,
        help="devices such as GPU:0,GPU:1; all GPUs, or the CPU, by default",
        rules=(only_with("runtime", "in_process"),),
    )
    clients_in_parallel: Optional[int] = _of_machine(
        None,
        help="clients at a time on each device; ray: in total",
        minimum=1,
    )
    require_gpu: bool = _of_machine(
        False,
        help="fail if there is no GPU",
    )
    deterministic: bool = _of_machine(
        True,
        help="on a GPU: kernels that give the same bytes in each run, which takes"
        " longer; on a CPU it is always so",
    )
    ray_address: Optional[str] = _of_machine(
        None,
        help="ray: host:port of the head node, or auto on a node of the cluster; by"
        " default Ray is started on this machine for the run",
        rules=_RAY,
    )
    gpus_per_client: float = _of_machine(
        0.25,
        help="ray: the fraction of a GPU that a client takes, if there are GPUs",
        minimum=0,
        maximum=1,
        rules=_RAY,
    )
    cpus_per_client: float = _of_machine(
        1.0,
        help="ray: the CPUs that a client takes",
        above=0,
        rules=_RAY,
    )
    data_on_nodes: bool = _of_machine(
        False,
        help="ray: whether each node loads the data itself instead of receiving it",
        rules=_RAY,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(RuntimeSettings):
    """Options of the runtimes; beside the settings of runs, two for Python.

    `clients_in_parallel` is by default one on a GPU; on a CPU the number of cores, at
    most 8; in a Ray cluster the number of actors that fit. `data_on_nodes` needs
    `Origin.load`. Without a `ray_address` the connection that the process has already
    is used, if any.

    Attributes:
      default_num_clients: Number of clients of a computation whose argument has no
        client's value, such as a broadcast alone.
      intra_op_threads: In process only. TensorFlow's threads for one operation, which
        can only be set before TensorFlow starts. None: the number set before, else the
        number of cores divided by the default of `clients_in_parallel`; results are
        then identical to the bit for every `clients_in_parallel`. To give one client at
        a time all cores, pass `clients_in_parallel=1` and the number of cores.
      tf32: Whether a GPU multiplies in TF32 (a mantissa of 10 bits); a run's
        `mixed_precision`.
    """

    default_num_clients: int = 0
    tf32: bool = False
    intra_op_threads: Optional[int] = setting(
        None,
        help="TensorFlow's threads for one operation",
        minimum=1,
        rules=(only_with("runtime", "in_process"),),
    )

    @classmethod
    def checked(cls, kind: str, given: Mapping[str, Any]) -> Options:
        """Returns the options of a kind of runtime, if they are given correctly.

        Raises:
          SettingError: If there is no such runtime, or an option is out of range or of
            another runtime.
          ValueError: If there is no such device.
        """
        known = settings.settings_of(cls)
        given = {**given, "runtime": kind}
        if "devices" in given:
            given["devices"] = devices_lib.parse(given["devices"])
        for each in known:
            if each.name in given:
                given[each.name] = each.adopt(given[each.name])
        found = cls(**given)
        settings.check(found)
        settings.settle(known, {**vars(found)}, given)
        return found
