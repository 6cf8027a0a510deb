"""TensorFlow, TensorFlow Federated, NumPy and others, imported at first use.

`import tensorflow_federated` takes about ten seconds, and neither a mistyped flag nor
`--help` must wait for it. Modules of this package import
`tf` and `tff` from here, so that their names, settings and documentation can be read
without TensorFlow. The first look-up of an attribute imports the module:

>>> from tff_reg.lazy import np
>>> int(np.add(1, 2))
3
"""

from __future__ import annotations

import importlib
import importlib.util
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tff_reg import seam

# Type checkers let other packages import these only.
__all__ = ("keras", "np", "tf", "tff")


class _LazyModule(types.ModuleType):
    """Placeholder for a module, which is imported when an attribute is looked up."""

    def _load(self) -> types.ModuleType:
        return importlib.import_module(self.__name__)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # `inspect` and `doctest` look it up everywhere.
            raise AttributeError(name)
        # Copying the attribute means that it is looked up here only once.
        value = getattr(self._load(), name)
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return dir(self._load())

    def __reduce__(self) -> Any:
        return type(self), (self.__name__,)


class _Keras(_LazyModule):
    """Placeholder for Keras 2, even if `tf.keras` is Keras 3."""

    def _load(self) -> types.ModuleType:
        return seam.keras()


if TYPE_CHECKING:
    import dp_accounting
    import dp_accounting.rdp as rdp
    import google.protobuf.message as protobuf_message
    import h5py
    import IPython.display as ipython_display
    import matplotlib
    import matplotlib.backends.backend_agg as mpl_agg
    import matplotlib.colors as mpl_colors
    import matplotlib.figure as mpl_figure
    import matplotlib.patches as mpl_patches
    import matplotlib.ticker as mpl_ticker
    import numpy as np
    import pandas
    import PIL.Image as pil_image
    import ray
    import ray.exceptions as ray_exceptions
    import requests
    import scipy.linalg as scipy_linalg
    import scipy.special as scipy_special
    import sphinx.cmd.build as sphinx_build
    import tensorflow as tf
    import tensorflow.python.util._pywrap_util_port as tf_port
    import tensorflow_datasets as tfds
    import tensorflow_federated as tff
    import tensorflow_privacy as tfp
    import tf_keras as keras
    import tqdm
    import tree

else:
    np = _LazyModule("numpy")
    tf = _LazyModule("tensorflow")
    tff = _LazyModule("tensorflow_federated")
    tfp = _LazyModule("tensorflow_privacy")
    keras = _Keras("keras")
    # TensorFlow's internals, where it has no public function.
    tf_port = _LazyModule("tensorflow.python.util._pywrap_util_port")
    tfds = _LazyModule("tensorflow_datasets")
    tree = _LazyModule("tree")
    ray = _LazyModule("ray")
    ray_exceptions = _LazyModule("ray.exceptions")
    tqdm = _LazyModule("tqdm")
    dp_accounting = _LazyModule("dp_accounting")
    rdp = _LazyModule("dp_accounting.rdp")
    h5py = _LazyModule("h5py")
    scipy_linalg = _LazyModule("scipy.linalg")
    scipy_special = _LazyModule("scipy.special")
    sphinx_build = _LazyModule("sphinx.cmd.build")
    requests = _LazyModule("requests")
    protobuf_message = _LazyModule("google.protobuf.message")
    pil_image = _LazyModule("PIL.Image")
    # Optional packages.
    pandas = _LazyModule("pandas")
    ipython_display = _LazyModule("IPython.display")
    matplotlib = _LazyModule("matplotlib")
    mpl_agg = _LazyModule("matplotlib.backends.backend_agg")
    mpl_colors = _LazyModule("matplotlib.colors")
    mpl_figure = _LazyModule("matplotlib.figure")
    mpl_patches = _LazyModule("matplotlib.patches")
    mpl_ticker = _LazyModule("matplotlib.ticker")


def module(name: str) -> Any:
    """Returns a placeholder for a module of `tff_reg` that needs TensorFlow or Ray.

    An attribute set on the returned object, as tests do, is not set on the module.
    """
    return _LazyModule(name)


# `tff_reg.tasks` imports packages that use it: a direct import would be circular.
tasks = module("tff_reg.tasks")


def package(name: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes the `__getattr__` and `__dir__` of a package whose modules need TensorFlow.

    The package's attributes are its modules, and the names in its module `public`,
    which are imported at first use.
    """

    def getattribute(attribute: str) -> Any:
        if attribute == "__all__":
            return sorted(n for n in dir(public()) if not n.startswith("_"))
        is_own = not attribute.startswith("_")
        if is_own and importlib.util.find_spec(f"{name}.{attribute}"):
            return importlib.import_module(f"{name}.{attribute}")
        if is_own and hasattr(public(), attribute):
            return getattr(public(), attribute)
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

    def public() -> types.ModuleType:
        return importlib.import_module(f"{name}.public")

    return getattribute, lambda: getattribute("__all__")
