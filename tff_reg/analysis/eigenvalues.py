"""The eigenvalues of largest magnitude of a symmetric matrix, from products with it."""

from __future__ import annotations

from tff_reg.analysis import lanczos
from tff_reg.analysis.estimates import Eigenpairs
from tff_reg.lazy import logging, np

# Eigenvalues below this share of the largest are only known relative to it.
_SMALL = 0.01


def _is_accurate(values, residuals, errors, tolerance: float, largest: float) -> bool:
    """Whether estimates and bounds of the errors are small enough."""
    allowed = tolerance * np.maximum(np.abs(values), _SMALL * abs(largest))
    return bool(np.all((errors <= allowed) & (residuals <= 100 * allowed)))


def _warn(k: int, products: int, errors) -> None:
    logging.warning(
        "The top %d Hessian eigenvalues are not as accurate as asked for after %d "
        "products (estimated errors up to %.1e): raise max_iterations.",
        k,
        products,
        np.max(errors),
    )


def by_lanczos(product, random, size, k, tolerance, most, dtype) -> Eigenpairs:
    """Finds them by Lanczos iteration with full reorthogonalisation.

    A warning is logged if they are not as accurate as asked for.

    Args:
      product: From a vector, float64 [size], to its product with the matrix.
      random: From a number to its random vector, float64 [size].
      size: Of the matrix.
      k: How many.
      tolerance: See `Hessian.top_eigenvalues`.
      most: Most products in all; by power iteration, for each value.
      dtype: Of the vectors that are kept.

    Returns:
      The pairs.
    """
    found = {}

    def is_done(result: lanczos.Tridiagonal) -> bool:
        steps = result.steps
        # Looking costs as much as a product where there are hundreds of steps.
        if steps < k or (steps % (1 + steps // 32) and steps < min(most, size)):
            return False
        values, vectors = result.eigenpairs()
        top = np.argsort(-np.abs(values), kind="stable")[:k]
        residuals = np.abs(result.off_diagonal[-1] * vectors[-1, top])
        gaps = np.abs(values[top, np.newaxis] - values)
        gaps[np.arange(k), top] = np.inf
        gaps = np.min(gaps, axis=1)
        errors = residuals * np.minimum(1.0, residuals / np.maximum(gaps, 1e-300))
        found.update(values=values[top], vectors=vectors[:, top], errors=errors)
        # Twice as many as asked for: then those below are known as well.
        return steps >= min(2 * k, size) and _is_accurate(
            values[top], residuals, errors, tolerance, float(values[top[0]])
        )

    numbers = iter(range(size))
    result = lanczos.tridiagonalize(
        product,
        random(next(numbers)),
        min(max(most, k), size),
        basis_dtype=dtype,
        stop=is_done,
        another_start=lambda: random(next(numbers)),
    )
    if not is_done(result):
        _warn(k, result.steps, found["errors"])
    return Eigenpairs.build(
        found["values"],
        [_unit(result.expand(column)) for column in found["vectors"].T],
        found["errors"],
        result.steps,
    )


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def by_power_iteration(product, random, size, k, tolerance, most, dtype) -> Eigenpairs:
    """Finds them by power iteration with deflation; arguments as of `by_lanczos`."""
    del size, dtype
    values, vectors, errors = [], [], []
    products = 0

    def deflated(vector):
        for other in vectors:
            vector = vector - (other @ vector) * other
        return vector

    for number in range(k):
        vector = _unit(deflated(random(number)))
        last_residual = np.inf
        for _ in range(most):
            image = deflated(product(vector))
            products += 1
            value = vector @ image
            residual = np.linalg.norm(image - value * vector)
            # Residuals shrink with the ratio of the next eigenvalue to this one.
            ratio = residual / last_residual
            error = residual
            if ratio < 1 and residual < abs(value) * (1 - ratio):
                error = residual**2 / (abs(value) * (1 - ratio))
            length = np.linalg.norm(image)
            largest = max([value, *values], key=abs)
            is_accurate = _is_accurate(value, residual, error, tolerance, largest)
            if is_accurate or not length:
                break
            vector, last_residual = _unit(deflated(image / length)), residual
        if not is_accurate:
            _warn(k, products, error)
        values.append(value)
        vectors.append(vector)
        errors.append(error)
    return Eigenpairs.build(values, vectors, errors, products)
