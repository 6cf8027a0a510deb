"""Costs are those of the graphs that run, and the paper's for its network."""

import functools
import types

import pytest
import tensorflow as tf

from tff_reg import experiment, models, training
from tff_reg.analysis import cost, graph_counts
from tff_reg.experiment.rounds import runs
from tff_reg.methods import catalogue
from tff_reg.training import description


def convolution(size, in_channels, out_channels, kernel):
    return size**2 * in_channels * out_channels * kernel**2


# Multiply-adds of ResNet-8 on 32x32x3, 10 classes; of the stages' branches and
# shortcuts apart.
STEM = convolution(32, 3, 16, 3)
BRANCHES = (
    2 * convolution(32, 16, 16, 3),
    convolution(16, 16, 32, 3) + convolution(16, 32, 32, 3),
    convolution(8, 32, 64, 3) + convolution(8, 64, 64, 3),
)
SHORTCUTS = (0, convolution(16, 16, 32, 1), convolution(8, 32, 64, 1))
STAGES = [sum(parts) for parts in zip(BRANCHES, SHORTCUTS)]
CLASSIFIER = 64 * 10
FORWARD = STEM + sum(STAGES) + CLASSIFIER


def described(process, model_fn, **hyperparameters):
    """A process of which only the description is made, which takes less time."""
    methods = catalogue.build(process, hyperparameters)
    local = training.LocalTraining(
        training.build_sgd(0.1), methods, population=training.Population(3)
    )
    model_fn = training.adapt_model_fn(model_fn, methods)
    found = description.describe(model_fn, local)
    return types.SimpleNamespace(description=found, next=None)


@functools.cache
def count(process, hyperparameters=(), **options):
    """The multiply-adds of a process on ResNet-8; tests share them."""
    model_fn = models.build_model_fn("resnet8", image_shape=(32, 32, 3), num_classes=10)
    process = described(process, model_fn, **dict(hyperparameters))
    return cost.count_multiply_adds(process, **options)


def slow(*values):
    """What another of the same kind stands for, but for --slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "process, forward, backward",
    [
        # The gradient of the images is not taken, nor any of the global model.
        ("fedavg", FORWARD, 2 * FORWARD - STEM),
        slow("fedprox", FORWARD, 2 * FORWARD - STEM),
        ("kd", 2 * FORWARD, 2 * FORWARD - STEM),
        # Two gradients a step.
        ("fedsam", 2 * FORWARD, 2 * (2 * FORWARD - STEM)),
        slow("fedsam+kd", 4 * FORWARD, 2 * (2 * FORWARD - STEM)),
        # The classifier's weights are no variables of the gradient.
        ("freeze", FORWARD, 2 * FORWARD - STEM - CLASSIFIER),
    ],
)
def test_counts_the_multiply_adds_of_a_step(process, forward, backward):
    assert count(process) == cost.MultiplyAdds(forward, 0, backward)


def test_counts_mans_own_arithmetic():
    # Table 3 of the MAN paper: a multiplication an activation, N_b H_o W_o C_o of a
    # convolution and N_b d_o of a hidden layer.
    model_fn = models.build_model_fn(
        "feddyn_cnn", image_shape=(32, 32, 3), num_classes=100
    )
    found = cost.count_multiply_adds(described("scaffold+man", model_fn))
    layers = 28**2 * 64 * 3 * 25 + 10**2 * 64 * 64 * 25
    layers += 5**2 * 64 * 384 + 384 * 192 + 192 * 100
    assert found.layers == layers
    assert found.rest == 28**2 * 64 + 10**2 * 64 + 384 + 192


def test_counts_the_backward_pass_through_a_constant_path_once():
    fedavg, fedmlb = count("fedavg"), count("fedmlb")
    paths = sum(i * stage for i, stage in enumerate(STAGES, start=1)) + 4 * CLASSIFIER
    assert fedmlb.layers == fedavg.layers + paths
    assert fedmlb.backward == fedavg.backward + paths


def test_counts_what_stochastic_depth_runs_on_average():
    fedavg, stochdepth = count("fedavg"), count("stochdepth", draws=2000)
    # Branches are kept with probabilities 1, 0.95 and 0.9.
    dropped = 0.05 * BRANCHES[1] + 0.1 * BRANCHES[2]
    assert fedavg.layers - stochdepth.layers == pytest.approx(dropped, rel=0.15)
    assert fedavg.backward - stochdepth.backward == pytest.approx(2 * dropped, rel=0.15)


def test_counts_what_gradaug_runs_on_average():
    # The narrower network at width 0.8 rounds 16, 32 and 64 channels to 16, 24 and 48,
    # on images of 0.6797 times the pixels on average.
    narrow = (
        STEM
        + BRANCHES[0]
        + convolution(16, 16, 24, 3)
        + convolution(16, 24, 24, 3)
        + convolution(16, 16, 24, 1)
        + convolution(8, 24, 48, 3)
        + convolution(8, 48, 48, 3)
        + convolution(8, 24, 48, 1)
    )
    gradaug = count("gradaug", hyperparameters=(("gradaug_subnetworks", 1),))
    assert gradaug.layers - FORWARD == pytest.approx(0.6797 * narrow, rel=0.06)
    assert gradaug.rest > 0  # resizing


def test_products_whose_size_is_known_only_when_the_graph_runs_are_counted():
    with tf.Graph().as_default() as graph:
        a = tf.compat.v1.placeholder(tf.float32, [None, 3])
        b = tf.compat.v1.placeholder(tf.float32, [None, 5])
        product = tf.linalg.matmul(a, b, transpose_a=True)
        summed = tf.einsum("ij,ik->jk", product, product)
        counts = graph_counts.multiply_adds([summed])
        assert (counts["layers"], counts["backward"]) == (0, 0)
        with tf.compat.v1.Session(graph=graph) as session:
            found = session.run(
                counts["rest"], {a: [[1.0] * 3] * 7, b: [[1.0] * 5] * 7}
            )
    assert found == 3 * 5 * 7 + 3 * 5 * 5


# Table 5 of the FedAlign paper: MFLOPs and stored parameters. Its GradAug is no count
# of a step: 87.3 (1 + 0.66 (0.64 + 0.813 (n - 1))) for the mean of 26 pixels and
# squared widths, where channels are rounded to multiples of 8.
@pytest.mark.parametrize(
    "process, mflops, params",
    [
        slow("fedavg", 87.3, 0.61),
        slow("fedprox", 87.3, 1.21),
        slow("moon", 262.2, 2.21),
        slow("mixup", 87.3, 0.61),
        ("fedalign", 89.1, 0.61),
    ],
)
def test_the_papers_network_costs_what_the_paper_says(process, mflops, params):
    model_fn = models.build_model_fn(
        "resnet56",
        image_shape=(32, 32, 3),
        num_classes=100,
        projector=catalogue.settings(process).get("projector", "none"),
    )
    found = cost.of_process(described(process, model_fn), process)
    assert found.forward_mflops == pytest.approx(mflops, rel=0.002)
    assert found.stored_params_m == pytest.approx(params, abs=0.0051)
    # It is no whole process, so what it sends is not known.
    assert cost.columns([found])["up (MB)"] == ["-"]


# Of the CNN for images of 8x8x1 and 10 classes: weights of layers, of two norms, and
# of the classifier.
LAYERS = 9 * 32 + 9 * 32 * 64 + 256 * 128 + 128 + 128 * 10 + 10
NORMS, LAST = 2 * (32 + 64), 128 * 10 + 10


@pytest.mark.parametrize(
    "settings, stored, up",
    [
        (dict(process="fedprox"), 2 * LAYERS, LAYERS + NORMS),
        # FedProx's constant model has the trained weights alone.
        (dict(process="fedprox", train=("classifier/dense",)), LAYERS + LAST, LAST),
        # With momentum FedCM's clients send the sum of their gradients, too.
        (dict(process="fedcm", client_momentum=0.9), 2 * LAYERS, 2 * (LAYERS + NORMS)),
        (
            dict(
                process="fedwmsam", client_optimizer="adam", client_learning_rate=0.01
            ),
            5 * LAYERS,
            3 * (LAYERS + NORMS),
        ),
        (dict(process="local"), LAYERS, 0),
    ],
)
def test_a_runs_cost_is_that_of_its_model_and_its_optimiser(settings, stored, up):
    asked = experiment.RunConfig(model="cnn", norm="group", task="digits", **settings)
    config = asked.resolved()
    process = runs.build_process(config, runs.build_task(config))
    found = cost.of_process(process, config.process)
    forward = 64 * 9 * 32 + 16 * 9 * 32 * 64 + 256 * 128 + 128 * 10
    assert found.forward_mflops == forward / 1e6
    # Images have no gradient.
    backward = 128 * 10 if config.train else 2 * forward - 64 * 9 * 32
    assert found.backward_mflops == backward / 1e6
    assert found.stored_params_m == stored / 1e6
    # Beside them travel the optimiser's settings, weights and metrics.
    assert 0 <= found.megabytes_up * 1e6 - 4 * up < 300 * bool(up) + 1
