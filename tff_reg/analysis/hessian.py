"""Curvature of a model's loss: eigenvalues, trace, diagonal and spectral density.

These work for any Keras model, any model of this package, or a loss function with
variables. Each quantity is one function of the model and the data. For several
quantities, or later weights of the same model, a `Hessian` compiles its products once.

The loss is the mean over a fixed set of examples, computed in mini-batches. It leaves
out weight decay and a Keras model's own penalties. All random vectors are stateless
functions of `seed`.
"""

from __future__ import annotations

from tff_reg.analysis.hessian_matrix import Hessian, Vector

__all__ = [
    "Hessian",
    "diagonal",
    "hessian_vector_product",
    "spectral_density",
    "top_eigenvalues",
    "trace",
]


def hessian_vector_product(model_or_loss_fn, data, vector: Vector, **options) -> Vector:
    """Multiplies the Hessian of a mean loss with a vector.

    >>> import numpy as np, tensorflow as tf
    >>> from tff_reg.analysis import hessian_vector_product
    >>> w = tf.Variable([1.0, 2.0])
    >>> loss = lambda batch: tf.reduce_mean(batch) * (2 * w[0] ** 2 + w[0] * w[1])
    >>> data = [np.ones(3, np.float32)]
    >>> hessian_vector_product(loss, data, np.array([1.0, 1.0]), variables=[w])
    array([5., 1.])

    Args:
      model_or_loss_fn: As in `Hessian`.
      data: As in `Hessian`.
      vector: [size], one number per weight, or a list of arrays shaped like the
        variables.
      **options: The other arguments of `Hessian`.

    Returns:
      The product in the form of `vector`, float64.

    Raises:
      UnsuitableModelError, UnsuitableDataError: As in `Hessian`.
      ValueError, NonFiniteError, NoSecondDerivativeError: As in `Hessian.product`.
    """
    return Hessian(model_or_loss_fn, data, **options).product(vector)


def top_eigenvalues(model_or_loss_fn, data, k: int = 1, **options):
    """Finds the k eigenvalues of largest magnitude of the Hessian of a mean loss.

    >>> import numpy as np, tensorflow as tf
    >>> from tff_reg.analysis import top_eigenvalues
    >>> w = tf.Variable([1.0, 2.0])
    >>> loss = lambda batch: tf.reduce_mean(batch) * (2 * w[0] ** 2 - 3 * w[1] ** 2)
    >>> pairs = top_eigenvalues(loss, [np.ones(3, np.float32)], 2, variables=[w])
    >>> pairs.values.round(4)
    array([-6.,  4.])

    Args:
      model_or_loss_fn: As in `Hessian`.
      data: As in `Hessian`.
      k: Number of eigenvalues.
      **options: The other arguments of `Hessian` and `Hessian.top_eigenvalues`. The
        errors of both are raised.

    Returns:
      `Eigenpairs`: values, float64 [k], and vectors, float64 [k, size]; with `parts`,
      the eigenpairs of each part.
    """
    options, own = _split(options)
    return Hessian(model_or_loss_fn, data, **options).top_eigenvalues(k, **own)


def trace(model_or_loss_fn, data, **options):
    """Estimates the trace of the Hessian of a mean loss.

    >>> import numpy as np, tensorflow as tf
    >>> from tff_reg.analysis import trace
    >>> w = tf.Variable([1.0, 2.0])
    >>> loss = lambda batch: tf.reduce_mean(batch) * (2 * w[0] ** 2 - 3 * w[1] ** 2)
    >>> trace(loss, [np.ones(3, np.float32)], variables=[w]).mean
    -2.0

    Args:
      model_or_loss_fn: As in `Hessian`.
      data: As in `Hessian`.
      **options: The other arguments of `Hessian` and `Hessian.trace`. The errors of
        both are raised.

    Returns:
      A `TraceEstimate`: mean and standard error, floats, and the number of samples;
      with `parts`, one estimate per part.
    """
    options, own = _split(options)
    return Hessian(model_or_loss_fn, data, **options).trace(**own)


def diagonal(model_or_loss_fn, data, **options):
    """Computes the diagonal of the Hessian of a mean loss, estimated or exact.

    >>> import numpy as np, tensorflow as tf
    >>> from tff_reg.analysis import diagonal
    >>> w = tf.Variable([1.0, 2.0])
    >>> loss = lambda batch: tf.reduce_mean(batch) * (2 * w[0] ** 2 + w[0] * w[1])
    >>> diagonal(loss, [np.ones(3, np.float32)], variables=[w], exact=True).values
    array([4., 0.])

    Args:
      model_or_loss_fn: As in `Hessian`.
      data: As in `Hessian`.
      **options: The other arguments of `Hessian` and `Hessian.diagonal`. The errors of
        both are raised.

    Returns:
      A `DiagonalEstimate`: values and standard errors, float64 [size], and the number
      of samples; with `parts`, one estimate per part.
    """
    options, own = _split(options)
    return Hessian(model_or_loss_fn, data, **options).diagonal(**own)


def spectral_density(model_or_loss_fn, data, **options):
    """Estimates the density of the eigenvalues of the Hessian of a mean loss.

    >>> import numpy as np, tensorflow as tf
    >>> from tff_reg.analysis import spectral_density
    >>> w = tf.Variable([1.0, 2.0])
    >>> loss = lambda batch: tf.reduce_mean(batch) * (2 * w[0] ** 2 - 3 * w[1] ** 2)
    >>> found = spectral_density(loss, [np.ones(3, np.float32)], variables=[w])
    >>> found.nodes[:2].round(4)
    array([-6.,  4.])

    Args:
      model_or_loss_fn: As in `Hessian`.
      data: As in `Hessian`.
      **options: The other arguments of `Hessian` and `Hessian.spectral_density`. The
        errors of both are raised.

    Returns:
      A `SpectralDensity`: the grid and the density on it, float64 [points]; with
      `parts`, one density per part.
    """
    options, own = _split(options)
    return Hessian(model_or_loss_fn, data, **options).spectral_density(**own)


def _split(options: dict) -> tuple[dict, dict]:
    """Splits options into those of `Hessian` and all others."""
    names = ("loss_fn", "variables", "training", "batch_size")
    ours = {name: options[name] for name in names if name in options}
    return ours, {name: options[name] for name in options if name not in ours}
