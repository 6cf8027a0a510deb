"""Hessian tools against exact Hessians by automatic differentiation."""

import logging

import numpy as np
import pytest
import tensorflow as tf
from scipy import integrate

from tests.analysis import small
from tff_reg import models
from tff_reg.analysis import hessian


def exact_hessian(model, examples):
    """By differentiating every entry of the gradient."""
    x, y = map(tf.constant, examples)
    variables = model.trainable_variables
    with tf.GradientTape(persistent=True) as outer:
        with tf.GradientTape() as inner:
            loss = small.cross_entropy(model, x, y)
        gradients = inner.gradient(loss, variables)
    rows = [
        np.concatenate(
            [np.reshape(b, [np.size(g), -1]) for b in outer.jacobian(g, variables)],
            axis=1,
        )
        for g in gradients
    ]
    return np.concatenate(rows)


@pytest.fixture(name="case", scope="module")
def _case():
    model, examples = small.perceptron(), small.make_examples()
    return model, examples, exact_hessian(model, examples)


@pytest.fixture(name="curvature", scope="module")
def _curvature(case):
    """Tests share it, so that its products are traced once."""
    return hessian.Hessian(*case[:2])


def by_magnitude(values):
    return values[np.argsort(-np.abs(values))]


def full_matrix(curvature):
    return np.stack([curvature.product(unit) for unit in np.eye(curvature.size)])


def test_products_are_those_of_the_exact_hessian(case, curvature):
    model, _, exact = case
    np.testing.assert_allclose(full_matrix(curvature), exact, atol=1e-12)
    vector = np.random.default_rng(3).normal(size=curvature.size)
    as_list = curvature.product(curvature.unflatten(vector))
    assert [a.shape for a in as_list] == [v.shape for v in model.trainable_variables]
    flat = np.concatenate([a.ravel() for a in as_list])
    np.testing.assert_allclose(flat, exact @ vector, atol=1e-12)


def _forms(model, x, y):
    """By name: a model, its data, the options, and the product's relative error."""
    hidden, logits = model.layers
    network = models.from_keras_blocks([hidden, logits], input_shape=[5])
    batched = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(11).batch(4)
    of_batch = lambda batch: small.cross_entropy(model, *batch)  # noqa: E731
    variables = dict(variables=model.trainable_variables)
    return {
        "float32": (small.perceptron("float32"), (x.astype(np.float32), y), {}, 1e-5),
        "batches of 1": (model, (x, y), dict(batch_size=1), 1e-12),
        "batches of 4": (model, (x, y), dict(batch_size=4), 1e-12),
        "one batch": (model, (x, y), dict(batch_size=64), 1e-12),
        "a mapping": (model, dict(x=x, y=y, key=np.zeros([2])), {}, 1e-12),
        "a list": (model, [(x[:5], y[:5]), (x[5:], y[5:])], {}, 1e-12),
        "mappings": (
            model,
            [dict(x=x[:5], y=y[:5]), dict(x=x[5:], y=y[5:])],
            {},
            1e-12,
        ),
        "a data set": (model, batched, {}, 1e-12),
        "a column of labels": (model, (x, y[:, None].astype(np.int64)), {}, 1e-12),
        "a BlockModel": (network, (x, y), {}, 1e-12),
        "a LearningModel": (models.LearningModel(network), (x, y), {}, 1e-12),
        "a function": (of_batch, (x, y), variables, 1e-12),
    }


@pytest.mark.parametrize("form", _forms(small.perceptron(), *small.make_examples()))
def test_all_forms_of_models_data_and_losses_agree(case, form):
    model, examples, exact = case
    model, data, options, tolerance = _forms(model, *examples)[form]
    found = hessian.Hessian(model, data, **options)
    assert found.num_examples == 11
    vector = np.random.default_rng(4).normal(size=found.size)
    product, expected = found.product(vector), exact @ vector
    assert product.dtype == np.float64
    assert np.linalg.norm(product - expected) < tolerance * np.linalg.norm(expected)


def test_a_shuffled_data_set_is_read_once(case):
    model, (x, y), _ = case
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(11).batch(4).take(1)
    curvature = hessian.Hessian(model, data)
    assert curvature.num_examples == 4
    vector = np.ones(curvature.size)
    np.testing.assert_array_equal(curvature.product(vector), curvature.product(vector))


def test_another_loss_and_some_of_the_variables(case):
    model, (x, y), exact = case
    weights = model.trainable_variables[2:]
    count = sum(w.shape.num_elements() for w in weights)
    curvature = hessian.Hessian(model, (x, y), variables=weights)
    np.testing.assert_allclose(
        full_matrix(curvature), exact[-count:, -count:], atol=1e-12
    )

    # The Hessian of the sum of squared logits, by the last bias: 2 on the diagonal.
    def of_logits(labels, logits):
        return tf.reduce_sum(logits**2, axis=1)

    model = small.perceptron()
    model.compile(loss=of_logits)
    bias = model.trainable_variables[-1:]
    curvature = hessian.Hessian(model, (x, y), variables=bias)
    np.testing.assert_allclose(full_matrix(curvature), 2 * np.eye(3), atol=1e-12)


def test_new_weights_are_seen():
    model, examples = small.perceptron(), small.make_examples()
    curvature = hessian.Hessian(model, examples)
    curvature.product(np.ones(curvature.size))
    small.randomize(model, seed=9)
    np.testing.assert_allclose(
        full_matrix(curvature), exact_hessian(model, examples), atol=1e-12
    )


def test_loss_and_gradient(case):
    model, (x, y), _ = case
    curvature = hessian.Hessian(model, (x, y), batch_size=4)
    with tf.GradientTape() as tape:
        loss = small.cross_entropy(model, tf.constant(x), tf.constant(y))
    expected = tape.gradient(loss, model.trainable_variables)
    np.testing.assert_allclose(curvature.loss(), loss, rtol=1e-12)
    for ours, theirs in zip(curvature.unflatten(curvature.gradient()), expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-13)


@pytest.mark.parametrize("k", [1, 3])
def test_top_eigenvalues(case, curvature, k):
    exact = case[2]
    pairs = curvature.top_eigenvalues(k)
    expected = by_magnitude(np.linalg.eigvalsh(exact))[:k]
    np.testing.assert_allclose(pairs.values, expected, rtol=1e-4)
    assert np.all(pairs.errors <= 1e-4 * np.abs(expected))
    values, vectors = pairs
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(k), atol=1e-6)
    for value, vector in zip(values, vectors):
        residual = np.linalg.norm(exact @ vector - value * vector)
        assert residual < 2e-3 * abs(value)


def test_lanczos_finds_all_eigenvalues_and_needs_few_products_for_one(case, curvature):
    exact = case[2]
    pairs = curvature.top_eigenvalues(len(exact))
    expected = by_magnitude(np.linalg.eigvalsh(exact))
    np.testing.assert_allclose(pairs.values, expected, atol=1e-10)
    np.testing.assert_allclose(
        pairs.vectors @ pairs.vectors.T, np.eye(len(exact)), atol=1e-9
    )
    assert curvature.top_eigenvalues(1).products < 20


def test_all_copies_of_a_multiple_eigenvalue_are_found():
    scales = np.array([9.0, 8.0] + [5.0] * 9 + [2.0] * 20 + list(np.linspace(1, 0, 29)))
    w = tf.Variable(np.zeros(60))
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(60, 60)))[0]

    def loss(batch):
        turned = tf.linalg.matvec(rotation, w)
        return tf.reduce_mean(batch) * tf.reduce_sum(scales * turned**2) / 2

    pairs = hessian.Hessian(loss, [np.ones(2)], variables=[w]).top_eigenvalues(10)
    np.testing.assert_allclose(pairs.values, scales[:10], rtol=1e-4)
    np.testing.assert_allclose(pairs.vectors @ pairs.vectors.T, np.eye(10), atol=1e-4)


def test_says_when_it_did_not_converge(curvature, caplog):
    with caplog.at_level(logging.WARNING, "absl"):
        curvature.top_eigenvalues(2, max_iterations=3)
    assert "raise max_iterations" in caplog.text


def standard_error_of_trace(exact, samples):
    """Of Hutchinson's estimator with random signs."""
    off_diagonal = exact - np.diag(np.diag(exact))
    return np.sqrt(2 * np.sum(off_diagonal**2) / samples)


def test_trace(case):
    model, examples, exact = case
    # Of the last layer: positive semidefinite, so that its trace is not near 0.
    last = model.trainable_variables[2:]
    curvature = hessian.Hessian(model, examples, variables=last)
    exact = exact[24:, 24:]
    tolerance = standard_error_of_trace(exact, 100) / np.trace(exact)
    estimate = curvature.trace(tolerance=tolerance, max_samples=200)
    mean, standard_error, samples = estimate
    assert abs(mean - np.trace(exact)) < 3 * standard_error
    assert 10 < samples < 200 and standard_error <= tolerance * mean
    # It stops as soon as it may: with one vector fewer it was not that accurate.
    fewer = curvature.trace(tolerance=1e-9, max_samples=samples - 1)
    assert fewer.samples == samples - 1
    assert fewer.standard_error > tolerance * fewer.mean


def test_standard_error_of_the_trace_is_that_of_the_exact_variance(case, curvature):
    estimate = curvature.trace(tolerance=1e-9, max_samples=400)
    expected = standard_error_of_trace(case[2], 400)
    np.testing.assert_allclose(estimate.standard_error, expected, rtol=0.15)


def test_diagonal(case, curvature):
    exact = case[2]
    found = curvature.diagonal(exact=True)
    np.testing.assert_allclose(found.values, np.diag(exact), atol=1e-12)
    assert not np.any(found.standard_errors) and found.samples == curvature.size
    values, errors, samples = curvature.diagonal(samples=300)
    assert samples == 300
    distances = (values - np.diag(exact)) / errors
    assert np.max(np.abs(distances)) < 4.5 and 0.5 < np.mean(distances**2) < 2
    off_diagonal = exact - np.diag(np.diag(exact))
    expected = np.sqrt(np.sum(off_diagonal**2, axis=1) / 300)
    np.testing.assert_allclose(errors, expected, rtol=0.3)


def test_spectral_density(case, curvature):
    exact = case[2]
    spectrum = curvature.spectral_density(samples=40)
    grid, density = spectrum
    np.testing.assert_allclose(integrate.trapezoid(density, grid), 1, atol=1e-6)
    np.testing.assert_allclose(np.sum(spectrum.weights), 1, rtol=1e-12)
    eigenvalues = np.linalg.eigvalsh(exact)
    # Without a limit of steps the nodes are the eigenvalues.
    distances = np.abs(spectrum.nodes[:, np.newaxis] - eigenvalues)
    assert np.max(np.min(distances, axis=1)) < 1e-9
    for power in (1, 2):
        moment = np.sum(spectrum.weights * spectrum.nodes**power)
        matrix = np.linalg.matrix_power(exact, power)
        error = standard_error_of_trace(matrix, 40) / len(exact)
        assert abs(moment - np.trace(matrix) / len(exact)) < 3 * error


def test_spectral_density_is_the_mean_over_gaussians(curvature):
    spectrum = curvature.spectral_density(samples=2, steps=5, relative_width=0.05)
    assert len(spectrum.nodes) == 10
    np.testing.assert_allclose(spectrum.width, 0.05 * np.ptp(spectrum.nodes))
    at = len(spectrum.grid) // 3
    expected = np.sum(
        spectrum.weights
        * np.exp(-0.5 * ((spectrum.grid[at] - spectrum.nodes) / spectrum.width) ** 2)
        / (spectrum.width * np.sqrt(2 * np.pi))
    )
    np.testing.assert_allclose(spectrum.density[at], expected, rtol=1e-10)


def test_parts_are_the_diagonal_blocks(case, curvature):
    exact = case[2]
    ends = np.cumsum([0, 20, 4, 12, 3])
    blocks = {"hidden": slice(0, 24), "logits": slice(24, 39)}
    variables = dict(
        zip(
            ["hidden/kernel", "hidden/bias", "logits/kernel", "logits/bias"],
            [slice(a, b) for a, b in zip(ends, ends[1:])],
        )
    )
    for parts, slices in (("block", blocks), ("variable", variables)):
        tops = curvature.top_eigenvalues(2, parts=parts)
        traces = curvature.trace(parts=parts)
        diagonals = curvature.diagonal(exact=True, parts=parts)
        densities = curvature.spectral_density(parts=parts, samples=3)
        assert list(tops) == list(slices)
        for name, where in slices.items():
            block = exact[where, where]
            expected = by_magnitude(np.linalg.eigvalsh(block))
            np.testing.assert_allclose(tops[name].values, expected[:2], rtol=1e-4)
            mean, error, _ = traces[name]
            assert abs(mean - np.trace(block)) < 3.5 * error
            np.testing.assert_allclose(
                diagonals[name].values, np.diag(block), atol=1e-12
            )
            np.testing.assert_allclose(
                np.sum(densities[name].weights * densities[name].nodes),
                np.trace(block) / len(block),
                atol=np.linalg.norm(block) / np.sqrt(len(block)),
            )
            np.testing.assert_allclose(
                integrate.trapezoid(*densities[name][::-1]), 1, atol=1e-6
            )


def test_parts_as_lists_of_variables(case, curvature):
    model, _, exact = case
    w1, b1, w2, b2 = model.trainable_variables
    where = np.r_[36:39, 0:20]
    first, second = curvature.top_eigenvalues(1, parts=[[b2, w1], [b1, w2]])
    block = exact[np.ix_(where, where)]
    expected = by_magnitude(np.linalg.eigvalsh(block))[0]
    np.testing.assert_allclose(first.values[0], expected, rtol=1e-4)
    assert first.vectors.shape == (1, 23) and second.vectors.shape == (1, 16)


def test_seeds(curvature):
    def measure(seed):
        return (
            curvature.trace(seed=seed, max_samples=12).mean,
            curvature.diagonal(seed=seed, samples=3).values[0],
            curvature.spectral_density(seed=seed, samples=1, steps=4).nodes[0],
            curvature.top_eigenvalues(1, seed=seed, max_iterations=3).vectors[0, 0],
        )

    first, other = measure(0), measure(1)
    tf.random.set_seed(5)
    assert measure(0) == first
    assert all(a != b for a, b in zip(first, other))


def test_a_linear_loss_has_zeros():
    used = tf.Variable([2.0])
    linear = hessian.Hessian(
        lambda batch: tf.reduce_sum(used) * tf.reduce_mean(batch),
        [np.ones(2, np.float32)],
        variables=[used],
    )
    assert linear.product([3.0 * np.ones(1)])[0] == 0
    assert linear.top_eigenvalues(1).values == [0]
    np.testing.assert_allclose(
        integrate.trapezoid(*linear.spectral_density()[::-1]), 1, atol=1e-6
    )
