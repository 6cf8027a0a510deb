"""Terms, changed logits and single clients of the M files."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.golden import algorithms, clients, replay
from tff_reg import methods, models, training as training_lib
from tff_reg.methods import feddecorr, feddisco, feduv, method as method_lib
from tff_reg.models import learning_model, simplex
from tff_reg.training import local_training

pytestmark = pytest.mark.usefixtures("in_process")

TOLERANCE = dict(rtol64=1e-10, rtol32=1e-5)
UNIFORM = tff.learning.ClientWeighting.UNIFORM


def _check(case, key, compute, *inputs, atol32=0.0):
    """Compares a value, and its gradients for the inputs."""
    inputs = [tf.constant(value) for value in inputs]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = compute(*inputs)
    atol = 0.0 if case.dtype == "float64" else atol32
    case.check(f"{key}.loss", value, atol=atol, **TOLERANCE)
    gradients = tape.gradient(
        value, inputs, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    for i, gradient in enumerate(gradients):
        # Where all entries cancel, what is left of them is rounding.
        atol = 1e-10 if case.dtype == "float64" else 1e-6
        case.check(f"{key}.grad{i}", gradient, atol=atol, **TOLERANCE)


def _labels(case, key):
    return case.plain(key).astype(np.int32)


def _calibrated(case, method, name):
    """The cross-entropy of the logits that a method has changed."""
    labels = _labels(case, f"{name}.labels")
    counts = tf.constant(_labels(case, f"{name}.class_counts"))

    def loss(logits):
        changed = method.change_logits(logits, counts)
        return learning_model.sparse_cross_entropy(labels, changed)

    return loss


# The files of server optimisers are not replayed here.
_KNOWN = (
    r"M_(server_optimizers|fedlc|fedrs|fedetf|feduv|feddecorr|fed\w+_client|asd|fedrcl"
    r"|fedvls|feddisco)"
)


@pytest.mark.golden
def test_every_file_is_known():
    for name in replay.names("M_*"):
        if not re.fullmatch(_KNOWN, name):
            replay.not_compared(name, ["all of it"])


@replay.parametrize("M_fedlc")
def test_fedlc(name, dtype):
    case = replay.Case(name, dtype)
    for key, config in case.config["cases"].items():
        of_case = key.partition(".")[0]
        loss = _calibrated(case, methods.FedLC(strength=config["tau"]), of_case)
        _check(case, key, loss, case.floats(f"{of_case}.logits"))
    case.check_all_read()


@replay.parametrize("M_fedrs")
def test_fedrs(name, dtype):
    case = replay.Case(name, dtype)
    for key, config in case.config["cases"].items():
        of_case = key.partition(".")[0]
        for scaling in ("binary", "frequency"):
            method = methods.FedRS(factor=config["alpha"], scaling=scaling)
            loss = _calibrated(case, method, of_case)
            _check(case, f"{key}.{scaling}", loss, case.floats(f"{of_case}.logits"))
    case.check_all_read()


@replay.parametrize("M_fedetf")
def test_fedetf(name, dtype):
    _check_fedetf(replay.Case(name, dtype))


def _check_fedetf(case):
    dtype = case.dtype
    for key, config in case.config["cases"].items():
        directions = case.plain(f"{key}.prototypes_float32")
        made = simplex.frame(case.plain(f"{key}.uniform_matrix"))
        np.testing.assert_allclose(made, directions, rtol=0, atol=5e-7)
        directions = directions.astype(dtype)
        labels = _labels(case, f"{key}.labels")
        inputs = [case.floats(f"{key}.embedding"), case.floats(f"{key}.scaling")]
        assert inputs[1] == config["scaling"]
        method = methods.FedETF(scaling=config["scaling"])
        balanced = _calibrated(case, method, key)

        def logits(embedding, scaling, directions=directions):
            return simplex.logits(embedding, directions, scaling)

        def plain(*inputs, labels=labels, logits=logits):
            return learning_model.sparse_cross_entropy(labels, logits(*inputs))

        _check(case, f"{key}.plain", plain, *inputs)
        _check(
            case,
            f"{key}.balanced",
            lambda *inputs, loss=balanced, logits=logits: loss(logits(*inputs)),
            *inputs,
        )
    case.check_all_read()


@replay.parametrize("M_feduv")
def test_feduv(name, dtype):
    case = replay.Case(name, dtype)
    for key, config in case.config["cases"].items():
        classes = config["classes"]
        method = methods.FedUV(
            variance_per_class=config["std_coeff"] / classes,
            uniformity=config["unif_coeff"],
        )
        case.check(f"{key}.threshold", classes**-0.5, **TOLERANCE)

        def total(logits, features, method=method):
            outputs = models.Outputs([features, logits], features, logits, ())
            return method.term(methods.Step(None, outputs)).weighted

        def variance(logits, features):
            return feduv.missing_deviation(tf.nn.softmax(logits))

        def spread(logits, features):
            return feduv.uniformity(features)

        inputs = [case.floats(f"{key}.{what}") for what in ("logits", "features")]
        _check(case, f"{key}.total", total, *inputs)
        _check(case, f"{key}.variance_only", variance, *inputs)
        _check(case, f"{key}.uniformity_only", spread, *inputs)
    case.check_all_read()


@replay.parametrize("M_feddecorr")
def test_feddecorr(name, dtype):
    case = replay.Case(name, dtype)
    for key in case.config["cases"]:

        def pooled(features):
            if features.shape.rank == 4:
                features = tf.reduce_mean(features, [2, 3])
            return feddecorr.correlation(features)

        features = case.floats(f"{key}.features")
        if key == "two" and dtype == "float32":
            # The gradient is nil, and rounding is divided by small deviations.
            np.testing.assert_allclose(
                pooled(tf.constant(features)), case.result("two.loss"), rtol=1e-5
            )
            continue
        _check(case, key, pooled, features)
    _check_total(case)
    case.check_all_read(r"two\..*")


def _check_total(case):
    method = methods.FedDecorr(strength=case.config["strength_in_total"])
    labels = _labels(case, "total.labels")
    features = tf.constant(case.floats("total.features"))
    classifier = tf.constant(case.floats("total.classifier"))
    with tf.GradientTape() as tape:
        tape.watch([features, classifier])
        logits = tf.matmul(features, classifier, transpose_b=True)
        ce = learning_model.sparse_cross_entropy(labels, logits)
        outputs = models.Outputs([features, logits], features, logits, ())
        term = method.term(methods.Step(None, outputs))
        total = ce + term.weighted
    gradients = tape.gradient(total, [features, classifier])
    values = dict(ce=ce, term=term.raw, loss=total)
    values.update(zip(("grad_features", "grad_classifier"), gradients))
    for what, value in values.items():
        case.check(f"total.{what}", value, **TOLERANCE)


def _step(case, name, logits, reads):
    """The step of a case of client logits, global logits, labels and class counts.

    No other model is known than that which the method `reads`.
    """
    received = tf.constant(case.floats(f"{name}.global_logits"))
    outputs = models.Outputs([received], received, received, ())
    return methods.Step(
        None,
        models.Outputs([logits], logits, logits, ()),
        labels=_labels(case, f"{name}.labels"),
        class_counts=tf.constant(_labels(case, f"{name}.class_counts")),
        outputs_of={reads: outputs}.__getitem__,
    )


@replay.parametrize("M_asd")
def test_asd(name, dtype):
    case = replay.Case(name, dtype)
    for of_case, settings in case.config["cases"].items():
        for setting, config in settings.items():
            method = algorithms.asd(config)

            def total(logits, method=method, of_case=of_case):
                step = _step(case, of_case, logits, method_lib.EVALUATED)
                ce = learning_model.sparse_cross_entropy(step.labels, logits)
                return ce + method.term(step).weighted

            _check(
                case, f"{of_case}.{setting}", total, case.floats(f"{of_case}.logits")
            )
    case.check_all_read()


@replay.parametrize("M_fedvls")
def test_fedvls(name, dtype):
    case = replay.Case(name, dtype)
    factor = case.config["suppression_factor_included"]
    method = methods.FedVLS(distillation=2.0, suppression=factor)
    for of_case in case.config["cases"]:

        def distillation(logits, of_case=of_case):
            term = method.term(_step(case, of_case, logits, method_lib.GLOBAL))
            suppressed = method.suppression * term.measurements["suppression"]
            return (term.raw - suppressed) / method.distillation

        def suppression(logits, of_case=of_case):
            step = _step(case, of_case, logits, method_lib.GLOBAL)
            measured = method.term(step).measurements
            return method.suppression * measured["suppression"]

        logits = case.floats(f"{of_case}.logits")
        prior = _calibrated(case, method, of_case)
        _check(case, f"{of_case}.prior_ce", prior, logits)
        _check(case, f"{of_case}.suppression", suppression, logits)
        _check(case, f"{of_case}.distillation", distillation, logits)
    case.check_all_read()


@replay.parametrize("M_fedrcl")
def test_fedrcl(name, dtype):
    case = replay.Case(name, dtype)
    for of_case, settings in case.config["cases"].items():
        labels = _labels(case, f"{of_case}.labels")
        for setting, config in settings.items():
            method = methods.FedRCL(
                temperature=config["temperature"],
                negatives=config["hardest_negatives"],
                threshold=config["threshold"],
            )
            for what, ours in (("scl", "contrast"), ("penalty", "penalty")):

                def part(features, method=method, labels=labels, ours=ours):
                    if features.shape.rank == 4:
                        features = tf.transpose(features, [0, 2, 3, 1])
                    outputs = models.Outputs(
                        [features, None], None, None, (), [features]
                    )
                    step = methods.Step(None, outputs, labels=labels)
                    return method.term(step).measurements[ours]

                features = case.floats(f"{of_case}.features")
                _check(case, f"{of_case}.{setting}.{what}", part, features, atol32=1e-6)
    case.check_all_read()


@replay.parametrize("M_feddisco")
def test_feddisco(name, dtype):
    case = replay.Case(name, dtype)
    for of_case, settings in case.config["cases"].items():
        selected = case.plain(f"{of_case}.selected")
        counts = case.floats(f"{of_case}.class_counts")[selected]
        target = case.floats(f"{of_case}.target")
        for setting, config in settings.items():
            method = methods.FedDisco(
                strength=config["a"],
                offset=config["b"],
                difference=config["difference"],
            )
            skews = [feddisco.skew(own, method.difference, target) for own in counts]
            total = {"examples": tf.reduce_sum(counts), "skew": tf.add_n(skews)}
            is_relative = method.difference == "kl"
            relative = tf.math.divide_no_nan(skews, total["skew"])
            weights = np.array(
                [
                    method.weigh({"examples": tf.reduce_sum(own), "skew": one}, total)
                    for own, one in zip(counts, skews)
                ]
            )
            weights /= weights.sum()
            average = weights @ case.floats(f"{of_case}.client_params")[selected]
            for what, value in (
                ("difference", relative if is_relative else skews),
                ("weights", weights),
                ("average", average),
            ):
                atol = 0.0 if case.dtype == "float64" else 1e-6
                case.check(
                    f"{of_case}.{setting}.{what}", value, rtol64=1e-10, atol=atol
                )
    case.check_all_read()


def _replay_client(
    case, method, config, sizes, initial, prefix="", clip=None, has_bias=True
):
    """Every recorded step of one client, each from the recorded weights before it."""
    x, y = case.floats("x"), _labels(case, "y")
    after = case.result(f"{prefix}trace.params_after_each_step")
    gradients = case.result(f"{prefix}trace.grad_seen_by_optimizer")
    training = local_training.LocalTraining(
        optimizer=training_lib.build_sgd(
            config["lr"], config["momentum"], weight_decay=config["weight_decay"]
        ),
        methods=[method],
        max_gradient_norm=clip,
        data_form=training_lib.WholeClientData(batch_size=config["batch"]),
    )
    client = clients.Client(sizes, case.dtype, training, UNIFORM, has_bias=has_bias)
    client.begin(initial, clients.data_set(x, y))
    begins = range(0, len(y), config["batch"])
    rtol = 1e-10 if case.dtype == "float64" else 1e-5
    weights = initial
    for i, expected in enumerate(after):
        begin = begins[i % len(begins)]
        rows = slice(begin, begin + config["batch"])
        step = client.step(weights, x[rows], y[rows])
        np.testing.assert_allclose(step.clipped, gradients[i], rtol=rtol, atol=rtol)
        np.testing.assert_allclose(step.weights, expected, rtol=rtol, atol=rtol)
        weights = expected
    return gradients


@replay.parametrize("M_fed*_client")
def test_a_client(name, dtype):
    _check_client(replay.Case(name, dtype))


def _check_client(case):
    name, config = case.name, case.config
    if "decorr" in name:
        for variant, own in config.items():
            method = methods.FedDecorr(strength=own["feddecorr_coef"])
            initial = case.plain("initial_params")
            _replay_client(case, method, own, own["mlp"], initial, f"{variant}.")
        case.check_all_read()
        return
    counts = case.plain("class_counts")
    # Which the client counts itself.
    found = np.bincount(case.plain("y"), minlength=len(counts))
    np.testing.assert_array_equal(counts, found)
    classifier = case.plain("classifier")
    sizes = classifier.shape[::-1]
    parameters = np.concatenate([classifier.ravel(), case.plain("bias")])
    if "own" in name:
        method = methods.FedRS(factor=config["alpha"], scaling="frequency")
        for variant, norm in config["clip"].items():
            own = (case, method, config, sizes, classifier.ravel())
            gradients = _replay_client(*own, f"{variant}.", norm, has_bias=False)
            is_clipped = np.linalg.norm(gradients, axis=1) > 0.99 * norm
            assert is_clipped.any() == (variant == "clip")
    elif "fedrs" in name:
        method = methods.FedRS(factor=config["restricted_strength"])
        _replay_client(case, method, config, sizes, parameters)
    else:
        method = methods.FedLC(strength=config["calibration_temp"])
        _replay_client(case, method, config, sizes, parameters)
    case.check_all_read()
