"""Measures the time of Hessian-vector products and of the top eigenvalue.

A product and a gradient of the same batch take turns, so that other work on the machine
slows down both.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.shared import measuring, subject
from tff_reg import models
from tff_reg.analysis import hessian
from tff_reg.lazy import np

# Gradients a product, and seconds of the top eigenvalue, that are meant to be kept.
TARGET_RATIO, TARGET_SECONDS = 2.5, 60.0
_IMAGE_SHAPE, _CLASSES = (32, 32, 3), 10


@dataclasses.dataclass(frozen=True)
class Setting:
    """The sizes of the measurement.

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


def measure(
    setting: Setting = Setting(), *, report: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measures products, then the top eigenvalue.

    Args:
      setting: What to measure.
      report: Called with a line now and then.

    Returns:
      JSON values by name.

      - `setting`: What was measured.
      - `ratios`: For each model a product against a gradient: `model`,
        `gradient_seconds` and `product_seconds` (medians), `ratios` of each turn's
        product to the gradient before it, their median `ratio`, and `first_seconds` of
        the first product, with tracing.
      - `top`: The top eigenvalue of `model` on `images` examples: its `value` and
        estimated `error`, the Hessian-vector `products` that it took, and `seconds`,
        with tracing.
    """
    ratios = []
    for model in setting.models:
        ratios.append(_ratio(model, setting))
        report(f"{model}: {setting.turns} turns")
    top = _top(setting)
    report(f"{setting.eigenvalue_model}: top eigenvalue, {top['seconds']:.1f} s")
    return {"setting": dataclasses.asdict(setting), "ratios": ratios, "top": top}


def _curvature(model: str, images: int, batch_size: int) -> hessian.Hessian:
    random = np.random.default_rng(0)
    x = random.normal(size=(images, *_IMAGE_SHAPE)).astype(np.float32)
    y = random.integers(0, _CLASSES, images).astype(np.int32)
    model_fn = models.build_model_fn(
        model, image_shape=_IMAGE_SHAPE, num_classes=_CLASSES
    )
    return hessian.Hessian(model_fn(), (x, y), batch_size=batch_size)


def _ratio(model: str, setting: Setting) -> dict[str, Any]:
    curvature = _curvature(model, setting.batch_size, setting.batch_size)
    vector = np.random.default_rng(1).normal(size=curvature.size)
    ways = {
        "gradient": curvature.gradient,
        "product": lambda: curvature.product(vector),
    }
    first = measuring.seconds(ways["product"])
    curvature.gradient()
    found = measuring.in_turns(ways, setting.turns)
    ratios = [p / g for g, p in zip(found["gradient"], found["product"])]
    return {
        "model": model,
        "gradient_seconds": statistics.median(found["gradient"]),
        "product_seconds": statistics.median(found["product"]),
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "first_seconds": first,
    }


def _top(setting: Setting) -> dict[str, Any]:
    model, images = setting.eigenvalue_model, setting.eigenvalue_images
    began = time.perf_counter()
    pairs = _curvature(model, images, setting.batch_size).top_eigenvalues(1)
    return {
        "model": model,
        "images": images,
        "seconds": time.perf_counter() - began,
        "products": pairs.products,
        "value": float(pairs.values[0]),
        "error": float(pairs.errors[0]),
    }


def table(row: Mapping[str, Any]) -> list[str]:
    """The lines of a table of what `measure` returns."""
    cells = []
    for ratio in row["ratios"]:
        low, _, high = statistics.quantiles(ratio["ratios"], n=4)
        cells.append(
            {
                f"model, batch of {row['setting']['batch_size']}": ratio["model"],
                "gradient (ms)": f"{1000 * ratio['gradient_seconds']:.1f}",
                "product (ms)": f"{1000 * ratio['product_seconds']:.1f}",
                "ratio (median)": f"{ratio['ratio']:.2f}",
                "middle half": f"{low:.2f} - {high:.2f}",
                "first product (s)": f"{ratio['first_seconds']:.1f}",
            }
        )
    top = row["top"]
    return [
        *subject.to_markdown(cells),
        "",
        f"Target: {TARGET_RATIO} gradients a product.",
        f"Top eigenvalue of {top['model']} on {top['images']} images:"
        f" {top['value']:.6g} (estimated error {top['error']:.1e}) after"
        f" {top['products']} products, {top['seconds']:.1f} s with tracing"
        f" (target: {TARGET_SECONDS:.0f} s).",
    ]


def _run(given: flags.FlagValues) -> None:
    row = measure(QUICK if given.quick else Setting(), report=subject.say)
    subject.finish(given, [row], table(row))


SUBJECT = subject.Subject(
    run=_run,
    help="""\
bin/bench hessian [--quick] [--json=FILE]
  Hessian-vector products relative to gradients of the same batch, of ResNet-20 and the
  small CNN; seconds for the top eigenvalue of ResNet-20 on 512 images. Two minutes, or
  one with --quick.""",
)
