"""A cache on the disk of traced processes that earlier runs have built.

Tracing a deep network often takes longer than a round. Runs that differ only in their
seed, files or devices share a traced process, with initial weights of their own. The
files are in `folder()`, which may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pathlib
import pickle
import platform
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Optional

from tff_reg import files, kernels, lazy, training
from tff_reg.experiment.config import identity as identity_lib, provenance
from tff_reg.experiment.rounds import recorded
from tff_reg.experiment.rounds.checked import CheckedRun
from tff_reg.lazy import logging, tf, tff
from tff_reg.methods import method as method_lib

if TYPE_CHECKING:
    from tff_reg.training.composition import Process

internals = lazy.module("tff_reg.seam.internals")

# The environment variable for another folder.
VARIABLE = "TFF_REG_CACHE_DIR"
# The processes used last are kept; each has less than a megabyte.
_KEPT, _SUFFIX = 100, ".tff_reg-process"
_PARTS = (
    "initialize",
    "next",
    "get_model_weights",
    "set_model_weights",
    "get_hparams",
    "set_hparams",
)
_STATEFUL_PARTS = ("initial_client_state", "get_all_clients_weights")


def folder() -> pathlib.Path:
    """Returns the folder of the cache: `VARIABLE`, or the user's cache folder."""
    if own := os.environ.get(VARIABLE):
        return pathlib.Path(own)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(caches, "tff_reg")


def process(checked: CheckedRun, task: Any, build: Callable[[], Process]) -> Process:
    """Returns the process of a run on one of tff_reg's tasks.

    Args:
      checked: The run.
      task: Its task, of `tff_reg.tasks`.
      build: Builds the process.

    Returns:
      The result of `build`, or a cached process that computes the same.
    """
    config = checked.config
    if config.debug_eager:
        return build()  # It calls Python functions of this process.
    if provenance.plugins_of(checked.values):
        return build()  # Changes of third-party files would not be noticed.
    path = folder() / f"{_key(checked, task)}{_SUFFIX}"
    found = _read(path)
    if found is not None:
        model_fn = training.adapt_model_fn(task.model_fn, config.methods)
        return _beginning_with(model_fn, found)
    built = build()
    _write(path, built)
    return built


def _key(checked: CheckedRun, task: Any) -> str:
    """Returns the cache key: a digest of everything that changes the traced process."""
    settings = identity_lib.identity(checked.values)
    if checked.config.learning_rate_schedule != "cosine":
        settings.pop("total_rounds")
    # Frozen classifiers, drawn from the seed, are constants of the graph.
    methods = checked.config.methods
    if not any(method_lib.does(each, "adapt_network") for each in methods):
        settings.pop("seed")
    data = task.client_data
    described = {
        "settings": settings,
        "versions": [platform.python_version(), tf.__version__, tff.__version__],
        "devices": [kernels.describe(), len(tf.config.list_physical_devices("GPU"))],
        "examples": repr(data.element_type_structure),
        "classes": task.num_classes,
        "mean_examples": recorded.mean_examples(task),
        "augmentation": _augmentation(task),
    }
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for path in provenance.source_files():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _augmentation(task: Any) -> str:
    """Returns the augmentation pipeline of a task, as part of the cache key."""
    if task.augment_fn is None:
        return ""
    images = task.client_data.element_type_structure["x"]
    with tf.Graph().as_default() as graph:
        examples = tf.compat.v1.placeholder(images.dtype, [None, *images.shape])
        task.augment_fn(examples, tf.compat.v1.placeholder(tf.int64, [2]))
    serialized = graph.as_graph_def().SerializeToString(deterministic=True)
    return hashlib.sha256(serialized).hexdigest()


def _read(path: pathlib.Path) -> Optional[Process]:
    try:
        stored = zlib.decompress(path.read_bytes())
        os.utime(path)
        parts = pickle.loads(stored)
    except OSError:
        return None
    except Exception as error:  # Whatever it is, it can be built again.
        logging.warning("%s cannot be read (%s) and is made anew.", path, error)
        return None
    return _made(parts)


def _write(path: pathlib.Path, built: Process) -> None:
    stored = io.BytesIO()
    try:
        _Pickler(stored).dump(_parts(built))
    except Exception as error:  # Objects that cannot be pickled raise many kinds.
        logging.info("The process is not kept: %s", error)
        return
    # A full or read-only disk does not matter here.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(path, zlib.compress(stored.getvalue(), 1))
        # The folder may be the user's, with other files in it.
        ours = list(path.parent.glob(f"*{_SUFFIX}"))
        ours.sort(key=lambda each: each.stat().st_mtime)
        for old in ours[:-_KEPT]:
            files.delete(old)


def _parts(built: Process) -> dict[str, Any]:
    """Returns the computations of a process by name."""
    is_stateful = isinstance(built, training.StatefulLearningProcess)
    names = _PARTS + _STATEFUL_PARTS if is_stateful else _PARTS
    return {name: getattr(built, name) for name in names}


def _made(parts: Mapping[str, Any]) -> Process:
    """Makes a process from its computations; the inverse of `_parts`."""
    first = [parts[name] for name in _PARTS[:2]]
    named = {name: each for name, each in parts.items() if name not in _PARTS[:2]}
    if _STATEFUL_PARTS[0] in parts:
        return training.StatefulLearningProcess(*first, **named)
    for name in ("get_hparams", "set_hparams"):
        named[f"{name}_fn"] = named.pop(name)
    return tff.learning.templates.LearningProcess(*first, **named)


def _beginning_with(model_fn: Callable[[], Any], process: Process) -> Process:
    """Returns a process that begins with the weights of the model of `model_fn`."""

    @tff.tensorflow.computation
    def initial_weights():
        return tff.learning.models.ModelWeights.from_model(model_fn())

    @tff.federated_computation
    def initialize():
        state = process.initialize()
        weights = tff.federated_eval(initial_weights, tff.SERVER)
        return tff.federated_map(process.set_model_weights, (state, weights))

    made = _made({**_parts(process), "initialize": initialize})
    made.model_fn = model_fn
    return made


class _Pickler(pickle.Pickler):
    """Pickler of TFF's computations, and of TFF's types with their containers."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, tff.framework.ConcreteComputation):
            proto = tff.framework.serialize_computation(value)
            serialized = proto.SerializeToString()
            return internals.computation, (serialized, value.type_signature)
        if isinstance(value, tff.TensorType):
            return tff.TensorType, (value.dtype, value.shape)
        if isinstance(value, tff.types.StructWithPythonType):
            elements = list(tff.structure.iter_elements(value))
            return tff.types.StructWithPythonType, (elements, value.python_container)
        if isinstance(value, tff.StructType):
            return tff.StructType, (list(tff.structure.iter_elements(value)),)
        if isinstance(value, tff.SequenceType):
            return tff.SequenceType, (value.element,)
        if isinstance(value, tff.FunctionType):
            return tff.FunctionType, (value.parameter, value.result)
        if isinstance(value, tff.FederatedType):
            at_server = value.placement is tff.SERVER
            return _federated, (value.member, at_server, value.all_equal)
        if isinstance(value, type) and (owner := _owner(value)):
            return getattr, (owner, value.__name__)
        return NotImplemented


def _owner(kind: type) -> Optional[type]:
    """Returns the class that has another class as an attribute; None if none has.

    TensorFlow Privacy's states, named tuples, are such attributes.
    """
    name, there = kind.__name__, vars(sys.modules[kind.__module__])
    if there.get(name) is kind:
        return None
    owners = (each for each in there.values() if isinstance(each, type))
    return next((each for each in owners if vars(each).get(name) is kind), None)


def _federated(member: Any, at_server: bool, all_equal: bool) -> Any:
    return tff.FederatedType(
        member, tff.SERVER if at_server else tff.CLIENTS, all_equal
    )
