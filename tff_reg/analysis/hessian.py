"""Curvature of a model's loss: eigenvalues, trace, diagonal and spectral density.

For any Keras model, any model of this package, or a loss function with variables. Each
quantity is one function of the model and the data. A `Hessian` compiles the products
once for several quantities, and for later weights of the same model.

The loss is the mean over the given examples, always the same ones, computed in
mini-batches. It leaves out weight decay and a Keras model's own penalties. All random
vectors are stateless functions of `seed`.
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
      model_or_loss_fn: As of `Hessian`.
      data: As of `Hessian`.
      vector: [size], one number for each weight, or a list of arrays shaped like the
        variables.
      **options: The other arguments of `Hessian`.

    Returns:
      The product in the vector's form, float64.

    Raises:
      UnsuitableModelError, UnsuitableDataError: As of `Hessian`.
      ValueError, NonFiniteError, NoSecondDerivativeError: As of `Hessian.product`.
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
      model_or_loss_fn: As of `Hessian`.
      data: As of `Hessian`.
      k: Number of eigenvalues.
      **options: The other arguments of `Hessian` and `Hessian.top_eigenvalues`, whose
        errors it raises.

    Returns:
      `Eigenpairs`: values, float64 [k], and vectors, float64 [k, size]; or those of
      each of the `parts`.
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
      model_or_loss_fn: As of `Hessian`.
      data: As of `Hessian`.
      **options: The other arguments of `Hessian` and `Hessian.trace`, whose errors it
        raises.

    Returns:
      A `TraceEstimate`: mean and standard error, floats, and the number of samples;
      or one of each of the `parts`.
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
      model_or_loss_fn: As of `Hessian`.
      data: As of `Hessian`.
      **options: The other arguments of `Hessian` and `Hessian.diagonal`, whose errors
        it raises.

    Returns:
      A `DiagonalEstimate`: values and standard errors, float64 [size], and the number
      of samples; or one of each of the `parts`.
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
      model_or_loss_fn: As of `Hessian`.
      data: As of `Hessian`.
      **options: The other arguments of `Hessian` and `Hessian.spectral_density`, whose
        errors it raises.

    Returns:
      A `SpectralDensity`: the grid and the density there, float64 [points]; or one of
      each of the `parts`.
    """
    options, own = _split(options)
    return Hessian(model_or_loss_fn, data, **options).spectral_density(**own)


def _split(options: dict) -> tuple[dict, dict]:
    """The options of `Hessian`, and the others."""
    names = ("loss_fn", "variables", "training", "batch_size")
    ours = {name: options[name] for name in names if name in options}
    return ours, {name: options[name] for name in options if name not in ours}
