"""Rewrites of a TFF computation's graph for execution in this process.

TFF keeps a computation as a `GraphDef` for a separate session: its variables are found
by name, an operation initialises them, and the names of its library functions may
occur in other graphs. Here many such graphs run at the same time in one TensorFlow,
each as a function. `prepare` applies, in order:

* `_prune`: keeps only the operations that the results need;
* `_make_resources_anonymous`: every call gets new variables and tables, freed with the
  call;
* `_initialize_before_use`: operations that read them wait for the initialisation;
* `_compile_nothing`, if XLA has refused a function;
* `iterate_over_datasets`: `ReduceDataset` becomes a loop over an iterator, because
  the operation sets up its body anew at each call (seconds for a deep network) and
  always runs it on the CPU; iterators run without autotuning, because an autotuned
  iterator may take as long to end as it has run;
* `_keep_input_pipelines_on_cpu`;
* `_make_functions_unique`: library functions get names that occur once in the
  process.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Optional

from tensorflow.core.framework import dataset_options_pb2  # no public API

from tff_reg.lazy import tf

# TensorFlow's name for "not shared: one for each execution of the operation".
_ANONYMOUS = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"

_ANONYMOUS_TABLES = {
    "HashTableV2": "AnonymousHashTable",
    "MutableHashTableV2": "AnonymousMutableHashTable",
    "MutableHashTableOfTensorsV2": "AnonymousMutableHashTableOfTensors",
    "MutableDenseHashTableV2": "AnonymousMutableDenseHashTable",
}
_SHARING_ATTRIBUTES = ("container", "shared_name", "use_node_name_sharing")

_ITERATOR_OPERATIONS = frozenset(
    (
        "AnonymousIterator",
        "AnonymousIteratorV2",
        "AnonymousIteratorV3",
        "MakeIterator",
        "IteratorGetNext",
        "IteratorGetNextSync",
        "IteratorGetNextAsOptional",
    )
)
_CPU = "/device:CPU:0"

# Attributes about gradients, which name functions that are removed.
_GRADIENT_ATTRIBUTES = (
    "forward_function_name",
    "backward_function_name",
    "_forward_function_name",
    "_backward_function_name",
    "gradient_function",
)

# The attribute of functions that XLA compiles, and of their calls.
COMPILED = "_XlaMustCompile"
_CHECKS = ("Assert", "CheckNumerics", "CheckNumericsV2", "ResourceGather")
_GATHERS = ("Gather", "GatherV2", "GatherNd")

_function_numbers = itertools.count()


def prepare(
    graph_def,
    *,
    compiles: bool,
    results: Sequence[str],
    parameters: Iterable[str],
    initialize_op: Optional[str],
):
    """Rewrites a `GraphDef` in place; returns the `parameters` that results need."""
    parameter_nodes = {_node_name(name): name for name in parameters}
    targets = [_node_name(name) for name in results]
    if initialize_op:
        targets.append(_node_name(initialize_op))
    used = _prune(graph_def, targets, set(parameter_nodes))
    _make_resources_anonymous(graph_def)
    if initialize_op:
        _initialize_before_use(graph_def, _node_name(initialize_op))
    if not compiles and has_compiled(graph_def):
        _compile_nothing(graph_def)
    iterate_over_datasets(graph_def)
    _keep_input_pipelines_on_cpu(graph_def)
    _make_functions_unique(graph_def)
    return {parameter_nodes[name] for name in used}


def _node_name(tensor_name: str) -> str:
    return tensor_name.lstrip("^").split(":")[0]


def _prune(graph_def, targets, parameter_nodes) -> set:
    """Keeps the ancestors of `targets`, without the parameters' operations."""
    for node in graph_def.node:  # Nothing has to wait for a parameter.
        inputs = [
            i
            for i in node.input
            if not (i.startswith("^") and _node_name(i) in parameter_nodes)
        ]
        _set_inputs(node, inputs)
    reached = _ancestors(graph_def, targets)
    kept = [n for n in graph_def.node if n.name in reached - parameter_nodes]
    kept_names = {node.name for node in kept}
    for node in kept:
        _keep_colocations(node, kept_names)
    del graph_def.node[:]
    graph_def.node.extend(kept)
    return reached & parameter_nodes


def _ancestors(graph_def, targets) -> set:
    """Returns the names of the targets and their ancestors that are in the graph."""
    nodes = {node.name: node for node in graph_def.node}
    reached = set()
    pending = list(targets)
    while pending:
        name = pending.pop()
        if name in nodes and name not in reached:
            reached.add(name)
            pending.extend(_node_name(i) for i in nodes[name].input)
    return reached


def _set_inputs(node, inputs) -> None:
    del node.input[:]
    node.input.extend(inputs)


def _keep_colocations(node, kept_names) -> None:
    """Drops the constraints to colocate a node with a removed operation."""
    if "_class" not in node.attr:
        return
    wishes = [
        wish
        for wish in node.attr["_class"].list.s
        if not wish.startswith(b"loc:@") or wish[5:].decode() in kept_names
    ]
    if wishes:
        del node.attr["_class"].list.s[:]
        node.attr["_class"].list.s.extend(wishes)
    else:
        del node.attr["_class"]


def _make_resources_anonymous(graph_def) -> None:
    for node in graph_def.node:
        if node.op == "VarHandleOp":
            node.attr["shared_name"].s = _ANONYMOUS
        elif node.op in _ANONYMOUS_TABLES:
            node.op = _ANONYMOUS_TABLES[node.op]
            for name in _SHARING_ATTRIBUTES:
                node.attr.pop(name, None)


def _initialize_before_use(graph_def, initialize_op: str) -> None:
    """Makes the users of variables and tables wait for their initialisation."""
    nodes = {node.name: node for node in graph_def.node}
    initial = _ancestors(graph_def, [initialize_op])
    state = {
        name
        for name, node in nodes.items()
        if node.op == "VarHandleOp" or node.op in _ANONYMOUS_TABLES.values()
    }
    for node in graph_def.node:
        if node.name not in initial and any(
            _node_name(i) in state for i in node.input if not i.startswith("^")
        ):
            node.input.append("^" + initialize_op)


def _keep_input_pipelines_on_cpu(graph_def) -> None:
    for nodes in _node_lists(graph_def):
        for node in nodes:
            is_dataset = "Dataset" in node.op and node.op != "ReduceDataset"
            if is_dataset or node.op in _ITERATOR_OPERATIONS:
                node.device = _CPU


def _node_lists(graph_def):
    yield graph_def.node
    for function in graph_def.library.function:
        yield function.node_def


# --- data sets -------------------------------------------------------------------


def iterate_over_datasets(graph_def) -> bool:
    """Removes delays of iterating data sets; returns whether anything was changed."""
    has_loops = _loop_instead_of_reducing(graph_def)
    # Also the iterators of these loops.
    return _switch_off_autotuning(graph_def) or has_loops


def _switch_off_autotuning(graph_def) -> bool:
    """Switches off tf.data's autotuning for every iterator.

    The autotuning thread sleeps for 10, 20, 40, ... ms. In TF 2.14 an ending iterator
    wakes the thread before marking it as cancelled: sometimes the thread sleeps again,
    and the end of the iterator waits for it.
    """
    options = dataset_options_pb2.Options()
    options.autotune_options.enabled = False
    found = False
    for nodes in _node_lists(graph_def):
        in_function = nodes is not graph_def.node
        for node in [node for node in nodes if node.op == "MakeIterator"]:
            found = True
            untuned = nodes.add(
                name=f"{node.name}/untuned", op="OptionsDataset", input=node.input[:1]
            )
            untuned.attr["serialized_options"].s = options.SerializeToString()
            _describe_elements(untuned, [tf.variant.as_datatype_enum])
            node.input[0] = untuned.name + (":handle:0" if in_function else "")
    return found


def _loop_instead_of_reducing(graph_def) -> bool:
    """Turns every ReduceDataset into a loop; returns whether there was any."""
    found = False
    functions = {f.signature.name: f for f in graph_def.library.function}
    for nodes in [graph_def.node] + [f.node_def for f in list(functions.values())]:
        in_function = nodes is not graph_def.node
        replaced = [node for node in nodes if node.op == "ReduceDataset"]
        for node in replaced:
            found = True
            body = functions[node.attr["f"].func.name]
            nodes.extend(_loop(node, body, graph_def.library, in_function))
    # Consumers inside functions name the output: ReduceDataset's "components" is
    # While's "output". In the graph itself the index is enough.
    for function in graph_def.library.function:
        loops = {n.name for n in function.node_def if n.attr["_reduces"].b}
        for node in function.node_def:
            _set_inputs(node, [_renamed_output(i, loops) for i in node.input])
        for key in list(function.ret):
            function.ret[key] = _renamed_output(function.ret[key], loops)
    for nodes in _node_lists(graph_def):
        for node in nodes:
            node.attr.pop("_reduces", None)
    return found


def _renamed_output(name: str, loops: set) -> str:
    parts = name.split(":")
    if len(parts) == 3 and parts[0] in loops and parts[1] == "components":
        return f"{parts[0]}:output:{parts[2]}"
    return name


def _loop(node, body, library, in_function: bool) -> list:
    """Turns the ReduceDataset `node` into a While; returns the nodes it needs.

    The loop's variables are the state, then the next element (an optional), the
    iterator, and the body's captures.
    """
    state_types = list(node.attr["Tstate"].list.type)
    captured_types = list(node.attr["Targuments"].list.type)
    argument_types = [argument.type for argument in body.signature.input_arg]
    element_types = argument_types[
        len(state_types) : len(argument_types) - len(captured_types)
    ]
    loop_types = state_types + [
        tf.variant.as_datatype_enum,
        tf.resource.as_datatype_enum,
        *captured_types,
    ]

    initial = [i for i in node.input if not i.startswith("^")][1:]
    control_inputs = [i for i in node.input if i.startswith("^")]
    before = _first_element(node, control_inputs, element_types, in_function)
    handle, element = before[0].name, before[-1].name
    if in_function:
        handle, element = f"{handle}:handle:0", f"{element}:optional:0"

    name = f"{body.signature.name}_loop_{next(_function_numbers)}"
    _add_condition(library, f"{name}_condition", loop_types, len(state_types))
    _add_body(library, f"{name}_body", body, state_types, element_types, captured_types)

    shapes = list(node.attr["output_shapes"].list.shape)
    node.op = "While"
    node.attr.clear()
    node.attr["T"].list.type.extend(loop_types)
    node.attr["cond"].func.name = f"{name}_condition"
    node.attr["body"].func.name = f"{name}_body"
    node.attr["parallel_iterations"].i = 10
    node.attr["_lower_using_switch_merge"].b = True
    node.attr["_reduces"].b = True
    for shape in shapes:
        node.attr["output_shapes"].list.shape.add().CopyFrom(shape)
    for _ in range(len(loop_types) - len(shapes)):
        node.attr["output_shapes"].list.shape.add().unknown_rank = True
    _set_inputs(
        node,
        initial[: len(state_types)]
        + [element, handle]
        + initial[len(state_types) :]
        + control_inputs,
    )
    return before


def _first_element(node, control_inputs, element_types, in_function: bool) -> list:
    """Returns nodes that make an iterator over a data set and get its first element."""
    iterator = tf.compat.v1.NodeDef(
        name=f"{node.name}/iterator", op="AnonymousIteratorV3", input=control_inputs
    )
    _describe_elements(iterator, element_types)
    handle = f"{iterator.name}:handle:0" if in_function else iterator.name
    make = tf.compat.v1.NodeDef(
        name=f"{node.name}/make_iterator",
        op="MakeIterator",
        input=[node.input[0], handle],
    )
    first = tf.compat.v1.NodeDef(
        name=f"{node.name}/first",
        op="IteratorGetNextAsOptional",
        input=[handle, "^" + make.name],
    )
    _describe_elements(first, element_types)
    return [iterator, make, first]


def _describe_elements(node, element_types) -> None:
    node.attr["output_types"].list.type.extend(element_types)
    for _ in element_types:
        node.attr["output_shapes"].list.shape.add().unknown_rank = True


def _new_function(library, name, input_types, output_types):
    function = library.function.add()
    function.signature.name = name
    function.signature.is_stateful = True
    for index, dtype in enumerate(input_types):
        function.signature.input_arg.add(name=f"in{index}", type=dtype)
    for index, dtype in enumerate(output_types):
        function.signature.output_arg.add(name=f"out{index}", type=dtype)
    return function


def _add_condition(library, name, loop_types, optional_index) -> None:
    """Adds the loop's condition: whether there is an element."""
    boolean = tf.bool.as_datatype_enum
    function = _new_function(library, name, loop_types, [boolean])
    function.node_def.add(
        name="has_value",
        op="OptionalHasValue",
        input=[f"in{optional_index}"],
        device=_CPU,
    )
    function.ret["out0"] = "has_value:has_value:0"


def _add_body(library, name, body, state_types, element_types, captured_types):
    """Adds the loop's body: reduces with the element, then gets the next element."""
    states, captures = len(state_types), len(captured_types)
    variant, resource = tf.variant.as_datatype_enum, tf.resource.as_datatype_enum
    loop_types = state_types + [variant, resource] + captured_types
    function = _new_function(library, name, loop_types, loop_types)
    element = function.node_def.add(
        name="element", op="OptionalGetValue", input=[f"in{states}"], device=_CPU
    )
    _describe_elements(element, element_types)
    call = function.node_def.add(name="call", op="StatefulPartitionedCall")
    call.input.extend(f"in{i}" for i in range(states))
    call.input.extend(f"element:components:{i}" for i in range(len(element_types)))
    call.input.extend(f"in{states + 2 + i}" for i in range(captures))
    call.attr["Tin"].list.type.extend(state_types + element_types + captured_types)
    call.attr["Tout"].list.type.extend(state_types)
    call.attr["f"].func.name = body.signature.name
    following = function.node_def.add(
        name="next", op="IteratorGetNextAsOptional", input=[f"in{states + 1}"]
    )
    _describe_elements(following, element_types)
    for index in range(states):
        function.ret[f"out{index}"] = f"call:output:{index}"
    function.ret[f"out{states}"] = "next:optional:0"
    for index in range(states + 1, len(loop_types)):
        function.ret[f"out{index}"] = f"in{index}"


def has_compiled(graph_def) -> bool:
    """Returns whether the graph has functions marked for compilation by XLA."""
    return any(map(_is_compiled, graph_def.library.function))


def lost_check(graph_def) -> Optional[str]:
    """Returns the name of an assertion or bounds check that XLA drops, or None.

    XLA drops assertions, and takes the nearest row of a variable, such as an embedding,
    for an index that is out of range.
    """
    functions = {f.signature.name: f for f in graph_def.library.function}
    pending = [name for name, each in functions.items() if _is_compiled(each)]
    seen = set(pending)
    while pending:
        name = pending.pop()
        nodes = {node.name: node for node in functions[name].node_def}
        for node in nodes.values():
            if node.op in _CHECKS or (
                node.op in _GATHERS and _reads_variable(node.input[0], nodes)
            ):
                return node.name
            found = {*_called_functions(node)} & functions.keys() - seen
            pending += found
            seen |= found
    return None


def _is_compiled(function) -> bool:
    return COMPILED in function.attr and function.attr[COMPILED].b


def _reads_variable(tensor: str, nodes) -> bool:
    node = nodes.get(_node_name(tensor))
    while node is not None and node.op in ("Identity", "Cast"):
        node = nodes.get(_node_name(node.input[0]))
    return node is not None and node.op == "ReadVariableOp"


def _compile_nothing(graph_def) -> None:
    for function in graph_def.library.function:
        function.attr.pop(COMPILED, None)
    for nodes in _node_lists(graph_def):
        for node in nodes:
            node.attr.pop(COMPILED, None)


# --- library functions -------------------------------------------------------------


def _make_functions_unique(graph_def) -> None:
    """Keeps only the functions that are called, under unique names.

    Those that XLA compiles have their content in their names: it keeps what it compiled
    by the name, and the next process built alike finds it.
    """
    functions = {f.signature.name: f for f in graph_def.library.function}
    renamed: dict[str, str] = {}
    for name, function in functions.items():
        if _is_compiled(function):
            _name_by_content(name, functions, renamed)
    pending = collections.deque([graph_def.node])
    pending.extend(functions[name].node_def for name in renamed)
    while pending:
        for node in pending.popleft():
            for name in _called_functions(node):
                if name in functions and name not in renamed:
                    renamed[name] = f"{name}_tff{next(_function_numbers)}"
                    pending.append(functions[name].node_def)
    for nodes in [graph_def.node] + [functions[name].node_def for name in renamed]:
        for node in nodes:
            _rename_functions(node, renamed)
    kept = []
    for name, new_name in renamed.items():
        functions[name].signature.name = new_name
        for attribute in _GRADIENT_ATTRIBUTES:
            functions[name].attr.pop(attribute, None)
        kept.append(functions[name])
    library = graph_def.library
    del library.gradient[:]
    del library.function[:]
    library.function.extend(kept)


def _name_by_content(name: str, functions, renamed: dict[str, str]) -> None:
    """Adds the new name of a function, and first of those that it calls."""
    copy = type(functions[name])()
    copy.CopyFrom(functions[name])
    for node in copy.node_def:
        for called in {*_called_functions(node)} & functions.keys() - renamed.keys():
            _name_by_content(called, functions, renamed)
        _rename_functions(node, renamed)
        node.ClearField("experimental_debug_info")
    copy.signature.name = ""
    digest = hashlib.sha256(copy.SerializeToString(deterministic=True))
    renamed[name] = f"compiled_{digest.hexdigest()[:32]}"


def _called_functions(node):
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        elif value.HasField("list"):
            for function in value.list.func:
                yield function.name


def _rename_functions(node, renamed) -> None:
    node.op = renamed.get(node.op, node.op)
    node.attr.pop("_gradient_op_type", None)
    for attribute in _GRADIENT_ATTRIBUTES:
        node.attr.pop(attribute, None)
    for value in node.attr.values():
        if value.HasField("func"):
            value.func.name = renamed.get(value.func.name, value.func.name)
        elif value.HasField("list"):
            for function in value.list.func:
                function.name = renamed.get(function.name, function.name)
