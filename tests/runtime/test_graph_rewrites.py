"""Graphs that are rewritten go over data sets without delays, to the same results."""

import pytest
import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

from tff_reg.runtime import graph_rewrites

_ELEMENT = tf.TensorSpec([], tf.float32)


def _with_iterator(variant):
    total = tf.constant(0.0)
    for x in iter(tf.data.experimental.from_variant(variant, _ELEMENT)):
        total = 2 * total + x
    return total


def _with_reduce(variant):
    dataset = tf.data.experimental.from_variant(variant, _ELEMENT)
    return dataset.reduce(0.0, lambda total, x: 2 * total + x)


def _pipeline_inside(variant):
    dataset = tf.data.experimental.from_variant(variant, _ELEMENT)
    mapped = dataset.map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE)
    return _with_iterator(
        tf.data.experimental.to_variant(mapped.prefetch(tf.data.AUTOTUNE))
    )


def _in_function(body):
    """`body` in a library function, as Keras's and TFF's own loops are."""

    @tf.autograph.experimental.do_not_convert
    def outer(variant):
        return tf.function(body)(variant)

    return outer


_BODIES = {
    "iterator": _with_iterator,
    "reduce": _with_reduce,
    "pipeline": _pipeline_inside,
    "iterator in a function": _in_function(_with_iterator),
    "reduce in a function": _in_function(_with_reduce),
}


def _nodes(graph_def):
    return [graph_def.node, *(f.node_def for f in graph_def.library.function)]


@pytest.fixture(params=_BODIES, name="function")
def _function(request):
    return tf.function(_BODIES[request.param]).get_concrete_function(
        tf.TensorSpec([], tf.variant)
    )


def test_iterators_are_not_tuned(function):
    graph_def = function.graph.as_graph_def()
    assert graph_rewrites.iterate_over_datasets(graph_def)
    found = 0
    for nodes in _nodes(graph_def):
        by_name = {node.name: node for node in nodes}
        assert not [node for node in nodes if node.op == "ReduceDataset"]
        for node in nodes:
            if node.op == "MakeIterator":
                found += 1
                untuned = by_name[node.input[0].split(":")[0]]
                assert untuned.op == "OptionsDataset"
                options = dataset_options_pb2.Options.FromString(
                    untuned.attr["serialized_options"].s
                )
                assert options.autotune_options.HasField("enabled")
                assert not options.autotune_options.enabled
    assert found == 1


def test_results_stay(function):
    graph_def = function.graph.as_graph_def()
    graph_rewrites.prepare(
        graph_def,
        compiles=True,
        results=[function.outputs[0].name],
        parameters=[function.inputs[0].name],
        initialize_op=None,
    )
    rewritten = tf.compat.v1.wrap_function(
        lambda variant: tf.graph_util.import_graph_def(
            graph_def,
            input_map={function.inputs[0].name: variant},
            return_elements=[function.outputs[0].name],
            name="",
        )[0],
        [tf.TensorSpec([], tf.variant)],
    )
    for numbers in ([], [5.0], [1.0, 2.0, 3.0, 4.0]):
        dataset = tf.data.Dataset.from_tensor_slices(tf.constant(numbers, tf.float32))
        variant = tf.data.experimental.to_variant(dataset)
        assert float(rewritten(variant)) == float(function(variant))


def test_a_graph_without_data_sets_is_left():
    graph_def = tf.function(tf.square).get_concrete_function(_ELEMENT).graph
    graph_def = graph_def.as_graph_def()
    before = graph_def.SerializeToString(deterministic=True)
    assert not graph_rewrites.iterate_over_datasets(graph_def)
    assert graph_def.SerializeToString(deterministic=True) == before
