"""Devices of clients, clients per device, and TensorFlow's threads.

On a CPU the product of intra-op threads and clients in parallel should be the number
of cores. The number of intra-op threads influences the last bits of some operations
(the gradient of a convolution's filter is summed in as many parts as there are
threads). So the number depends on the machine and not on `clients_in_parallel`, and
results are identical to the bit for every `clients_in_parallel`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Optional, Union

from absl import logging

from tff_reg.lazy import tf

# With more cores, more threads per client are better than more clients at a time: a
# round seldom has more clients, and each client needs memory.
_MAX_CLIENTS_IN_PARALLEL = 8


class NoGpuError(RuntimeError):
    """Raised if a GPU is required and TensorFlow sees none."""


def cores() -> int:
    """Returns the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def parse(devices: Union[str, Sequence[str], None]) -> Optional[list[str]]:
    """Parses "GPU:0,GPU:1", or a list of names; None stays None."""
    if devices is None:
        return None
    names = devices.split(",") if isinstance(devices, str) else list(devices)
    parsed = []
    for name in names:
        text = str(getattr(name, "name", name)).strip()
        short = text.upper().replace("/DEVICE:", "").lstrip("/")
        kind, _, number = short.partition(":")
        number = number or "0"
        if kind not in ("CPU", "GPU") or not number.isdecimal():
            raise ValueError(
                f"A device must be named like CPU:0 or GPU:1, found {text!r}."
            )
        parsed.append(f"{kind}:{int(number)}")
    if not parsed:
        raise ValueError("The list of devices is empty: name at least one, or None.")
    if len(set(parsed)) != len(parsed):
        raise ValueError(f"A device is named twice in {', '.join(parsed)}.")
    return parsed


def are_gpus(names: Optional[list[str]]) -> bool:
    """Returns whether `names` has a GPU, or for None whether TensorFlow sees one."""
    if names is None:
        return bool(tf.config.list_physical_devices("GPU"))
    return any(name.startswith("GPU:") for name in names)


def resolve(names: Optional[list[str]], require_gpu: bool) -> list[str]:
    """Returns the devices to use, and prepares TensorFlow for them.

    It sets memory growth on all GPUs, so that TensorFlow does not take their whole
    memory at once. It does not start TensorFlow's devices if `names` is None.
    """
    gpus = tf.config.list_physical_devices("GPU")
    _grow_memory(gpus)
    if require_gpu and not gpus:
        raise NoGpuError(
            "A GPU is required and TensorFlow sees none: check `nvidia-smi` and that "
            "TensorFlow's CUDA libraries are installed (TFF_REG_GPU=1), or do not "
            "require a GPU."
        )
    if names is None:
        return [f"GPU:{index}" for index in range(len(gpus))] or ["CPU:0"]
    if require_gpu and not all(name.startswith("GPU:") for name in names):
        raise ValueError(
            "A GPU is required, but not all of the devices are GPUs: "
            f"{', '.join(names)}."
        )
    if names == ["CPU:0"]:
        return names
    known = [
        device.name.replace("/device:", "")
        for device in tf.config.list_logical_devices()
    ]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"TensorFlow has no device {', '.join(unknown)}; it has {', '.join(known)}."
        )
    return names


def set_arithmetic(deterministic: bool, tf32: bool) -> None:
    """Chooses how this process's GPUs compute; on a CPU it changes nothing.

    What is deterministic once in a process stays so.
    """
    # TensorFlow's default is TF32, with a relative error of 1e-3.
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    if deterministic and tf.config.list_physical_devices("GPU"):
        tf.config.experimental.enable_op_determinism()


def memory(name: str) -> dict[str, int]:
    """Returns this process's peak GPU memory in MB as `{name: MB}`; {} without GPU."""
    if not tf.config.list_physical_devices("GPU"):
        return {}
    names = [
        each.name.partition("device:")[2]
        for each in tf.config.list_logical_devices("GPU")
    ]
    infos = map(tf.config.experimental.get_memory_info, names)
    return {name: round(max(each["peak"] for each in infos) / 1e6)}


def default_clients_in_parallel(names: list[str]) -> int:
    """Returns the default number of clients at a time on each of the devices."""
    if are_gpus(names):
        return 1
    threads = intra_op_threads() or cores()
    return max(1, cores() // threads // len(names))


def threads_for_an_operation() -> int:
    """Returns the threads with which the default number of clients uses all cores."""
    return cores() // min(cores(), _MAX_CLIENTS_IN_PARALLEL)


def intra_op_threads() -> int:
    """Returns TensorFlow's number; 0 if it is not set (then it uses all cores)."""
    found = tf.config.threading.get_intra_op_parallelism_threads()
    return found or int(os.environ.get("TF_NUM_INTRAOP_THREADS") or 0)


def set_threads(wanted: Optional[int]) -> None:
    """Sets TensorFlow's intra-op threads; logs it if TensorFlow has started already."""
    current = intra_op_threads()
    if wanted is None:
        if current:
            return
        wanted = threads_for_an_operation()
    if wanted == current:
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(wanted)
    except RuntimeError:  # TensorFlow has started
        # For example because the user has made a Keras model before.
        logging.log_first_n(
            logging.INFO,
            "TensorFlow has started with %s intra-op threads, but %d are better for "
            "clients in parallel: call tff_reg.runtime.use before TensorFlow is used.",
            1,
            current or "all cores as",
            wanted,
        )


def _grow_memory(gpus) -> None:
    for gpu in gpus:
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except (RuntimeError, ValueError):  # TensorFlow has started already.
            logging.log_first_n(
                logging.WARNING,
                "The GPUs' memory growth can no longer be set: call "
                "tff_reg.runtime.use before TensorFlow is used.",
                1,
            )


def description(names: Sequence[str], clients_in_parallel: int) -> str:
    """Returns for example "clients run in process on 1 CPU device (2 at a time)"."""
    kinds = {name.split(":")[0] for name in names}
    kind = " and ".join(sorted(kinds, reverse=True))
    plural = "" if len(names) == 1 else "s"
    each = "" if len(names) == 1 else " on each"
    text = (
        f"clients run in process on {len(names)} {kind} device{plural} "
        f"({clients_in_parallel} at a time{each})"
    )
    return text + (f", {_cards()}" if are_gpus([*names]) else "")


def _cards() -> str:
    """Returns the names of this machine's GPUs, and how they multiply."""
    gpus = tf.config.list_physical_devices("GPU")
    details = [*map(tf.config.experimental.get_device_details, gpus)]
    cards = sorted({each.get("device_name", "unknown card") for each in details})
    is_tf32 = tf.config.experimental.tensor_float_32_execution_enabled() and any(
        each.get("compute_capability", (0,)) >= (8, 0) for each in details
    )
    return f"{' and '.join(cards)}, {'TF32' if is_tf32 else 'float32'}"
