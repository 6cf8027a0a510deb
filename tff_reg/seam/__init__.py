"""The seam to TensorFlow Federated: its import, and the inner parts that we use.

TFF 0.87.0, the last release on PyPI, was made for TensorFlow 2.14. It imports a few
modules that today's TensorFlow (2.16 and later) no longer has. `install` adds a finder
to Python's imports. When TFF is imported on such a TensorFlow, the finder

*   refuses versions of TensorFlow and TFF that this package does not know;
*   replaces each module of `LEFT_OUT` by a stand-in. A call of one of the stand-in's
    names raises an `ImportError` with the reason;
*   does not run the `__init__` of the packages in `BARE`: TFF needs one module of them;
*   imports the modules of `DEFERRED` at first use, because their import takes seconds.

On TensorFlow 2.14, which TFF pins, it only checks the versions. A program has to
import `tff_reg` before TFF.

`tff_reg.seam.internals` holds all uses of TFF's inner modules. All other modules use
TFF's public names, from `tff_reg.lazy`. A later TFF, whose language is another package
(`federated_language`), would need changes here only.

Standard library only: importing this module imports neither TensorFlow nor TFF.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import types
import weakref
from typing import Any, Optional

from tff_reg.seam import keras_later

TFF_VERSION = "0.87.0"
# The oldest TensorFlow that works, and the first version that was not tried.
TENSORFLOW_VERSIONS = ((2, 14), (2, 23))
# From this version on, Keras 2 is a separate package and there are no estimators.
_TODAY = (2, 16)

_ESTIMATORS = "TensorFlow has no estimators since 2.16"
_KERAS = "made for the Keras of TensorFlow 2.14; TFF does not use it"
_JAX = "made for jax 0.4.14, which PyPI no longer has"
LEFT_OUT = {
    "tensorflow_estimator": _ESTIMATORS,
    "tensorflow_privacy.v1": _ESTIMATORS,
    "tensorflow_privacy.privacy.estimators": _ESTIMATORS,
    "tensorflow_privacy.privacy.logistic_regression": _KERAS,
    "tensorflow_privacy.privacy.keras_models": _KERAS,
    "tensorflow_privacy.privacy.optimizers": _KERAS,
    "tensorflow_federated.python.core.environments.jax": _JAX,
    "tensorflow_federated.python.core.backends.xla": _JAX,
    "tensorflow_federated.python.learning.programs.vizier_program_logic": (
        "made for google-vizier 0.1.11, which today's protobuf does not read"
    ),
}
BARE = (
    "tensorflow_model_optimization",
    "tensorflow_model_optimization.python",
    "tensorflow_model_optimization.python.core",
    "tensorflow_model_optimization.python.core.internal",
)
# With the modules of each that have the names which TFF reads while it is imported.
DEFERRED = {
    "tensorflow_probability": (),
    "scipy.optimize": (),
    "dp_accounting": ("dp_accounting.dp_event", "dp_accounting.privacy_accountant"),
}

_TFF = "tensorflow_federated"
# The newest Keras 2. It also works with the next TensorFlow.
_NEWEST_KERAS_2 = (2, 21)
# Some of these declare dependencies that are too old for today's environments.
_FILES = (
    f"tensorflow-federated=={TFF_VERSION}",
    "tensorflow-privacy==0.9.0",
    "tensorflow-model-optimization==0.8.0",
    "dp-accounting~=0.4",
)


class UnfitError(ImportError):
    """Raised when the version of TensorFlow, Keras 2 or TFF does not work here."""


class WorkerError(RuntimeError):
    """Raised when a worker does not start or cannot run its task, or none is left."""


class MissingError(UnfitError, ModuleNotFoundError):
    """Raised when TFF or Keras 2 is missing; the message has the pip command."""


def install_command() -> str:
    """Returns the pip command that installs TFF into this Python's environment.

    It keeps the installed TensorFlow and adds its Keras 2. Plain pip refuses:
    TFF declares Python below 3.12, a jaxlib that PyPI no longer has, and Linux on
    x86-64, which only its C++ worker needs.
    """
    options = "--no-deps --ignore-requires-python"
    if not has_native_worker_platform():
        options += (
            " --only-binary=:all: --platform=manylinux_2_31_x86_64"
            " --target=\"$(python -c 'import sysconfig;"
            ' print(sysconfig.get_path("purelib"))\')"'
        )
    files = [*_FILES, *([_keras_2()] if _tensorflow() >= _TODAY else [])]
    return f"pip install {options} {' '.join(files)}"


def _tensorflow() -> tuple[int, ...]:
    """Returns the installed TensorFlow's release; without one, the newest Keras 2's."""
    for name in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return _release(importlib.metadata.version(name))
    return _NEWEST_KERAS_2


def _keras_2() -> str:
    """Returns pip's requirement of the Keras 2 for this TensorFlow, 2.16 or later."""
    major, minor = min(_tensorflow(), _NEWEST_KERAS_2)
    return f"{keras_later.KERAS_2}~={major}.{minor}.0"


def is_installed() -> bool:
    """Whether TFF is installed, and Keras 2 if TensorFlow does not contain it."""
    needed = (_TFF, keras_later.KERAS_2) if _tensorflow() >= _TODAY else (_TFF,)
    return all(_found(name, None) for name in needed)


def has_native_worker_platform() -> bool:
    """Whether TFF's C++ worker runs on this platform: Linux on x86-64."""
    return sys.platform == "linux" and os.uname().machine == "x86_64"


def why_no_native_worker() -> str:
    """Returns why TFF's C++ worker does not run on this platform, and what to do."""
    import platform  # noqa: PLC0415

    return (
        "TFF's C++ worker is a program for Linux on x86-64, and this is"
        f" {platform.system()} on {platform.machine()}; use the in_process runtime"
        " (tff_reg.runtime)."
    )


def install() -> None:
    """Adds the finder to Python's imports, once."""
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)


def keras() -> types.ModuleType:
    """Returns Keras 2, even if `tf.keras` is Keras 3; our networks need no Keras."""
    import tensorflow as tf  # noqa: PLC0415

    if _release(tf.__version__) < _TODAY:
        return tf.keras
    if _found(keras_later.KERAS_2, None) is None:
        raise MissingError(
            f"Keras 2, {keras_later.KERAS_2}, is not installed in this Python; this"
            f" installs it: pip install --no-deps {_keras_2()}",
            name=keras_later.KERAS_2,
        )
    return importlib.import_module(keras_later.KERAS_2)


class StandIn(types.ModuleType):
    """A substitute for a module that is left out; calls of its names raise."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        what = f"{self.__name__}.{name}"
        reason = next(
            reason for each, reason in LEFT_OUT.items() if _is_in(self.__name__, each)
        )

        def refuse(*args, **kwargs):
            del args, kwargs
            raise ImportError(f"{what} is left out by tff_reg: {reason}.")

        return type(name, (), {"__new__": refuse, "__init_subclass__": refuse})


class _Deferred(types.ModuleType):
    """A module that is imported when one of its attributes is first read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if importlib.util.find_spec(f"{self.__name__}.{name}"):
            return importlib.import_module(f"{self.__name__}.{name}")
        for light in DEFERRED[self.__name__]:
            if hasattr(importlib.import_module(light), name):
                return getattr(sys.modules[light], name)
        self.__class__ = types.ModuleType  # type: ignore[assignment]
        parent = sys.modules.get(self.__name__.rpartition(".")[0])
        spec = _found(self.__name__, parent and parent.__path__)
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(self)
        return getattr(self, name)


class _Finder:
    """Finds TFF, and the stand-ins for modules that it cannot import."""

    # Whether TensorFlow is 2.16 or later; TFF's loader sets it.
    is_today = False
    # Returns the context that TFF's import made, or None if it was freed.
    default_context: Any = staticmethod(lambda: None)

    def find_spec(self, name, path=None, target=None):
        """Called by `importlib`; None leaves the module to the other finders."""
        del target
        if name == _TFF:
            spec = _found(name, path)
            if spec is None:
                raise MissingError(
                    "TensorFlow Federated is not installed in this Python; this"
                    f" installs it: {install_command()}",
                    name=name,
                )
            spec.loader = _TffLoader(spec.loader)
            return spec
        if not self.is_today:
            return None
        if any(_is_in(name, each) for each in LEFT_OUT):
            return importlib.machinery.ModuleSpec(
                name, _StandInLoader(StandIn), is_package=True
            )
        if name in BARE or name in DEFERRED:
            spec = _found(name, path)
            if spec is not None:
                made = types.ModuleType if name in BARE else _Deferred
                spec.loader = _StandInLoader(made)
            return spec
        return None


class _StandInLoader(importlib.abc.Loader):
    """Makes a module of the given class and executes nothing."""

    def __init__(self, made: type):
        self._made = made

    def create_module(self, spec):
        return self._made(spec.name)

    def exec_module(self, module):
        pass


class _TffLoader(importlib.abc.Loader):
    """Loads TFF after it has checked the versions."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        import tensorflow as tf  # noqa: PLC0415

        found = _release(tf.__version__)
        _check_tensorflow(found, tf.__version__)
        _check_tff(module.__spec__)
        # tensorflow_privacy needs distutils; from Python 3.12 on, setuptools has it.
        if importlib.util.find_spec("distutils") is None:
            importlib.import_module("setuptools")
        FINDER.is_today = found >= _TODAY
        _read_deep_protos()
        with (
            keras_later.given_to_tff(keras)
            if FINDER.is_today
            else contextlib.nullcontext()
        ):
            self._loader.exec_module(module)
        if not has_native_worker_platform():  # TFF would start it.
            _set_no_default_context(why_no_native_worker())
        stack = module.framework.get_context_stack()
        FINDER.default_context = weakref.ref(stack.current)
        # The context's `__del__` would print "Exception ignored in ..." in the
        # interpreter's last moments.
        atexit.register(_set_no_default_context, "The interpreter is ending.")
        _make_event_loop()


FINDER = _Finder()


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _found(name: str, path) -> Optional[importlib.machinery.ModuleSpec]:
    return importlib.machinery.PathFinder.find_spec(name, path)


def _release(version: str) -> tuple[int, ...]:
    """Returns the first two numbers of a version: (2, 21) for 2.21.0."""
    return tuple(int(part) for part in version.split(".")[:2])


def _check_tensorflow(found: tuple[int, ...], version: str) -> None:
    oldest, unknown = TENSORFLOW_VERSIONS
    if not oldest <= found < unknown:
        raise UnfitError(
            f"TensorFlow {version} is here; tff_reg {_advice(found < oldest)}"
            f" {oldest[0]}.{oldest[1]} to {unknown[0]}.{unknown[1] - 1}: install one of"
            " these, 2.21 for instance."
        )


def _advice(is_old: bool) -> str:
    return (
        "needs TensorFlow" if is_old else "was not tried with it, but with TensorFlow"
    )


def _check_tff(spec) -> None:
    folder = os.path.dirname(spec.origin)
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
            version = file.read().rpartition("__version__ = ")[2].strip().strip("'\"")
    except OSError:
        version = "of an unknown version"
    if version != TFF_VERSION:
        raise UnfitError(
            f"tff_reg knows TensorFlow Federated {TFF_VERSION}, and {version} is in"
            f" {folder}; this installs the one that it knows: {install_command()}"
        )


def _read_deep_protos() -> None:
    """Lets protobuf read messages nested deeper than 100, as in distributed DP."""
    with contextlib.suppress(
        ImportError
    ):  # PyPI's wheels have only this implementation, in C.
        from google._upb import _message  # noqa: PLC0415

        _message.SetAllowOversizeProtos(True)


def _make_event_loop() -> None:
    """Gives this thread an event loop, which TFF's training loop expects to find."""
    if sys.version_info >= (3, 14):  # Before, asyncio made one on demand.
        import asyncio  # noqa: PLC0415

        try:
            asyncio.get_event_loop()
        except RuntimeError:
            asyncio.set_event_loop(asyncio.new_event_loop())


def _set_no_default_context(reason: str) -> None:
    """Replaces TFF's default context by a context that refuses every call."""
    tff = sys.modules.get(_TFF)
    if tff is None:
        return

    class NoContext(tff.framework.SyncContext):
        def invoke(self, comp, arg):
            raise RuntimeError(reason)

    tff.framework.set_default_context(NoContext())
