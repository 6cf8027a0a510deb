"""The loss on a plane through a model's weights.

The plane is spanned by the Hessian's first two eigenvectors (as in FedAlign's Fig. 1
and MAN's Fig. 1), or by two random directions with the norms of the model's filters (Li
et al., "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Optional

from tff_reg import curves
from tff_reg.analysis import hessian
from tff_reg.data import keys
from tff_reg.lazy import mpl_figure, mpl_ticker, np, tf
from tff_reg.models import roles

# The purpose of the random numbers; `hessian` defines the other purposes.
_DIRECTIONS = 4
_COLUMN_INCHES, _ROW_INCHES = 4.6, 3.9
_INK, _MUTED = "#222222", "#555555"
_LEVELS = 14


@dataclasses.dataclass(frozen=True)
class Landscape:
    """Losses on a square grid.

    Attributes:
      coordinates: float64 [points], ascending; the same along both directions.
      losses: float64 [points, points]; entry [i, j] is the loss at the weights plus
        coordinates[j] times the first and coordinates[i] times the second direction.
    """

    coordinates: np.ndarray
    losses: np.ndarray

    @property
    def center(self) -> float:
        """The loss at the weights themselves."""
        middle = len(self.coordinates) // 2
        return float(self.losses[middle, middle])


def random_directions(curvature: hessian.Hessian, seed: int = 0) -> np.ndarray:
    """Draws two random directions whose filters have the norms of the model's filters.

    A filter is all weights of one output: the kernel's entries with the same last
    index; in depthwise and grouped kernels, of one channel or group. For biases,
    scales and shifts of norms the directions are zero, as in Li et al.

    >>> import numpy as np, tensorflow as tf
    >>> from tff_reg import analysis
    >>> w = tf.Variable([[3.0], [4.0]])
    >>> loss = lambda batch: tf.reduce_mean(batch) * tf.reduce_sum(w**2)
    >>> hessian = analysis.Hessian(loss, [np.ones(3, np.float32)], variables=[w])
    >>> np.linalg.norm(analysis.random_directions(hessian), axis=1).round(4)
    array([5., 5.])

    Args:
      curvature: The Hessian of the model.
      seed: Seed of the directions.

    Returns:
      float64 [2, size].
    """
    directions = []
    for number in range(2):
        parts = []
        for index, variable in enumerate(curvature.variables):
            weights = variable.numpy().astype(np.float64)
            key = keys.fold_in(tf.constant([seed, _DIRECTIONS], tf.int64), number)
            noise = tf.random.stateless_normal(
                weights.shape, keys.fold_in(key, index), alg="philox"
            )
            axes = curvature.filter_axes[index]
            if roles.is_bias(variable) or roles.is_scale(variable):
                parts.append(np.zeros_like(weights))
                continue
            parts.append(_like_filters(noise.numpy().astype(np.float64), weights, axes))
        directions.append(np.concatenate([part.ravel() for part in parts]))
    return np.stack(directions)


def _like_filters(
    noise: np.ndarray, weights: np.ndarray, axes: tuple[int, ...]
) -> np.ndarray:
    ratio = np.sum(np.square(weights), axes, keepdims=True)
    ratio /= np.sum(np.square(noise), axes, keepdims=True)
    return noise * np.sqrt(ratio)


def loss_landscape(
    curvature: hessian.Hessian,
    directions: np.ndarray,
    *,
    extent: float = 1.0,
    points: int = 21,
    known: Optional[np.ndarray] = None,
    after_row: Optional[Callable[[np.ndarray], None]] = None,
) -> Landscape:
    """Computes the loss on a square grid of the plane.

    >>> import numpy as np, tensorflow as tf
    >>> from tff_reg import analysis
    >>> w = tf.Variable([1.0, 2.0])
    >>> loss = lambda batch: tf.reduce_mean(batch) * tf.reduce_sum(w**2)
    >>> hessian = analysis.Hessian(loss, [np.ones(3, np.float32)], variables=[w])
    >>> analysis.loss_landscape(hessian, np.eye(2), points=3).losses[1]
    array([4., 5., 8.])

    Args:
      curvature: The model's Hessian, whose examples the loss is computed on. The
        model's weights change during the call and are restored at the end.
      directions: float [2, size]: `top_eigenvalues(2).vectors`, each of length 1, or
        the result of `random_directions`.
      extent: Largest coordinate, in lengths of the directions.
      points: Number of points along each direction; odd, so that the middle point is
        the model's own weights.
      known: float [points, points], losses of an earlier, interrupted call; NaN for
        losses that have to be computed.
      after_row: Called after each row with all losses; NaN for losses not computed yet.

    Returns:
      The `Landscape`. A loss that is not finite is stored as infinity.

    Raises:
      ValueError: If the number of points is even.
    """
    directions = np.asarray(directions, np.float64)
    if points % 2 == 0:
        raise ValueError(f"points must be odd, but is {points}.")
    losses = np.full([points, points], np.nan) if known is None else np.array(known)

    def assign(values):
        for variable, value in zip(curvature.variables, values):
            variable.assign(value.astype(variable.dtype.as_numpy_dtype))

    coordinates = np.linspace(-extent, extent, points)
    before = [variable.numpy() for variable in curvature.variables]
    weights = np.concatenate([value.ravel() for value in before]).astype(np.float64)
    try:
        for i, second in enumerate(coordinates):
            for j in np.flatnonzero(np.isnan(losses[i])):
                shift = coordinates[j] * directions[0] + second * directions[1]
                assign(curvature.unflatten(weights + shift))
                loss = curvature.loss()
                losses[i, j] = loss if np.isfinite(loss) else np.inf
            if after_row is not None:
                after_row(losses.copy())
    finally:
        assign(before)
    return Landscape(coordinates, losses)


def draw(
    landscapes: Mapping[str, Landscape],
    *,
    highest: Optional[float] = None,
) -> mpl_figure.Figure:
    """Draws landscapes side by side on one scale: surfaces, and contours below."""
    finite = np.concatenate(
        [each.losses[np.isfinite(each.losses)] for each in landscapes.values()]
    )
    if not finite.size:
        raise ValueError("None of the losses is a finite number.")
    low = float(np.min(finite))
    high = float(np.max(finite)) if highest is None else float(highest)
    if high <= low:
        high = low + 1e-6 * max(abs(low), 1.0)
    columns = len(landscapes)
    width = max(7.0, 1.4 + _COLUMN_INCHES * columns)
    figure = curves.new_figure(width, 2 * _ROW_INCHES + 1.0)
    drawn = None
    for column, (name, landscape) in enumerate(landscapes.items(), start=1):
        losses = np.where(np.isnan(landscape.losses), np.inf, landscape.losses)
        losses = np.minimum(losses, high)
        surface = figure.add_subplot(2, columns, column, projection="3d")
        _draw_surface(surface, landscape.coordinates, losses, low, high)
        surface.set_title(name, fontsize=14, color=_INK, pad=0)
        contour = figure.add_subplot(2, columns, columns + column)
        drawn = _draw_contours(contour, landscape, losses, low, high)
        if column == 1:
            contour.set_ylabel("second direction", fontsize=11, color=_INK)
    _finish(figure, drawn)
    return figure


def _draw_surface(axes, coordinates, losses, low: float, high: float) -> None:
    first, second = np.meshgrid(coordinates, coordinates)
    axes.plot_surface(
        first,
        second,
        losses,
        cmap="viridis",
        vmin=low,
        vmax=high,
        rcount=len(coordinates),
        ccount=len(coordinates),
        linewidth=0.2,
        edgecolor=(0, 0, 0, 0.25),
    )
    axes.set_zlim(low, high)
    axes.view_init(elev=28, azim=-58)
    axes.tick_params(labelsize=8, colors=_MUTED, pad=1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(_few_ticks())
    axes.set_zlabel("loss", fontsize=10, color=_INK)


def _draw_contours(axes, landscape: Landscape, losses, low: float, high: float):
    drawn = axes.contourf(
        landscape.coordinates,
        landscape.coordinates,
        losses,
        levels=np.linspace(low, high, 4 * _LEVELS),
        cmap="viridis",
    )
    axes.contour(
        landscape.coordinates,
        landscape.coordinates,
        losses,
        levels=np.linspace(low, high, _LEVELS),
        colors="white",
        linewidths=0.6,
        alpha=0.7,
    )
    axes.plot([0], [0], "*", color="white", markeredgecolor=_INK, markersize=13)
    axes.annotate(
        f"{landscape.center:.3g}",
        (0, 0),
        xytext=(9, 7),
        textcoords="offset points",
        fontsize=11,
        color=_INK,
        bbox=dict(boxstyle="round,pad=0.2", facecolor="white", alpha=0.8, linewidth=0),
    )
    axes.set_aspect("equal")
    axes.set_xlabel("first direction", fontsize=11, color=_INK)
    axes.tick_params(labelsize=9, colors=_INK)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(_few_ticks())
    return drawn


def _few_ticks():
    return mpl_ticker.MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])


def _finish(figure, drawn) -> None:
    width, height = figure.get_size_inches()
    right = 1 - 1.25 / width
    figure.subplots_adjust(
        left=0.75 / width,
        right=right,
        top=1 - 0.4 / height,
        bottom=0.6 / height,
        wspace=0.22,
        hspace=0.12,
    )
    place = [right + 0.3 / width, 0.75 / height, 0.16 / width, 2.9 / height]
    scale = figure.colorbar(drawn, cax=figure.add_axes(place))
    scale.set_label("loss", fontsize=11, color=_INK)
    scale.locator = mpl_ticker.MaxNLocator(6)
    scale.update_ticks()
    scale.ax.tick_params(labelsize=9, colors=_INK)
