"""Skews of clients' own examples: noise, rotation and hue of images, wrong labels.

They are drawn once, by the seed of the split and the client's name; the test set stays
clean. Examples that a client holds out have its images, and their right labels.

* Feature noise: Q. Li et al., "Federated Learning on Non-IID Data Silos: An
  Experimental Study" (NIID-Bench), ICDE 2022, Section IV-B. The paper names
  `strength * i / N` the variance of client i of N, its code and this one the deviation.
  Its code draws again in each epoch. uint8 images are rounded and clipped.
* Rotations: A. Ghosh et al., "An Efficient Framework for Clustered Federated Learning"
  (IFCA), NeurIPS 2020, Section 6; counterclockwise.
* Hues: a shift in HSV, as torchvision's `adjust_hue`.
* Label noise: symmetric, as X. Fang, M. Ye, "Robust Federated Learning with Noisy and
  Heterogeneous Clients", CVPR 2022: exactly this share of labels is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tff_reg.data import keys
from tff_reg.lazy import mpl_colors, np
from tff_reg.settings import SettingError

if TYPE_CHECKING:
    from tff_reg.data.client_data import ArrayClientData

# The settings of lists by client, with the name of a client's own value.
_LISTS = {"rotations": "rotation", "hues": "hue", "label_noise": "wrong_labels"}


def of_clients(settings: Mapping[str, Any], num_clients: int) -> list[dict[str, float]]:
    """Returns the skews of each client by name; none that no setting asks for."""
    found: list[dict[str, float]] = [{} for _ in range(num_clients)]
    for number, own in enumerate(found):
        if strength := settings.get("feature_noise"):
            own["noise_deviation"] = strength * (number + 1) / num_clients
        for name, of_client in _LISTS.items():
            if values := settings.get(name):
                own[of_client] = values[number % len(values)]
    return found


def apply(
    clients: ArrayClientData,
    settings: Mapping[str, Any],
    *,
    seed: int,
    num_classes: int,
    largest: float | None,
) -> ArrayClientData:
    """Returns clients with skewed copies of their examples.

    Args:
      clients: The clients; no two share an example.
      settings: The skews by their settings' names.
      seed: The seed of the split.
      num_classes: The number of classes.
      largest: The largest pixel of uint8 images; None for float32, as if it were 1.

    Raises:
      SettingError: If clients share examples, or these are no images for a setting, or
        of one class only.
    """
    skews = of_clients(settings, len(clients.client_ids))
    if not any(skews):
        return clients
    x, y = clients.arrays
    _check(settings, x, num_classes)
    x, y = x.copy(), y.copy()
    tests, of_tests, apart = clients.tests, (x, y), None
    if tests is not None and tests.arrays[1] is not clients.arrays[1]:
        apart, of_tests = tests, (tests.arrays[0].copy(), tests.arrays[1])
    visited = np.zeros(len(y), bool)
    for name, skew in zip(clients.client_ids, skews):
        own = rows = clients.client_positions(name)
        if apart is not None and (held := apart.client_positions(name)).size:
            images = of_tests[0][held]
            of_tests[0][held] = _images(images, skew, largest, seed, f"{name} tests")
        if apart is None and tests is not None:
            rows = np.union1d(own, tests.client_positions(name))
        if visited[rows].any():
            given = next(
                each for each in ("feature_noise", *_LISTS) if settings.get(each)
            )
            why = f"{name} shares examples with another client; give each its own."
            raise SettingError(given, settings[given], why)
        visited[rows] = True
        if rows.size:
            x[rows] = _images(x[rows], skew, largest, seed, name)
        if share := skew.get("wrong_labels"):
            generator = keys.driver_generator("label_noise", seed, name)
            wrong = own[generator.permutation(own.size)[: round(share * own.size)]]
            y[wrong] += generator.integers(1, num_classes, wrong.size, np.int32)
            y[wrong] %= num_classes

    def with_copies(of: ArrayClientData, x: Any, y: Any) -> ArrayClientData:
        positions = [of.client_positions(name) for name in of.client_ids]
        return type(of)(x, y, positions, of.client_ids)

    skewed = with_copies(clients, x, y)
    skewed.tests = tests and with_copies(tests, *of_tests)
    return skewed


def _check(settings: Mapping[str, Any], x: np.ndarray, num_classes: int) -> None:
    """Refuses rotations and hues of what has none, and wrong labels of one class."""
    if (noise := settings.get("label_noise")) and num_classes < 2:
        raise SettingError("label_noise", noise, "the data have no two classes.")
    for name in ("feature_noise", "rotations", "hues"):
        if settings.get(name) and not hasattr(x, "ndim"):
            raise SettingError(name, settings[name], "the examples are no images.")
    if (hues := settings.get("hues")) and (x.dtype != np.uint8 or x.shape[3:] != (3,)):
        raise SettingError("hues", hues, "it needs uint8 images with three colours.")
    rotations = settings.get("rotations")
    if rotations and (x.ndim != 4 or x.shape[1] != x.shape[2]):
        raise SettingError("rotations", rotations, "it needs square images.")


def _images(x, skew: Mapping[str, float], largest, seed: int, name: str) -> np.ndarray:
    """Returns a client's images with its skew."""
    if rotation := skew.get("rotation"):
        x = np.rot90(x, int(rotation) // 90, axes=(1, 2))
    if hue := skew.get("hue"):
        hsv = mpl_colors.rgb_to_hsv(x / np.float32(255))
        hsv[..., 0] = (hsv[..., 0] + hue / 360) % 1
        x = np.rint(255 * mpl_colors.hsv_to_rgb(hsv)).astype(np.uint8)
    if deviation := skew.get("noise_deviation"):
        generator = keys.driver_generator("feature_noise", seed, name)
        noise = generator.standard_normal(x.shape, np.float32) * deviation
        if largest is None:
            return x + noise
        x = np.clip(np.rint(x + largest * noise), 0, largest).astype(np.uint8)
    return x
