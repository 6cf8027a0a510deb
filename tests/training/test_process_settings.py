"""What a process is built from: a paper's settings, else the defaults."""

import pytest

from tff_reg import settings, training
from tff_reg.methods import catalogue


def test_settings_are_the_papers_else_the_defaults():
    found = training.ProcessSettings.of("fedalign")
    paper = catalogue.settings("fedalign")
    given = {s.name for s in settings.settings_of(found)} & paper.keys()
    assert {name: getattr(found, name) for name in given} == {
        n: paper[n] for n in given
    }
    assert len(given) == 10
    assert found.learning_rate_schedule == "constant"
    assert found.client_weighting == "num_examples"
    assert training.ProcessSettings.of("fedprox").max_gradient_norm is None
    # Nesterov's form is the paper's, and has no meaning without momentum.
    assert found.client_nesterov
    plain = training.ProcessSettings.of("fedalign", client_momentum=0.0)
    assert not plain.client_nesterov
    listed = {"learning_rate_schedule": "listed", "client_learning_rates": (0.3, 0.1)}
    # Drift corrections divide by it.
    assert training.ProcessSettings.of("scaffold", **listed).client_learning_rate == 0.3


@pytest.mark.parametrize(
    "process, kind, betas",
    [
        ("fedadam", "adam", (0.9, 0.99)),
        ("fedadagrad", "adagrad", (0.0, 0.99)),
    ],
)
def test_the_adaptive_servers_are_processes(process, kind, betas):
    found = training.ProcessSettings.of(process)
    assert found.server_optimizer == kind
    assert (found.server_beta1, found.server_beta2) == betas
    assert (found.server_learning_rate, found.server_epsilon) == (0.01, 1e-3)
