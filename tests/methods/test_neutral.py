"""A value of which a setting's help says that it is FedAvg is FedAvg."""

import dataclasses
import functools
import re

import numpy as np
import pytest

from tests import random_clients
from tests.training import every_method
from tff_reg import settings, training
from tff_reg.lazy import tff
from tff_reg.methods import catalogue, checks, method

pytestmark = pytest.mark.usefixtures("in_process")

# "0 is FedAvg.", "1 is FedAvg if lambda is 0 and prior is false."
_CLAIM = re.compile(r"([\d.]+) is FedAvg( if (?:[\w']+ is [\w.]+(?: and )?)+)?[.,]")
_CONDITION = re.compile(r"([\w']+) is ([\w.]+?)(?= and |$)")


def _claims():
    """(method's name, values by setting with which it is FedAvg), for each claim."""
    for name in every_method.NAMES:
        own = {s.setting.name: s.setting for s in catalogue.hyperparameters(name)}
        own |= {s.symbol: s for s in own.values()}
        for each in own.values():
            for value, conditions in _CLAIM.findall(each.help):
                pairs = [(each.name, value), *_CONDITION.findall(conditions)]
                yield name, {own[key].name: own[key].read(v) for key, v in pairs}


CLAIMS = [c for n, c in enumerate(_claims()) if c not in [*_claims()][:n]]


# Whose other choices need more layers, or do not go with FedDisco.
_AS_IT_IS = ("man_terms", "fedinit_average")


def _another(setting):
    """A value beside the default, if the setting's kind shows one."""
    if setting.type is bool:
        return not setting.default
    if setting.choices:
        return [each for each in setting.choices if each != setting.default][0]
    if setting.type is float and not setting.is_tuple:
        return 0.7 * setting.default or 0.3
    return setting.default


def _methods(others):
    """The methods of the claims, their other settings by default or not."""
    for name, values in CLAIMS:
        own = catalogue.find(name)(**values)
        for each in settings.settings_of(own):
            is_free = others and f"{name}_{each.name}" not in _AS_IT_IS
            if is_free and each.name not in values:
                own = dataclasses.replace(own, **{each.name: _another(each)})
        yield own


def _together(others):
    """As many of the methods at a time as go together."""
    left = list(_methods(others))
    while left:
        chosen = []
        for each in left:
            try:
                checks.check_combination([*chosen, each])
            except checks.IncompatibleMethodsError:
                continue
            chosen.append(each)
        left = [each for each in left if each not in chosen]
        yield chosen


def _model_fn():
    return every_method.model_fn(norm="group", dtype="float64")


def _two_rounds(methods, weighting):
    clients = random_clients.clients((8, 12), size=every_method.SIZE, dtype="float64")
    process = training.build_regularized(
        _model_fn,
        methods,
        training.build_sgd(0.1),
        client_weighting=tff.learning.ClientWeighting[weighting],
        client_data=training.WholeClientData(4, 2),
        max_gradient_norm=1.0,
        population=training.Population(2, mean_examples=10.0),
    )
    return every_method.run(process, clients, 2)[1]


@functools.cache
def _plain(weighting):
    return _two_rounds([], weighting)


def _names(methods):
    return "+".join(each.name for each in methods)


def test_no_help_says_it_in_other_words():
    for each in catalogue.hyperparameters():
        said = _CLAIM.sub("", each.setting.help)
        assert not re.search(r"FedAvg\b", said), each
    assert len(CLAIMS) > 25


@pytest.mark.parametrize(
    "methods",
    [*_together(False), *_together(True)],
    ids=_names,
)
def test_a_value_that_help_calls_fedavg_is_fedavg(methods):
    is_uniform = any(method.UNIFORM_WEIGHTING in each.needs for each in methods)
    weighting = "UNIFORM" if is_uniform else "NUM_EXAMPLES"
    for ours, plain in zip(_two_rounds(methods, weighting), _plain(weighting)):
        np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-9)
