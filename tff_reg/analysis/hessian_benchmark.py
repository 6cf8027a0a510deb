"""Measures what Hessian-vector products and the top eigenvalue take.

A product and a gradient of the same batch take turns, so that other work on the machine
slows down both. `bin/bench hessian` prints it.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Any, Callable, Sequence

from tff_reg.analysis import hessian
from tff_reg.lazy import np

TARGET_RATIO, TARGET_SECONDS = 2.5, 60.0
_IMAGE_SHAPE, _CLASSES = (32, 32, 3), 10


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
      models: Networks whose products are compared with their gradients.
      batch_size: Images of a product.
      turns: Products and gradients of each.
      eigenvalue_model: The network of the top eigenvalue.
      eigenvalue_images: Its images.
    """

    models: Sequence[str] = ("resnet20", "cnn")
    batch_size: int = 32
    turns: int = 100
    eigenvalue_model: str = "resnet20"
    eigenvalue_images: int = 512


QUICK = Setting(turns=20)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A product against a gradient.

    Attributes:
      model: The network.
      gradient_seconds: Median.
      product_seconds: Median.
      ratios: Of each turn: product to the gradient before it.
      ratio: Their median.
      first_seconds: The first product, with tracing.
    """

    model: str
    gradient_seconds: float
    product_seconds: float
    ratios: Sequence[float]
    ratio: float
    first_seconds: float


@dataclasses.dataclass(frozen=True)
class TopEigenvalue:
    """The top eigenvalue, from the model to the value.

    Attributes:
      model: The network.
      images: Examples.
      seconds: Tracing included.
      products: Hessian-vector products.
      value: The eigenvalue.
      error: Its estimated error.
    """

    model: str
    images: int
    seconds: float
    products: int
    value: float
    error: float


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What was found.

    Attributes:
      setting: What was measured.
      ratios: One for each model.
      top: The top eigenvalue.
    """

    setting: Setting
    ratios: Sequence[Ratio]
    top: TopEigenvalue


def measure(
    setting: Setting = Setting(), *, report: Callable[[str], None] = lambda line: None
) -> Measurement:
    """Measures products, then the top eigenvalue.

    Args:
      setting: What to measure.
      report: Called with a line now and then.

    Returns:
      The `Measurement`.
    """
    ratios = []
    for model in setting.models:
        ratios.append(_ratio(model, setting))
        report(f"{model}: {setting.turns} turns")
    top = _top(setting)
    report(f"{setting.eigenvalue_model}: top eigenvalue, {top.seconds:.1f} s")
    return Measurement(setting, ratios, top)


def _curvature(model: str, images: int, batch_size: int) -> hessian.Hessian:
    from tff_reg import models

    random = np.random.default_rng(0)
    x = random.normal(size=(images, *_IMAGE_SHAPE)).astype(np.float32)
    y = random.integers(0, _CLASSES, images).astype(np.int32)
    model_fn = models.build_model_fn(
        model, image_shape=_IMAGE_SHAPE, num_classes=_CLASSES
    )
    return hessian.Hessian(model_fn(), (x, y), batch_size=batch_size)


def _seconds(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _ratio(model: str, setting: Setting) -> Ratio:
    curvature = _curvature(model, setting.batch_size, setting.batch_size)
    vector = np.random.default_rng(1).normal(size=curvature.size)
    first = _seconds(lambda: curvature.product(vector))
    curvature.gradient()
    gradients, products = [], []
    for _ in range(setting.turns):
        gradients.append(_seconds(curvature.gradient))
        products.append(_seconds(lambda: curvature.product(vector)))
    ratios = [p / g for g, p in zip(gradients, products)]
    return Ratio(
        model,
        statistics.median(gradients),
        statistics.median(products),
        ratios,
        statistics.median(ratios),
        first,
    )


def _top(setting: Setting) -> TopEigenvalue:
    model, images = setting.eigenvalue_model, setting.eigenvalue_images
    began = time.perf_counter()
    pairs = _curvature(model, images, setting.batch_size).top_eigenvalues(1)
    return TopEigenvalue(
        model,
        images,
        time.perf_counter() - began,
        pairs.products,
        float(pairs.values[0]),
        float(pairs.errors[0]),
    )


def as_json(measurement: Measurement) -> dict[str, Any]:
    """The measurement as JSON values by name."""
    return dataclasses.asdict(measurement)


def table(row: dict[str, Any]) -> list[str]:
    """Lines for a person.

    Args:
      row: From `as_json`.

    Returns:
      The lines.
    """
    batch_size = row["setting"]["batch_size"]
    lines = [
        f"| model, batch of {batch_size} | gradient (ms) | product (ms) |"
        " ratio (median) | middle half | first product (s) |",
        "|---|---|---|---|---|---|",
    ]
    for ratio in row["ratios"]:
        low, _, high = statistics.quantiles(ratio["ratios"], n=4)
        lines.append(
            f"| {ratio['model']} | {1000 * ratio['gradient_seconds']:.1f}"
            f" | {1000 * ratio['product_seconds']:.1f} | {ratio['ratio']:.2f}"
            f" | {low:.2f} - {high:.2f} | {ratio['first_seconds']:.1f} |"
        )
    top = row["top"]
    lines += [
        "",
        f"Target: {TARGET_RATIO} gradients a product.",
        f"Top eigenvalue of {top['model']} on {top['images']} images:"
        f" {top['value']:.6g} (estimated error {top['error']:.1e}) after"
        f" {top['products']} products, {top['seconds']:.1f} s with tracing"
        f" (target: {TARGET_SECONDS:.0f} s).",
    ]
    return lines
