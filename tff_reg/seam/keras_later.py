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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_LEARNING = "tensorflow_federated.python.learning"
_SIMULATION = "tensorflow_federated.python.simulation"
# Reads the weights of our models, too, and has to tell Keras models from them.
_WEIGHTS = f"{_LEARNING}.models.model_weights"
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

    # TFF's own sub-classes of Keras's classes, by module.
    left: dict[str, list[str]] = {}

    def found() -> Any:
        keras = keras_2()
        _derive_from(keras, tensorflow, left)
        return keras

    def found_if_imported() -> Any:
        return found() if KERAS_2 in sys.modules else stand_in

    of_keras_models = _TensorFlow(tensorflow, found)
    of_weights = _TensorFlow(tensorflow, found_if_imported)
    for name, module in list(sys.modules.items()):
        if not name.startswith("tensorflow_federated"):
            continue
        if vars(module).get("tf") is without:
            is_of_models = name.startswith((_LEARNING, _SIMULATION))
            given = of_keras_models if is_of_models else tensorflow
            vars(module)["tf"] = of_weights if name == _WEIGHTS else given
        classes = [k for k, v in vars(module).items() if isinstance(v, _Empty)]
        owners = {each: vars(module).pop(each).__module__ for each in classes}
        if owners:
            vars(module)["__getattr__"] = _made_by(found, name, owners)
            left.setdefault(name, []).extend(k for k in owners if owners[k] == name)


def _made_by(
    make: Callable[[], Any], module: str, owners: Mapping[str, str]
) -> Callable[[str], Any]:
    """Returns a module's `__getattr__`, which makes its classes when they are read."""

    def getattribute(name: str) -> Any:
        if name not in owners:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        make()
        return getattr(sys.modules[owners[name]], name)

    return getattribute


def _derive_from(
    keras: Any, tensorflow: types.ModuleType, left: Mapping[str, Sequence[str]]
) -> None:
    """Makes TFF's sub-classes of Keras's classes, once, from those of `keras`."""
    sys.modules["tensorflow"] = _TensorFlow(tensorflow, lambda: keras)
    try:
        for name, classes in left.items():
            if not vars(sys.modules[name]).keys() >= set(classes):
                importlib.reload(sys.modules[name])
    finally:
        sys.modules["tensorflow"] = tensorflow
