"""Plots of the spectra of Hessians and of a classifier's weights.

MAN's Fig. 4 shows the top 200 eigenvalues and the density, UniVarFL's Fig. 1 the
singular values of the classifier's last layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tff_reg import curves, models
from tff_reg.analysis import estimates, objective
from tff_reg.lazy import mpl_figure, mpl_ticker, np

_INK = "#222222"
# The lower end of the density axis, as a share of the highest density.
_LOWEST_DENSITY = 1e-6


def classifier_singular_values(model) -> np.ndarray:
    """Computes the singular values of the weights of a model's last linear layer.

    >>> from tff_reg import analysis, models
    >>> model_fn = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=3)
    >>> analysis.classifier_singular_values(model_fn()).shape
    (3,)

    Args:
      model: A `BlockModel`, a `LearningModel` or a Keras model.

    Returns:
      float64 [min(features, classes)], descending.

    Raises:
      UnsuitableModelError: If the last layer has no kernel [features, classes].
    """
    network = getattr(model, "network", model)
    if isinstance(network, models.BlockModel):
        layer = network.blocks[-1].linear_layer
    else:  # A softmax may be a layer of its own.
        layer = models.from_keras(model).plan.head
    kernel = getattr(layer, "kernel", None)
    if kernel is None or len(kernel.shape) != 2:
        raise objective.UnsuitableModelError(
            "Singular values need a last layer with a kernel [features, classes], "
            f"which a {type(model).__name__} does not have."
        )
    return np.linalg.svd(np.asarray(kernel, np.float64), compute_uv=False)


def draw_eigenvalues(
    eigenvalues: Mapping[str, Sequence[float]],
) -> mpl_figure.Figure:
    """Draws the magnitudes of eigenvalues by rank, on a logarithmic scale.

    Negative eigenvalues are hollow circles.
    """
    values = {name: np.asarray(each, float) for name, each in eigenvalues.items()}
    if not any(np.any(each) for each in values.values()):
        raise ValueError("There is no eigenvalue other than zero to draw.")
    axes = curves.new_axes()
    size = 6.0 if max(map(len, values.values())) <= 40 else 3.5
    for index, (name, each) in enumerate(values.items()):
        color = curves.color_of(index)
        ranks = np.arange(1, len(each) + 1)
        axes.plot(ranks, np.abs(each), color=color, linewidth=1.2, alpha=0.6)
        for is_shown, face in ((each > 0, color), (each < 0, "white")):
            axes.plot(
                ranks[is_shown],
                np.abs(each[is_shown]),
                "o",
                color=color,
                markerfacecolor=face,
                markersize=size,
            )
        axes.plot([], [], "o-", color=color, label=name)
    if any(np.any(each < 0) for each in values.values()):
        axes.plot([], [], "o", color=_INK, markerfacecolor="white", label="negative")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(mpl_ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(mpl_ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    axes.yaxis.set_minor_formatter(mpl_ticker.NullFormatter())
    _count_ranks(axes)
    return _styled(axes, "Rank by magnitude", "Eigenvalue of the Hessian (magnitude)")


def draw_singular_values(
    singular_values: Mapping[str, Sequence[float]],
) -> mpl_figure.Figure:
    """Draws singular values by rank."""
    axes = curves.new_axes()
    for index, (name, values) in enumerate(singular_values.items()):
        axes.plot(
            np.arange(1, len(values) + 1),
            values,
            "o-",
            color=curves.color_of(index),
            linewidth=1.8,
            markersize=5 if len(values) <= 40 else 3,
            label=name,
        )
    axes.set_ylim(bottom=0)
    _count_ranks(axes)
    return _styled(axes, "Rank", "Singular value of the classifier's weights")


def draw_densities(
    densities: Mapping[str, estimates.SpectralDensity],
) -> mpl_figure.Figure:
    """Draws spectral densities on a logarithmic scale."""
    axes = curves.new_axes()
    highest = max(float(np.max(density)) for _, density in densities.values())
    floor = _LOWEST_DENSITY * highest
    for index, (name, (grid, density)) in enumerate(densities.items()):
        color = curves.color_of(index)
        axes.fill_between(
            grid, floor, np.maximum(density, floor), color=color, alpha=0.15, lw=0
        )
        axes.plot(grid, density, color=color, linewidth=1.6, label=name)
    axes.set_yscale("log")
    axes.set_ylim(floor, 3 * highest)
    return _styled(axes, "Eigenvalue of the Hessian", "Density")


def _count_ranks(axes) -> None:
    axes.xaxis.set_major_locator(mpl_ticker.MaxNLocator(integer=True))


def _styled(axes, horizontal: str, vertical: str) -> mpl_figure.Figure:
    curves.style(axes, horizontal, vertical)
    axes.legend(fontsize=12, frameon=False)
    axes.figure.subplots_adjust(left=0.105, right=0.97, top=0.97, bottom=0.1)
    return axes.figure
