"""Defaults and settings are those of the papers, typed from their text and code.

Nothing here comes from the library, so that a changed number shows.
"""

import pytest

from tff_reg.methods import catalogue, papers

# Every number among the defaults; what is chosen by a word has its tests elsewhere.
DEFAULTS = {
    "asd": dict(
        strength=2,
        temperature=2,
        label_exponent=1,
        entropy_factor=1,
        entropy_temperature=1,
    ),
    "fedacg": dict(strength=1e-3, momentum=0.85, epoch_decay=1),
    "fedalign": dict(strength=0.45, width=0.25, power_iterations=10),
    "fedasam": dict(radius=0.5, offset=0.2),
    "fedcm": dict(share=0.1),
    "feddc": dict(strength=0.01),
    "feddecorr": dict(strength=0.1),
    "feddisco": dict(strength=0.5, offset=0.1),
    "feddyn": dict(strength=0.01),
    "fedetf": dict(scaling=10),
    "fedexp": dict(epsilon=1e-3, decay=0.998),
    "fedgamma": dict(radius=0.05),
    "fedgkd": dict(strength=0.2, temperature=1, averaged_rounds=5),
    "fedgloss": dict(
        radius=0.15, server_radius=0.15, beta=10, warmup_rounds=1, first_radius=1e-3
    ),
    "fedinit": dict(strength=0.1),
    "fedlc": dict(strength=1),
    "fedlesam": dict(radius=0.1),
    "fedlesams": dict(radius=0.1, strength=0.1),
    "fedmlb": dict(strength=1, cross_entropy=1, distillation=1, temperature=1),
    "fedmoswa": dict(share=0.4),
    "fednar": dict(strength=0.05),
    "fednova": dict(proximal=0, server_momentum=0),
    "fedntd": dict(strength=1, temperature=1, cross_entropy=1),
    "fedproto": dict(strength=1),
    "fedprox": dict(strength=1e-4),
    "fedrcl": dict(
        strength=1,
        contrast=1,
        penalty=1,
        temperature=0.05,
        threshold=0.7,
        negatives=2,
        epoch_decay=1,
    ),
    "fedrs": dict(factor=0.5),
    "fedsam": dict(radius=0.05),
    "fedsmoo": dict(strength=0.1, radius=0.1),
    "fedsol": dict(radius=1, temperature=3),
    "fedspeed": dict(strength=0.01, radius=0.01),
    "feduv": dict(strength=1, variance_per_class=0.25, uniformity=0.5),
    "fedvls": dict(strength=1, distillation=1, suppression=0.005),
    "ditto": dict(strength=1),
    "fedper": dict(layers=1),
    "fedrep": dict(head_share=10 / 11),
    "pfedme": dict(strength=15, steps=5, learning_rate=0.09),
    "fedwmsam": dict(share=0.1, radius=0.1, decay=0.998),
    "fitnet": dict(strength=1),
    "gradaug": dict(strength=1.75, subnetworks=2, minimum_width=0.8),
    "kd": dict(strength=1, temperature=1),
    "man": dict(strength=0.15),
    "mixup": dict(concentration=0.1),
    "mofedsam": dict(share=0.1, radius=0.1),
    "moon": dict(strength=1, temperature=0.5),
    "stochdepth": dict(survival_probability=0.9),
    "univarfl": dict(strength=1, energy=0.5, variance_per_class=0.25, epsilon=1e-3),
}
_ROUNDS = (
    *("num_clients", "clients_per_round", "total_rounds", "local_epochs"),
    *("batch_size", "concentration", "client_learning_rate", "learning_rate_schedule"),
    *("learning_rate_decay", "client_momentum", "client_weight_decay"),
    "max_gradient_norm",
)
_NONE = None
# Clients, of which in a round, rounds, epochs, batch, Dirichlet's alpha, rate, its
# schedule and decay, momentum, weight decay, clipping norm.
PAPERS = {
    "FEDALIGN": (16, 16, 25, 20, 64, 0.5, 0.01, "constant", _NONE, 0.9, 1e-4, _NONE),
    "MAN": (100, 10, 500, 5, 50, 0.3, 0.1, "exponential", 0.998, 0, 1e-3, 10),
    "FEDMLB": (100, 5, 1000, 5, 50, 0.3, 0.1, "exponential", 0.998, 0, 1e-3, 10),
    "ADAPTIVE": (100, 5, 1000, 5, 50, 0.3, 0.01, "exponential", 0.998, 0, 1e-3, 10),
    "UNIVARFL": (10, 10, 100, 10, 128, 0.01, 0.01, "cosine", _NONE, 0.9, 1e-5, _NONE),
    "FL_SIMULATOR": (100, 10, 1000, 5, 50, 0.6, 0.1, "exponential", 0.998, 0, 1e-3, 10),
    "FEDNAR": (100, 10, 500, 5, 50, 0.3, 0.01, "exponential", 0.998, 0, 0, 10),
    "FEDEXP": (100, 10, 500, 5, 50, 0.3, 0.01, "exponential", 0.998, 0, 1e-4, 10),
    "FEDGLOSS": (100, 10, 500, 1, 64, 0.3, 0.01, "constant", 0.998, 0, 4e-4, _NONE),
    "FEDSWA": (100, 10, 500, 5, 50, 0.3, 0.1, "cosine", 0.998, 0, 1e-3, 10),
    "FEDDECORR": (10, 10, 100, 10, 64, 0.05, 0.01, "constant", _NONE, 0.9, 1e-5, _NONE),
    "FEDACG": (100, 5, 1000, 5, 50, 0.3, 0.1, "exponential", 0.995, 0, 1e-3, 10),
    "FEDNOVA": (16, 16, 25, 20, 64, 0.5, 0.02, "constant", _NONE, 0.9, 1e-4, _NONE),
    "FEDSOL": (100, 10, 500, 5, 50, 0.3, 0.01, "exponential", 0.99, 0.9, 1e-5, _NONE),
    "FEDRCL": (100, 5, 1000, 5, 50, 0.3, 0.1, "exponential", 0.998, 0, 1e-3, 10),
    "FEDVLS": (100, 10, 500, 10, 64, 0.3, 0.01, "constant", 0.998, 0.9, 0, _NONE),
    "FEDETF": (20, 20, 200, 3, 128, 0.3, 0.04, "constant", _NONE, 0.9, 5e-4, _NONE),
}
# The papers' other settings: splits, sampling and the kind of momentum.
_CLIENTS = dict(client_sampling="fixed", partition="dirichlet_balanced")
_SPLIT_OF_FEDMLB = dict(client_sampling="fixed", partition="dirichlet_sequential")
_UNBALANCED = dict(partition="dirichlet_unbalanced")
OTHERS = {
    **dict.fromkeys(PAPERS, _CLIENTS),
    **dict.fromkeys(("FEDMLB", "ADAPTIVE", "FEDACG"), _SPLIT_OF_FEDMLB),
    **dict.fromkeys(("FEDALIGN", "FEDDECORR"), _UNBALANCED | {"client_nesterov": True}),
    "FEDNOVA": _UNBALANCED | {"client_nesterov": False},
    "FEDETF": dict(partition="dirichlet_balanced"),
    "FEDRCL": _SPLIT_OF_FEDMLB | {"client_weighting": "uniform"},
    "MAN": _CLIENTS | {"client_sampling": "independent"},
    "UNIVARFL": _UNBALANCED | {"client_nesterov": False, "projector": "feduv"},
}


def test_every_default_that_is_a_number_is_the_papers():
    found = {}
    for name, each in catalogue.hyperparameters():
        is_number = each.type in (int, float) and not each.is_tuple
        if is_number and each.default is not None:
            found.setdefault(name, {})[each.name] = each.default
    ours = {name: own for name, own in found.items() if name in catalogue.BUILTIN}
    assert ours == DEFAULTS


@pytest.mark.parametrize("name", PAPERS)
def test_the_settings_of_a_paper_are_its_own(name):
    given = dict(zip(_ROUNDS, PAPERS[name]))
    expected = {key: value for key, value in given.items() if value is not None}
    assert dict(getattr(papers, name)) == {**expected, **OTHERS[name]}


def test_no_paper_is_left_out():
    kinds = {k for k, v in vars(papers).items() if isinstance(v, papers.Settings)}
    assert kinds == set(PAPERS)
