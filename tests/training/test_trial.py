"""What a trial round finds out about methods."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.training import every_method
from tff_reg import training
from tff_reg.methods import memories, method
from tff_reg.training import aggregators, local_training, trial

_UPLOADING = [
    each for each in every_method.variants() if every_method.of_variant(*each).uploads
]


def _of_trial(own):
    """The outcome of a trial round of a method."""
    population = training.Population(7, mean_examples=6.0, local_steps=4)
    of_clients = local_training.LocalTraining(
        training.build_sgd(0.1, 0.9),
        (own,),
        data_form=training.WholeClientData(4),
        population=population,
    )
    return trial.run(every_method.model_fn, of_clients)


def _drawn(like, seed=0):
    """Numbers of the shapes and data types of a structure."""
    rng = np.random.default_rng(seed)

    def one(value):
        if not value.dtype.is_floating:
            return tf.constant(5, value.dtype)
        return tf.constant(rng.uniform(0.1, 0.9, value.shape), value.dtype)

    return tf.nest.map_structure(one, like)


@pytest.mark.parametrize(
    "name, hyperparameters", _UPLOADING, ids=every_method.variant_id
)
def test_a_method_whose_server_does_not_just_add_needs_exact_sums(
    name, hyperparameters
):
    own = every_method.of_variant(name, hyperparameters)
    found = _of_trial(own)
    weights = every_method.model_fn().trainable_variables
    weights = [tf.identity(w) for w in weights]
    before, after, delta = (_drawn(weights, seed) for seed in (1, 2, 3))
    uploads = _drawn({n: found.output.uploads[f"{name}/{n}"] for n in own.uploads})
    first = memories.initial(own, "server_memory", weights)
    memory = _drawn(memories.own(name, own.server_memory, first)._values)

    def numbers(times):
        """The memories and the model that uploads times a factor make."""
        given = tf.nest.map_structure(lambda u: times * u, uploads)
        server = method.Server(
            before, after, memory, memory, delta, given, tf.constant(2), 7
        )
        new = own.update_memory(server)
        new = {**memory, **(new.value if isinstance(new, method.Change) else new)}
        made = own.next_model(dataclasses.replace(server, memory=new))
        made = made.value if isinstance(made, method.Change) else made
        return [np.asarray(each) for each in tf.nest.flatten((new, made))]

    is_sum = all(
        np.allclose(twice - once, once - nothing, rtol=1e-3, atol=1e-6)
        for nothing, once, twice in zip(*map(numbers, (0.0, 1.0, 2.0)))
    )
    assert found.needs.exact == (set() if is_sum else {name})


def test_a_mean_of_models_is_refused_where_uploads_are_clipped():
    with pytest.raises(ValueError, match="fedinit needs exact sums"):
        training.build(
            "fedinit",
            every_method.model_fn,
            fedinit_average="models",
            model_aggregator=aggregators.PrivateMeanFactory(0.1, 5),
        )
