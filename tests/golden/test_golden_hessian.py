"""Hessians against exact ones and against PyHessian and the FedAlign authors' copy."""

import re

import numpy as np
import tensorflow as tf
from scipy import integrate

from tests.golden import mlp, replay
from tff_reg import analysis
from tff_reg.analysis import hessian


def _network(case):
    """The multi-layer perceptron that the case's `config` names, as 6-5(tanh)-3."""
    features, hidden, activation, classes = re.fullmatch(
        r"(\d+)-(\d+)\((\w+)\)-(\d+)", case.config["mlp"]
    ).groups()
    model = tf.keras.Sequential(
        [
            tf.keras.Input([int(features)], dtype=case.dtype),
            tf.keras.layers.Dense(int(hidden), activation, dtype=case.dtype),
            tf.keras.layers.Dense(int(classes), dtype=case.dtype),
        ]
    )
    return model, (int(features), int(hidden), int(classes))


def _hessian(case, model, prefix="", examples=None, **options):
    x = case.floats(f"{prefix}x")
    y = case.plain(f"{prefix}y").astype(np.int32)
    return hessian.Hessian(model, (x[:examples], y[:examples]), **options)


def _ours(case, sizes, flat):
    """A vector in PyTorch's order to one in ours."""
    return np.concatenate(
        [w.ravel() for w in mlp.unflatten(np.asarray(flat), sizes, np.float64)]
    )


class _Client:
    """A client of a case: our Hessian, in the order of the file's vectors."""

    def __init__(self, case, model, sizes, name):
        weights = mlp.unflatten(case.result(f"{name}.params"), sizes, case.dtype)
        model.set_weights(weights)
        self.name = name
        self.hessian = _hessian(case, model)
        self._case, self._sizes = case, sizes

    def times(self, vector):
        product = self.hessian.product(_ours(self._case, self._sizes, vector))
        return mlp.flatten(self.hessian.unflatten(product))

    def in_file_order(self, vector):
        return mlp.flatten(self.hessian.unflatten(vector))

    def check(self, key, value, **tolerance):
        self._case.check(f"{self.name}.{key}", value, **tolerance)


def _clients(case):
    return case.prefixes(r"client\d+")


def _power_iteration(times, starts, tolerance, count):
    """PyHessian's, of which the file has the values and the number of products."""
    values, vectors, products = [], [], 0
    for start in starts[:count]:
        vector, value = start / np.linalg.norm(start), None
        for _ in range(1000):
            for other in vectors:
                vector = vector - (vector @ other) * other
            vector = vector / (np.linalg.norm(vector) + 1e-6)
            image = times(vector)
            products += 1
            new_value = image @ vector
            vector = image / (np.linalg.norm(image) + 1e-6)
            if value is not None and (
                abs(value - new_value) / (abs(value) + 1e-6) < tolerance
            ):
                break
            value = new_value
        values.append(value)
        vectors.append(vector)
    return values, products


def _stopped_trace(values):
    """How many of the samples PyHessian takes."""
    mean = 0.0
    for count in range(1, len(values) + 1):
        new_mean = np.mean(values[:count])
        if abs(new_mean - mean) / (abs(mean) + 1e-6) < 1e-3:
            return count
        mean = new_mean
    return len(values)


@replay.parametrize("K_*", slow="float32")
def test_hessian_of_every_client(name, dtype):
    case = replay.Case(name, dtype)
    model, sizes = _network(case)
    names = _clients(case)
    assert len(names) == len(case.config["phases"])
    tolerance = dict(rtol64=1e-8, rtol32=2e-5)
    diagonals, published = [], []
    for client_name in names:
        client = _Client(case, model, sizes, client_name)
        ours = client.hessian
        client.check("loss", ours.loss(), **tolerance)
        matrix = np.stack([client.times(unit) for unit in np.eye(ours.size)])
        client.check("hessian", matrix, **tolerance)

        exact = case.result(f"{client_name}.eigenvalues_ascending")
        largest = exact[np.argsort(-np.abs(exact))]
        values, vectors = ours.top_eigenvalues(2)
        np.testing.assert_allclose(values, largest[:2], rtol=1e-4)
        residual = [ours.product(v) - e * v for e, v in zip(values, vectors)]
        assert np.max(np.abs(residual)) < 1e-3 * abs(values[0])
        client.check("top_eigenvalue", max(values), rtol64=1e-4, rtol32=1e-4)

        diagonal = ours.diagonal(exact=True).values
        client.check("trace", np.sum(diagonal), **tolerance)
        client.check("diag", client.in_file_order(diagonal), **tolerance)
        norm = np.linalg.norm(diagonal)
        client.check("frobenius_norm_of_diag", norm, **tolerance)
        sums = [np.sum(part) for part in ours.unflatten(diagonal)]
        client.check("block_traces_per_tensor", sums, **tolerance)
        diagonals.append(diagonal)

        published.append(_check_official(case, client, tolerance))
    _check_pairs(case, "exact_diag", diagonals)
    _check_pairs(case, "fedalign_per_tensor", published)
    case.check_all_read(r"loader[._].*")


@replay.parametrize_variants(
    {name: _clients(replay.Case(name, "float64")) for name in replay.names("K_*")},
    default="client0",
)
def test_estimates_of_a_client(name, variant, dtype):
    case = replay.Case(name, dtype)
    ours = _Client(case, *_network(case), variant).hessian
    estimate = ours.trace(tolerance=0.05)
    true_trace = float(case.result(f"{variant}.trace"))
    assert abs(estimate.mean - true_trace) < 4 * estimate.standard_error

    exact = case.result(f"{variant}.eigenvalues_ascending")
    grid, density = ours.spectral_density(samples=30)
    np.testing.assert_allclose(integrate.trapezoid(density, grid), 1.0, atol=1e-6)
    spread = np.sqrt(np.mean(np.square(exact)) / 30)
    assert abs(integrate.trapezoid(grid * density, grid) - np.mean(exact)) < 3 * spread


def _check_official(case, client, tolerance):
    """Products in the runs of both codes; returns the authors' 'diagonal'."""
    probes = case.plain("rademacher").astype(np.float64)
    images = [client.times(probe) for probe in probes]
    values = np.sum(probes * images, axis=1)
    client.check("trace_vhv_all100", values, **tolerance)
    count = _stopped_trace(values)
    starts = case.plain("power_iteration_start")
    for text in ("tol1e-3", "tol1e-12"):
        # Changes smaller than that are rounding in float32, and never end.
        smallest = 1e-6 if case.dtype == "float32" else 0.0
        accuracy = max(float(text[len("tol") :]), smallest)
        found, products = _power_iteration(client.times, starts, accuracy, 2)
        for code in ("official", "fedalign_copy"):
            key = f"{code}.{text}"
            client.check(f"{key}.eigenvalues_top2", found, rtol64=1e-8, rtol32=1e-3)
            expected = case.result(f"{client.name}.{key}.hessian_vector_products")
            assert products == expected or case.dtype == "float32"
    for code in ("official", "fedalign_copy"):
        client.check(f"{code}.trace_vhv", values[:count], **tolerance)
        client.check(f"{code}.trace_mean", np.mean(values[:count]), **tolerance)
    terms = probes[:count] * images[:count]
    shapes = [s[s > 0] for s in case.plain("param_shapes")]
    ends = np.cumsum([0, *(np.prod(shape) for shape in shapes)])
    per_tensor = [
        np.mean(np.sum(terms[:, begin:end], axis=1))
        for begin, end in zip(ends, ends[1:])
    ]
    client.check("fedalign_copy.diag_per_tensor", per_tensor, **tolerance)
    return per_tensor


def _check_pairs(case, key, vectors):
    ours = analysis.hessian_dissimilarity(vectors)
    theirs = analysis.published_hessian_dissimilarity(vectors)
    tolerance = dict(rtol64=1e-8, rtol32=1e-4)
    for short, index in (("H_N", 0), ("H_D", 1)):
        case.check(f"{key}.{short}_pairs", ours[index + 2], **tolerance)
        case.check(f"{key}.{short}_mean_distinct", ours[index], **tolerance)
        case.check(
            f"{key}.{short}_mean_all_ordered_incl_self", theirs[index], **tolerance
        )


@replay.parametrize("K_*")
def test_all_examples_of_a_loader_count(name, dtype):
    case = replay.Case(name, dtype)
    model, sizes = _network(case)
    phases, loader = case.config["phases"], case.config["loader"]
    client = f"client{phases.index(loader['phase'])}"
    model.set_weights(mlp.unflatten(case.result(f"{client}.params"), sizes, case.dtype))
    assert len(case.plain("loader_x")) == loader["n"]
    vector = case.plain("rademacher")[0].astype(np.float64)
    first_ten = 10 * loader["batch"]
    for key, examples in (("official", None), ("fedalign_copy", first_ten)):
        # Other batches than the case's: the mean does not depend on them.
        ours = _hessian(case, model, "loader_", examples, batch_size=5)
        flat = _ours(case, sizes, vector)
        image = ours.product(flat)
        case.check(
            f"loader.{key}.Hv",
            mlp.flatten(ours.unflatten(image)),
            rtol64=1e-8,
            rtol32=2e-5,
        )
        case.check(f"loader.{key}.vHv", flat @ image, rtol64=1e-8, rtol32=1e-4)
        exact = f"exact_first{examples}" if examples else f"exact_all{loader['n']}"
        case.check(f"loader.{exact}.vHv", flat @ image, rtol64=1e-8, rtol32=1e-4)
        values, _ = ours.top_eigenvalues(6)
        case.check(
            f"loader.{exact}.top_eigenvalue", max(values), rtol64=1e-4, rtol32=1e-4
        )
    own = (r"client\d+\..*", r"exact_diag\..*", r"fedalign_per.*")
    case.check_all_read("[xy]", "power_iteration_start", *own)
