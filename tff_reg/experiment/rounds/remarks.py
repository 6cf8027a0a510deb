"""Remarks on suspicious data and models, at the end of a run's header."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tff_reg.experiment.config import task_settings
from tff_reg.experiment.config.run_config import ResolvedConfig
from tff_reg.experiment.rounds import client_evaluation
from tff_reg.lazy import np, tree
from tff_reg.models import names

# Examples whose values are looked at for their scale.
_SOME = 2000
# Test examples have another scale if their deviation is so many times another.
_TIMES = 3
# Numbers from 0 to more than this are unscaled, such as bytes.
_LARGE = 100
# Tasks whose examples a Keras model takes as they are.
_RAW = (task_settings.OWN_DATA, "arrays")
_SCALING_LAYERS = ("Rescaling", "Normalization", "BatchNormalization")


def of(config: ResolvedConfig, task: Any) -> Iterator[str]:
    """Yields the remarks, one line each."""
    yield from getattr(task.model_fn, "said", ())
    clients, (x_test, y_test) = task.client_data, task.test_arrays()
    sizes = clients.client_sizes
    idle = np.count_nonzero(config.batches_of(sizes) == 0)
    if config.drop_remainder and idle:
        yield (
            f"{idle} of {len(sizes)} clients never train: they have fewer examples than"
            f" batch_size={config.batch_size}, and drop_remainder leaves these out"
        )
    if config.aggregator == "krum":
        yield from _of_krum(config)
    if config.model is None or names.is_file(config.model):
        yield from _of_model(config, task.model_fn.plan.model, x_test)
    if config.client_evaluation is not None:
        yield from _of_tested(config, task)
    if config.feature_noise and clients.arrays[0].dtype == np.float32:
        largest = float(np.abs(clients.arrays[0]).max())
        if largest > _LARGE:
            yield (
                f"feature_noise={config.feature_noise:g} is that of values in 0 to 1,"
                f" and the examples reach up to {largest:g}"
            )
    known = getattr(clients, "classes", None)
    if config.scale is not None:  # A part of the data may lack a class.
        return
    is_own = config.task in _RAW
    if known is not None:
        if strange := int((~np.isin(y_test, known)).sum()):
            yield (
                f"{strange} of {len(y_test)} test examples are of classes that no"
                " client has: check how the labels are numbered"
            )
        empty = np.setdiff1d(np.arange(len(task.class_names)), [*known, *y_test])
        if is_own and empty.size:
            yield (
                f"{empty.size} of {len(task.class_names)} classes, such as {empty[0]},"
                " have no example: number the classes from 0 without gaps"
            )
    if is_own and hasattr(clients, "client_examples"):
        yield from _of_examples(clients, x_test)


def _of_krum(config: ResolvedConfig) -> Iterator[str]:
    """Yields remarks on too few clients (Blanchard et al., NeurIPS 2017, Section 4)."""
    count, chosen = config.clients_per_round, config.krum_selected or 1
    malicious = math.ceil((config.malicious_share or 0) * count - 1e-6)
    if 2 * malicious + 2 >= count:
        yield (
            f"Krum proves nothing of {count} clients of which {malicious} may be"
            f" malicious: it takes more than {2 * malicious + 2}"
        )
    if chosen > count - malicious:
        yield (
            f"krum_selected={chosen} of {count} clients averages updates of the"
            f" {malicious} that may be malicious, too"
        )


def _of_tested(config: ResolvedConfig, task: Any) -> Iterator[str]:
    """Yields remarks on the measures of clients."""
    tested = client_evaluation.TestedClients(task, task.test_arrays()).is_tested
    what = "test examples of their own"
    if task.client_data.tests is None:
        what = "class of the test examples"
        if task.test_domains is not None:
            what += " in their domain"
        if config.feature_noise or config.rotations or config.hues:
            yield (
                "clients' accuracies are those on the clean test set, not on images"
                " like theirs: client_test_share=0.2 measures these"
            )
    if not tested.all():
        yield (
            f"{(~tested).sum()} of {tested.size} clients have no {what}: measures of"
            " clients leave them out"
        )


def _of_model(config: ResolvedConfig, model: Any, x: Any) -> Iterator[str]:
    if optimizer := getattr(model, "optimizer", None):
        yield (
            f"the model's optimizer ({type(optimizer).__name__}) is not used: clients"
            f" train by {config.client_optimizer} with learning rate"
            f" {config.client_learning_rate:g}"
        )
    kinds = {type(layer).__name__ for layer in model.layers}
    scales = kinds & {*_SCALING_LAYERS}
    if config.task not in _RAW:
        if scales - {"BatchNormalization"}:
            yield (
                f"the model has a {min(scales)} layer, and the images of {config.task}"
                " are normalised before they reach it"
            )
        return
    inputs = getattr(model, "inputs", None) or ()
    if scales or "int" in "".join(str(each.dtype) for each in inputs):  # Token ids.
        return
    for each in tree.flatten(x):
        most = f"{each.max():g}"
        if each.dtype == np.uint8 or each.max() > _LARGE and each.min() >= 0:
            yield (
                f"the model takes the examples as they are, numbers up to {most}: give"
                f" it a Rescaling layer, or the examples divided by {most}"
            )


def _of_examples(clients: Any, x_test: Any) -> Iterator[str]:
    """Yields remarks on scales, and on examples that are there more than once."""
    first: dict[int, str] = {}
    shared, some, count = 0, [], 0
    for name in clients.client_ids:
        x = tree.flatten(clients.client_examples(name)["x"])
        shared += sum(first.setdefault(each, name) != name for each in {*_hashes(x)})
        if count < _SOME:
            some.append([each[: _SOME - count] for each in x])
            count += len(x[0])
    tests = tree.flatten(x_test)
    if shared:
        yield f"{shared} examples are with more than one client"
    num_tests = len(tests[0])
    tested = sum(each in first for each in _hashes(tests))
    if tested:
        yield f"{tested} of {num_tests} test examples are training examples, too"
    for parts, test in zip(zip(*some), tests):
        pair = [np.concatenate(parts), test[:: max(1, num_tests // _SOME)]]
        (mean, spread), (other, of_test) = (
            (float(each.mean(dtype=np.float64)), float(each.std(dtype=np.float64)))
            for each in pair
        )
        is_like = spread / _TIMES <= of_test <= spread * _TIMES
        if not is_like or abs(other - mean) > _TIMES * spread:
            yield (
                f"training examples have the mean {mean:.3g} and the deviation"
                f" {spread:.3g}, test examples {other:.3g} and {of_test:.3g}: bring"
                " both to one scale"
            )


def _hashes(arrays: Sequence[Any]) -> Iterator[int]:
    """Yields a hash of each row of arrays."""
    for each in zip(*arrays):
        yield hash(b"".join(part.tobytes() for part in each))
