"""What `tff_reg.run` refuses, and what it says then."""

import keras
import numpy as np
import pytest

import tff_reg
from tests.experiment.own_runs import X, Y, confidence, keras_model, run_own
from tff_reg import experiment

IMAGES = X.reshape(-1, 3, 2).astype(np.float32)


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        ({"total_ronds": 3}, TypeError, r"no setting 'total_ronds' \(did you mean"),
        ({"client_data": X}, TypeError, r"^client_data is a ndarray; give a pair \(x,"),
        ({"client_data": (X, Y[:9])}, ValueError, "one label for each"),
        ({"client_data": (X, np.eye(3)[Y[:, 0]])}, ValueError, "argmax.*one-hot"),
        ({"client_data": (X, Y - 1)}, ValueError, "has the label -1; number classes"),
        ({"client_data": (X, Y + 2**32)}, ValueError, "has the label 4294967298;"),
        ({"client_data": (X.astype(str), Y)}, ValueError, "give an array of numbers"),
        ({"client_data": (X.astype(int) + 2**30, Y)}, ValueError, "scale them down"),
        ({"client_data": {}}, ValueError, "has no clients"),
        ({"client_data": (X, Y + 2)}, ValueError, "3 outputs, and client_data has"),
        ({"client_data": (X[:, :5], Y)}, ValueError, "one shape and data type"),
        ({"client_data": None}, ValueError, "test_data is given without client_data"),
        (
            {"partition": np.arange(200) % 4},
            TypeError,
            "client_data={name: .*ids == c",
        ),
        ({"test_data": None}, ValueError, "test_data is missing: .* validation_share"),
        (
            {"test_data": None, "validation_share": 0.999},
            ValueError,
            "leaves nothing to train",
        ),
        ({"test_data": (X / 255, Y)}, ValueError, r"uint8 \(6,\) and test_data float"),
        ({"model": lambda _: 7}, TypeError, "a function that returned 7; give a model"),
        (
            {"model": lambda: 7},
            TypeError,
            "a function that takes no seed; write lambda",
        ),
        ({"mu": 0.1}, TypeError, r"no setting 'mu' \(did you mean fedprox_strength"),
        ({"model": keras_model(shape=(5,))}, ValueError, r"shape \(5,\), and client_d"),
        ({"model": "cnn"}, ValueError, r"client_data is uint8 \(200, 6\); it must be"),
        (
            {"model": "cnn", "client_data": (X.astype(int), Y)},
            ValueError,
            "client_data are int64; give uint8, which is normalised, or floats",
        ),
        (
            {"model": "cnn", "client_data": (IMAGES, Y), "test_data": (IMAGES / 99, Y)},
            ValueError,
            "client_data reaches up to 255 and test_data up to 2.5",
        ),
        ({"model": lambda seed: None}, TypeError, "function that returned None"),
        ({"callbacks": [list]}, TypeError, "has a type; give objects of exp"),
        ({"metrics": ["accuracy"]}, TypeError, "give a dict of them by name"),
        ({"metrics": {"m": lambda y, p: 1 / 0}}, RuntimeError, "'m' failed: ZeroDiv"),
        ({"model": 3}, TypeError, "takes a Keras model, not a int"),
        ({"task": "digits"}, ValueError, "Leave task out: client_data takes its place"),
        ({"norm": "group"}, ValueError, "Leave norm out: the Keras model"),
        ({"augmentation": "crop_flip"}, ValueError, "Leave augmentation out"),
        ({"metrics": {"loss": confidence}}, ValueError, "metric is called 'loss'"),
        (
            {"metrics": {"auc": keras.metrics.AUC}},
            TypeError,
            "The metric 'auc' is <cla",
        ),
        (
            {"metrics": {"top": keras.metrics.CategoricalAccuracy()}},
            ValueError,
            "'top' is a CategoricalAccuracy, .* give a SparseCategoricalAccuracy",
        ),
        (
            {"client_data": [(X, Y), (X, Y)]},
            TypeError,
            "client_data is a list of 2 pairs; give a dict of pairs",
        ),
        (
            {"client_data": ({"a": X}, Y), "test_data": ({"a": X}, Y)},
            ValueError,
            "takes one array, and client_data has a dict of a",
        ),
        (
            {"client_data": ([X, X[:, :3]], Y), "test_data": ([X, X[:, :3]], Y)},
            ValueError,
            "takes one array, and client_data has 2 arrays",
        ),
        (
            {"client_data": ([[1, 2], [3]], [0, 1])},
            ValueError,
            "lists of several shapes; give arrays",
        ),
        (
            {"client_data": (X, Y + 0.5), "test_data": (X, Y + 0.5)},
            ValueError,
            "takes class numbers, and client_data has labels float64 with fractions",
        ),
        ({"stratify": np.arange(9)}, ValueError, r"stratify has the shape \(9,\);"),
        (
            {
                "model": "cnn",
                "client_data": (IMAGES, Y + 1),
                "test_data": (IMAGES, Y + 1),
            },
            ValueError,
            "numbered from 1 to 3; number them from 0",
        ),
        ({"test_data": (X, Y + 2)}, ValueError, "test_data has labels up to 4"),
        (
            {"aggregator": "dp", "dp_clipping": "fixed"},
            ValueError,
            "leave sample_fn out",
        ),
        ({"process": "central"}, ValueError, "a known size; leave sample_fn out"),
        ({"learning_rate_schedule": "cosine"}, ValueError, "a function of the round"),
        ({"client_learning_rates": (0.5, 0.4)}, ValueError, "a function of the round"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(wrong, error, words):
    with pytest.raises(error, match=words) as caught:
        run_own(**wrong)
    assert "\n" not in str(caught.value)


def test_arguments_without_names_are_told_of_the_function_that_was_called():
    with pytest.raises(TypeError, match=r"^tff_reg.run\(\) takes .* but 3 were given"):
        tff_reg.run("fedavg", (X, Y))
    with pytest.raises(TypeError, match=r"^tff_reg.compare\(\) missing .*'processes'"):
        tff_reg.compare(process=["fedavg"])


def test_a_wrong_result_of_a_function_ends_the_round_with_a_sentence():
    with pytest.raises(ValueError, match="in round 1, but 'c9' is no client"):
        run_own(sample_fn=lambda round_num, client_ids: ["c9"])
    with pytest.raises(experiment.TrainingError, match=r"'m' returned an array \(60, "):
        run_own(metrics={"m": lambda y, p: p.argmax(axis=-1) == y[:, np.newaxis]})
    drawn = np.random.default_rng(0)
    with pytest.raises(ValueError, match="round 1, and when it was called again"):
        run_own(sample_fn=lambda _, client_ids: drawn.choice(client_ids, 2, False))
    with pytest.raises(ValueError, match="learning rate 0 for round 1; it must give"):
        run_own(client_learning_rate=lambda round_num: 0)
