"""The checks for a method of one's own: those of the tutorial pass, others fail."""

import dataclasses
import importlib
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests import documents
from tff_reg import methods, runtime, settings, testing

_FOLDER = documents.ROOT / "docs" / "examples" / "methods"


@pytest.fixture(scope="module")
def tutorial():
    """The tutorial's own tests, as a module."""
    sys.path.insert(0, str(_FOLDER))
    try:
        yield importlib.import_module("test_methods")
    finally:
        sys.path.remove(str(_FOLDER))
        for name in ("test_methods", "ahead", "variates"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "name",
    [
        "test_without_a_radius_it_is_fedavg",
        "test_variates_compute_what_scaffold_does",
        # They build several processes.
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "test_variates_are_kept_between_rounds",
                "test_both_go_together",
            )
        ),
    ],
)
def test_the_tutorials_tests_pass(tutorial, name):
    getattr(tutorial, name)()


def test_the_tutorial_names_all_its_tests(tutorial):
    found = [name for name in vars(tutorial) if name.startswith("test_")]
    assert len(found) == 4


@dataclasses.dataclass(frozen=True)
class _Shrink(methods.Method):
    name = "shrink"
    strength: float = settings.setting(0.5, help="Factor.", minimum=0)

    def correct(self, local, gradient):
        return [g + self.strength * w for g, w in zip(gradient, local.weights)]


@dataclasses.dataclass(frozen=True)
class _Exploding(methods.Method):
    name = "exploding"

    def correct(self, local, gradient):
        """Divides by the distance from the start, 0 in a client's first step."""
        found = zip(gradient, local.weights, local.start, strict=True)
        return [g / tf.reduce_sum(abs(w - s)) for g, w, s in found]


_ROUNDS: list[int] = []


@dataclasses.dataclass(frozen=True)
class _Forgetful(methods.Method):
    """Counts how often it was built, where no state can be resumed from."""

    name = "forgetful"

    def adapt_network(self, network):
        _ROUNDS.append(1)

    def correct(self, local, gradient):
        return [len(_ROUNDS) * g for g in gradient]


def test_assert_fedavg_reports_the_difference():
    with pytest.raises(AssertionError, match="shrink is not FedAvg: weight 0 .* by up"):
        testing.assert_fedavg(_Shrink(), rounds=1)


def test_a_combination_with_rejected_clients_is_told():
    with pytest.raises(AssertionError, match="fedprox.exploding: 3 clients rejected"):
        testing.assert_combinations(_Exploding(), names=["fedprox"])
    with pytest.raises(AssertionError, match="goes with none of fedsam"):
        testing.assert_combinations(methods.FedASAM(), names=["fedsam"])


def test_hidden_state_is_found_by_resuming():
    with pytest.raises(AssertionError, match="forgetful resumed differs: weight 0"):
        testing.assert_resumes(_Forgetful())


def test_a_step_of_arrays_gives_a_term_by_hand():
    step = testing.step(
        logits=[[0.0, 0.0]], of_models={"global": [[np.log(3.0), 0.0]]}, labels=[0]
    )
    term = methods.KD(strength=2.0).term(step)
    # KL((3/4, 1/4) || (1/2, 1/2)).
    expected = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    np.testing.assert_allclose(term.raw, expected, rtol=1e-12)
    np.testing.assert_allclose(term.weighted, 2 * expected, rtol=1e-12)


def test_hooks_run_eagerly_for_a_debugger_with_the_same_numbers():
    seen: list[float] = []

    def term(self, step):
        value = tf.reduce_mean(step.outputs.logits**2)
        if step.task_loss > 0.0:  # Only possible where values are known.
            seen.append(float(step.task_loss))
        return 0.1 * value

    def traced_term(self, step):
        return 0.1 * tf.reduce_mean(step.outputs.logits**2)

    def make(term):
        cls = type("Mine", (methods.Method,), {"name": "mine", "term": term})
        return dataclasses.dataclass(frozen=True)(cls)()

    with pytest.raises(methods.HookError, match="^mine.term .*tf.where or tf.cond"):
        testing.train([make(term)], rounds=1)
    seen.clear()
    eager = testing.train([make(term)], rounds=1, debug_eager=True)
    assert len(seen) >= 3 * 4
    traced = testing.train([make(traced_term)], rounds=1)
    for one, other in zip(eager.weights, traced.weights):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_hooks_that_run_eagerly_are_those_of_one_client_at_a_time():
    inside, most = [], []

    @dataclasses.dataclass(frozen=True)
    class Mine(methods.Method):
        name = "mine"

        def term(self, step):
            inside.append(1)
            most.append(len(inside))
            total = tf.reduce_sum([tf.reduce_sum(w**2) for w in step.weights])
            inside.pop()
            return 0.0 * total

    with runtime.running("in_process", clients_in_parallel=3):
        process = testing.build([Mine()], debug_eager=True)
        most.clear()
        process.next(process.initialize(), [testing.client(n) for n in range(6)])
    assert max(most) == 1
