"""Costs are those of the graphs that run, and the paper's for its network."""

import functools

import pytest
import tensorflow as tf

from tff_reg import models, training
from tff_reg.analysis import cost, graph_counts
from tff_reg.methods import catalogue
from tff_reg.training import traffic


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


@functools.cache
def count(process, strengths=(), **options):
    """The multiply-adds of a process on ResNet-8; tests share them."""
    model_fn = models.build_model_fn("resnet8", image_shape=(32, 32, 3), num_classes=10)
    return cost.count_multiply_adds(
        process, model_fn, strengths=dict(strengths), **options
    )


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
    found = cost.count_multiply_adds("scaffold+man", model_fn)
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
    gradaug = count("gradaug", strengths=(("gradaug_subnetworks", 1),))
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
    found = cost.measure(
        process, model="resnet56", image_shape=(32, 32, 3), num_classes=100
    )
    assert found.forward_mflops == pytest.approx(mflops, rel=0.002)
    assert found.stored_params_m == pytest.approx(params, abs=0.0051)


@pytest.mark.parametrize(
    "name",
    [
        "fedgkd",
        "scaffold",
        *map(slow, ("fedprox", "moon", "feddyn", "feddc", "fedspeed")),
        "fedlesam",
        *map(slow, ("fedcm", "fednova", "fedsol", "fedetf", "fedacg")),
    ],
)
def test_the_bytes_are_those_of_the_process(name):
    options = dict(image_shape=(4, 4, 1), num_classes=3)
    projector = catalogue.settings(name).get("projector", "none")
    process = training.build(
        name,
        models.build_model_fn("cnn", projector=projector, **options),
        client_data=training.WholeClientData(4),
        num_clients=3,
        total_rounds=2,
        averages_all_clients=True,  # Not counted.
    )
    found = cost.measure(name, model="cnn", norm="group", **options)
    down, up = traffic.bytes_per_client(process)
    # Beside them travel the optimiser's settings, weights and metrics.
    assert 0 <= down - 1e6 * found.megabytes_down < 100
    assert 0 <= up - 1e6 * found.megabytes_up < 200
