"""A TensorFlow computation of TFF as a function of this process's TensorFlow.

Internal values are eager tensors, `tf.data.Dataset`s for sequences, and Python lists
for structures. Only the types have the names of a structure's elements.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Optional

from tff_reg import seam
from tff_reg.lazy import tf, tff
from tff_reg.runtime import graph_rewrites, python_calls
from tff_reg.seam import internals, tensorflow_internals as tf_internals

# What TensorFlow says of a function that XLA cannot compile, and where.
_REFUSED, _AT = "tf2xla conversion failed", re.compile(r"at node (\S+) defined")
_AS_WITHOUT = (
    "XLA cannot compile the clients' steps ({}): they run as with compile_steps=false."
)
_TENSOR, _SEQUENCE, _STRUCT = "tensor", "sequence", "struct"


class TensorFlowFunction:
    """Calls a `tff.framework.CompiledComputation` with values of this package.

    The function is built at the first call, under `lock`, and made ready for a device
    by the first call on it. Every call has its own variables and tables, so calls may
    run at the same time.
    """

    def __init__(
        self,
        block: tff.framework.CompiledComputation,
        lock: threading.RLock,
        on_build: Callable[[], None],
    ):
        kind = block.proto.WhichOneof("computation")
        if kind != "tensorflow":
            raise NotImplementedError(
                "The in_process runtime runs TensorFlow computations; this one is "
                f"of kind {kind!r}."
            )
        self._proto = block.proto.tensorflow
        self._result_type = block.type_signature.result
        # Data sets live on the CPU, whatever the client's device.
        self._device_scope = contextlib.nullcontext
        if tff.types.contains(
            self._result_type, lambda t: isinstance(t, tff.SequenceType)
        ):
            self._device_scope = functools.partial(tf.device, "CPU:0")
        self._lock = lock
        self._on_build = on_build
        self._built = False
        self._compiles = True  # Until there is nothing to compile.
        self._function: Any = None
        # If it has a Python function: the part before it, its call, the part after it.
        self._around_python: Optional[tuple[Any, ...]] = None
        self._has_loops = False
        self._feeds: list[int] = []
        self._datasets: list[int] = []  # Places in the feeds.
        self._ready: set[str] = set()
        self._device_locks: dict[str, threading.Lock] = {}

    def __call__(self, argument: Any = None) -> Any:
        if not self._built:
            with self._lock:
                if not self._built:
                    self._build()
        leaves: list[Any] = []
        if self._proto.HasField("parameter"):
            _flatten(argument, leaves)
        fetched = []
        if self._function is not None:
            with self._device_scope():
                feeds = [leaves[i] for i in self._feeds]
                for place in self._datasets:
                    feeds[place] = tf.data.experimental.to_variant(feeds[place])
                if tf.executing_eagerly():
                    with _optimizing_once(self._has_loops):
                        fetched = self._compiled_if_possible(feeds)
                else:
                    fetched = self._function(*feeds)
        flat = iter(
            [
                leaves[position] if is_parameter else fetched[position]
                for is_parameter, position in self._sources
            ]
        )
        return _pack(self._form, flat)

    def _compiled_if_possible(self, feeds: list[Any]) -> Any:
        compiled = self._compiles
        try:
            return self._run(feeds)
        except tf.errors.OpError as error:
            # XLA's internal errors have no words in common.
            is_internal = isinstance(error, tf.errors.InternalError)
            if not compiled or not (is_internal or _REFUSED in str(error)):
                raise
            with self._lock:  # Other clients may have found it, too.
                if self._compiles:
                    where = _AT.search(str(error))
                    self._stop_compiling(where[1] if where else type(error).__name__)
                    self._ready = set()
                    self._build()
        return self._run(feeds)

    def _stop_compiling(self, reason: str) -> None:
        warnings.warn(_AS_WITHOUT.format(reason), stacklevel=2)
        self._compiles = False

    def _run(self, feeds: list[Any]) -> Any:
        if self._around_python is None:
            self._make_ready(tf_internals.eager_context.context().device_name, feeds)
            return tf_internals.call_flat(self._function, feeds)
        before, call, after = self._around_python
        return after(*feeds, *call(*before(*feeds)))

    def _make_ready(self, device: str, feeds: list[Any]) -> None:
        """Makes TensorFlow optimise and place the function for a device, once.

        TensorFlow does so in a function's first call. First calls at the same time
        would each do so, which for a deep network takes most of the first round.
        """
        if device in self._ready:
            return
        with self._device_locks.setdefault(device, threading.Lock()):
            if device not in self._ready:
                _instantiate(self._function, feeds)
                self._ready.add(device)

    def _build(self) -> None:
        proto = self._proto
        kinds, parameters = [], []
        for kind, name in _leaf_names(proto.parameter):
            kinds.append(kind)
            parameters.append(name)
        results = [name for _, name in _leaf_names(proto.result)]
        position = {name: index for index, name in enumerate(parameters)}
        fetches = [name for name in results if name not in position]
        fetch_position = {}
        for name in fetches:
            fetch_position.setdefault(name, len(fetch_position))
        # For every leaf of the result: whether it is a leaf of the argument; its index.
        self._sources = [
            (True, position[name])
            if name in position
            else (False, fetch_position[name])
            for name in results
        ]
        if fetch_position:
            self._import(list(fetch_position), parameters, position)
        feeds = enumerate(self._feeds)
        self._datasets = [place for place, i in feeds if kinds[i] == _SEQUENCE]
        self._form = _form(self._result_type, proto.result)
        self._on_build()
        self._built = True

    def _import(self, fetches, parameters, position) -> None:
        graph_def = tf.compat.v1.GraphDef()
        self._proto.graph_def.Unpack(graph_def)
        if self._compiles:
            self._compiles = graph_rewrites.has_compiled(graph_def)
            if lost := graph_rewrites.lost_check(graph_def):
                self._stop_compiling(f"it would leave the check {lost} out")
        signature = _signature(graph_def, self._proto, parameters)
        token = self._proto.session_token_tensor_name
        used = graph_rewrites.prepare(
            graph_def,
            compiles=self._compiles,
            results=fetches,
            parameters=parameters + ([token] if token else []),
            initialize_op=self._proto.initialize_op or None,
        )
        names = [name for name in parameters if name in used]
        self._feeds = [position[name] for name in names]
        # Loops and conditions have their bodies in functions.
        self._has_loops = bool(graph_def.library.function)

        def body(*tensors):
            input_map = dict(zip(names, tensors))
            if token in used:
                input_map[token] = tf.constant("")
            return tf.graph_util.import_graph_def(
                graph_def, input_map=input_map, return_elements=fetches, name=""
            )

        # A wrapped version 1 function: unlike `tf.function` it runs only what the
        # results need, as TFF's sessions do. The outer graph, if any, is left:
        # the function must not capture anything.
        with tf.init_scope(), tf.device(None):
            self._function = tf.compat.v1.wrap_function(
                body, [signature[name] for name in names]
            )
        self._around_python = _around_python(self._function)
        library = [f.signature.name for f in graph_def.library.function]
        weakref.finalize(self, _remove_from_tensorflow, library).atexit = False


def _around_python(function: Any) -> Optional[tuple[Any, ...]]:
    """Returns the part before a Python function, its call and the rest, or None."""
    for operation in function.graph.get_operations():
        call = python_calls.of(operation)
        if call is not None:
            before = function.prune(function.inputs, list(operation.inputs))
            after = function.prune(
                [*function.inputs, *operation.outputs], function.outputs
            )
            return before, call, after
    return None


@contextlib.contextmanager
def _optimizing_once(has_loops: bool) -> Iterator[None]:
    """Within the context, TensorFlow optimises functions only as far as it pays.

    It makes one iteration: the second iteration of the default and the passes left out
    take a fifth of a deep network's first round and make no step faster. Functions
    without loops, such as the server's sums, are not optimised: it would take longer.
    """
    here = tf_internals.eager_context.context()
    usual = here.function_call_options
    here.function_call_options = _options(
        usual.config_proto_serialized, usual.executor_type, here.num_gpus(), has_loops
    )
    try:
        yield
    finally:
        here.function_call_options = usual


@functools.lru_cache(maxsize=8)
def _options(
    usual: bytes, executor_type: Optional[str], num_gpus: int, has_loops: bool
) -> Any:
    config = tf.compat.v1.ConfigProto.FromString(usual)
    rewriter = config.graph_options.rewrite_options
    rewriter.disable_meta_optimizer = not has_loops
    rewriter.meta_optimizer_iterations = rewriter.ONE
    if not seam.FINDER.is_today:  # In TensorFlow 2.14 it makes NaN * 0 a 0.
        rewriter.constant_folding = rewriter.OFF
    rewriter.disable_tfg_optimizer = True
    if not num_gpus:
        rewriter.memory_optimization = rewriter.NO_MEM_OPT
        rewriter.layout_optimizer = rewriter.OFF
    return tf_internals.eager_context.FunctionCallOptions(executor_type, config)


def _instantiate(function: Any, feeds: list[Any]) -> None:
    """Makes a cancelled call, which does everything but run the function.

    TensorFlow optimises and places a function even if its call is already cancelled.
    """
    here, called = (
        tf_internals.eager_context.context(),
        tf_internals.inference_function(function),
    )
    options = here.function_call_options.as_attrs().items()
    cancelled = tf_internals.cancellation.CancellationManager()
    cancelled.start_cancel()
    # The real call will raise all other errors.
    with contextlib.suppress(tf.errors.OpError):
        tf_internals.execute.execute_with_cancellation(
            called.name.decode("utf-8"),
            num_outputs=len(called.function_type.flat_outputs),
            inputs=feeds,
            attrs=tuple(itertools.chain(*options)),
            ctx=here,
            cancellation_manager=cancelled,
        )


def _remove_from_tensorflow(names: list[str]) -> None:
    """Removes library functions from TensorFlow, which would keep them for ever.

    TensorFlow removes a wrapped function itself, but not the functions that it calls.
    """
    for name in names:
        if tf_internals.eager_context.context().has_function(name):
            tf_internals.eager_context.context().remove_function(name)


def _leaf_names(binding) -> list:
    """Returns (kind, tensor name) of each leaf of a binding, depth first."""
    kind = binding.WhichOneof("binding")
    if kind == _TENSOR:
        return [(_TENSOR, binding.tensor.tensor_name)]
    if kind == _SEQUENCE:
        return [(_SEQUENCE, binding.sequence.variant_tensor_name)]
    if kind == _STRUCT:
        return [leaf for e in binding.struct.element for leaf in _leaf_names(e)]
    return []


def _signature(graph_def, proto, parameters) -> dict:
    """Returns the `tf.TensorSpec` of each parameter, from its placeholder."""
    wanted = {name.split(":")[0]: name for name in parameters}
    specs = {}
    for node in graph_def.node:
        if node.name in wanted:
            specs[wanted[node.name]] = tf.TensorSpec(
                tf.TensorShape(node.attr["shape"].shape)
                if "shape" in node.attr
                else None,
                tf.dtypes.as_dtype(node.attr["dtype"].type),
            )
    return specs


def _flatten(value: Any, leaves: list[Any]) -> None:
    if isinstance(value, list):
        for element in value:
            _flatten(element, leaves)
    else:
        leaves.append(value)


def _form(type_spec: Any, binding: Any) -> Any:
    """Returns how results are nested.

    It has a list for a structure, None for a tensor, and for a data set a function that
    makes it from its variant.
    """
    kind = binding.WhichOneof("binding")
    if kind == _STRUCT:
        types = [each for _, each in tff.structure.iter_elements(type_spec)]
        return [_form(*each) for each in zip(types, binding.struct.element)]
    if kind != _SEQUENCE:
        return None
    structure = internals.element_structure(type_spec.element)
    return functools.partial(_as_dataset, structure)


def _as_dataset(structure: Any, leaf: Any) -> Any:
    is_one = isinstance(leaf, tf.data.Dataset)
    return leaf if is_one else tf.data.experimental.from_variant(leaf, structure)


def _pack(form: Any, flat: Iterator[Any]) -> Any:
    if isinstance(form, list):
        return [_pack(each, flat) for each in form]
    leaf = next(flat)
    return leaf if form is None else form(leaf)
