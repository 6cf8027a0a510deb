"""Imports Keras when something uses it, not with TensorFlow and TFF.

TensorFlow imports Keras at the end of its own import, which takes more than a third of
it, and TFF reads `tf.keras` in the bodies of its modules. Runs on our networks need no
Keras. So

*   while TensorFlow is imported, an import of Keras fails, which TensorFlow allows for;
*   while TFF is imported, its `tf.keras` is a stand-in with empty classes;
*   afterwards TFF's modules on Keras models find Keras 2 there, for which they are
    written, whatever `tf.keras` is for others; TFF's sub-classes of Keras's classes are
    then made anew.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

_LEARNING = "tensorflow_federated.python.learning"
_SIMULATION = "tensorflow_federated.python.simulation"
# Reads the weights of our models, too, and has to tell Keras models from them.
_WEIGHTS = f"{_LEARNING}.models.model_weights"
_COUNTERS = f"{_LEARNING}.metrics.counters"
_OF_COUNTERS = ("NumExamplesCounter", "NumBatchesCounter")
_SUBCLASSES = (_COUNTERS, f"{_SIMULATION}.baselines.keras_metrics")
KERAS_2 = "tf_keras"


class Refusing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder by which imports of Keras fail; TensorFlow asks for its place only."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in ("keras", KERAS_2):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None:
            spec.loader = self
        return spec

    def exec_module(self, module):
        raise ImportError("Keras is imported when it is first used.")


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Lets imports of Keras fail in the body of a `with` statement."""
    finder = Refusing()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Empty(type):
    """The class of the stand-in for Keras and of all that is in it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Empty(name, (), {})


class _TensorFlow(types.ModuleType):
    """TensorFlow with another `keras`."""

    def __init__(self, tensorflow: types.ModuleType, keras: Callable[[], Any]):
        super().__init__(tensorflow.__name__)
        vars(self).update(_tensorflow=tensorflow, _keras=keras)

    def __getattr__(self, name: str) -> Any:
        return self._keras() if name == "keras" else getattr(self._tensorflow, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._tensorflow, name, value)


@contextlib.contextmanager
def given_to_tff(keras_2: Callable[[], Any]) -> Iterator[None]:
    """Gives TFF, imported in the body, no Keras, and that of `keras_2` afterwards."""
    tensorflow = sys.modules["tensorflow"]
    stand_in = _Empty("keras", (), {})
    without = _TensorFlow(tensorflow, lambda: stand_in)
    sys.modules["tensorflow"] = without
    try:
        yield
    finally:
        sys.modules["tensorflow"] = tensorflow

    def found() -> Any:
        keras = keras_2()
        _derive_from(keras, tensorflow)
        return keras

    def found_if_imported() -> Any:
        return found() if KERAS_2 in sys.modules else stand_in

    of_keras_models = _TensorFlow(tensorflow, found)
    of_weights = _TensorFlow(tensorflow, found_if_imported)
    for name, module in list(sys.modules.items()):
        if vars(module).get("tf") is without:
            is_of_models = name.startswith((_LEARNING, _SIMULATION))
            given = of_keras_models if is_of_models else tensorflow
            vars(module)["tf"] = of_weights if name == _WEIGHTS else given

    def counter(name: str) -> Any:
        if name not in _OF_COUNTERS:
            raise AttributeError(f"TFF's metrics have no attribute {name!r}")
        found()
        return getattr(sys.modules[_COUNTERS], name)

    metrics = vars(sys.modules[f"{_LEARNING}.metrics"])
    for name in _OF_COUNTERS:
        del metrics[name]
    metrics["__getattr__"] = counter


def _derive_from(keras: Any, tensorflow: types.ModuleType) -> None:
    """Makes TFF's sub-classes of Keras's classes anew, once, from those of `keras`."""
    counters = sys.modules[_COUNTERS]
    if issubclass(getattr(counters, _OF_COUNTERS[0]), keras.metrics.Metric):
        return
    sys.modules["tensorflow"] = _TensorFlow(tensorflow, lambda: keras)
    try:
        for name in _SUBCLASSES:
            if name in sys.modules:
                importlib.reload(sys.modules[name])
    finally:
        sys.modules["tensorflow"] = tensorflow
