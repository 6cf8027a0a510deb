"""Decoding image files into one uint8 array, with Pillow.

The papers' PyTorch code decodes and resizes with Pillow, so the pixels are the same.
(TensorFlow's JPEG decoder differs by up to 5.) As in that code, the EXIF orientation is
ignored. Of 16-bit values the upper 8 bits are used.
"""

from __future__ import annotations

import collections
import concurrent.futures
import io
import os
from collections.abc import Callable, Iterable, Sequence

from tff_reg.lazy import np, pil_image
from tff_reg.tasks.task_defaults import DataError

SUFFIXES = (".jpg", ".jpeg", ".png")
# Suffixes of images that TFDS's ImageFolder skips without a message.
_OTHER_SUFFIXES = (
    *(".apng", ".avif", ".bmp", ".dng", ".gif", ".heic", ".heif", ".jfif", ".jp2"),
    *(".jpe", ".pbm", ".pgm", ".ppm", ".svg", ".tga", ".tif", ".tiff", ".webp"),
)
# ImageNet's usual test preprocessing: the shorter side becomes 256/224 of the crop's.
IMAGENET_MARGIN = 256 / 224


def list_folder(folder: str) -> list[str]:
    """Lists the paths of a folder's images, sorted by name.

    Raises:
      DataError: If the folder cannot be read or has no images; if it contains a folder
        or an image of another kind.
    """
    paths = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name.lower()
                if name.endswith(_OTHER_SUFFIXES):
                    raise DataError(
                        f"{entry.path} is an image of a kind that is not read; convert"
                        " it to .png or .jpg, or move it away."
                    )
                if not name.endswith(SUFFIXES):
                    if entry.is_dir() and not name.startswith("."):
                        raise DataError(
                            f"{entry.path} is a folder, and its images are not read;"
                            f" move them up into {folder}, or the folder away."
                        )
                    continue
                paths.append(entry.path)
    except OSError as error:
        where = error.filename or folder
        raise DataError(f"{where} cannot be read ({error.strerror}).") from error
    if not paths:
        raise DataError(f"{folder} has no images ({', '.join(SUFFIXES)}).")
    return sorted(paths)


def read(paths: Sequence[str], size: int | None, *, margin: float = 1.0) -> np.ndarray:
    """Reads image files as `decode_all` does."""
    return decode_all(((path, None) for path in paths), len(paths), size, margin=margin)


def decode_all(
    items: Iterable[tuple[str, bytes | None]],
    count: int,
    size: int | None,
    *,
    margin: float = 1.0,
) -> np.ndarray:
    """Decodes images on all cores into one array.

    Args:
      items: For each image, its path and its encoded bytes; None reads the file.
      count: The number of images.
      size: Height and width: the shorter side is resized to `size * margin` (bilinear,
        antialiased), and the middle is cut out. None keeps images as they are; then
        all must have the same size.
      margin: At least 1.

    Returns:
      uint8 [count, height, width, 3].

    Raises:
      DataError: If an image cannot be read, is damaged or has another size.
    """
    images = None
    # A window: only a few decoded images wait to be stored.
    window = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        work = enumerate(items)
        try:
            for row in range(count):
                while len(window) < 64 and (item := next(work, None)) is not None:
                    path, content = item[1]
                    job = pool.submit(_decode, path, content, size, margin)
                    window.append((path, job))
                path, job = window.popleft()
                image = job.result()
                if images is None:
                    images = np.empty((count, *image.shape), np.uint8)
                if image.shape != images.shape[1:]:
                    raise DataError(
                        f"{path} has {_shape(image)} pixels, the images before it "
                        f"{_shape(images[0])}; give image_size=N to bring all to one "
                        "size."
                    )
                images[row] = image
        finally:
            for _, job in window:
                job.cancel()
    if images is None:
        raise DataError("There are no images to read.")
    return images


def _shape(image: np.ndarray) -> str:
    return f"{image.shape[0]}x{image.shape[1]}"


def _decode(
    path: str, content: bytes | None, size: int | None, margin: float
) -> np.ndarray:
    """Decodes one image to uint8 [height, width, 3]."""
    try:
        with pil_image.open(path if content is None else io.BytesIO(content)) as image:
            if size is not None:
                # Decodes a JPEG at a fraction of its size if that is enough.
                wanted = round(size * margin)
                image.draft("RGB", (2 * wanted, 2 * wanted))
                return np.asarray(_resize(_to_rgb(image, path), size, wanted))
            return np.asarray(_to_rgb(image, path))
    except DataError:
        raise
    except (
        OSError,
        ValueError,
        SyntaxError,
        pil_image.DecompressionBombError,
    ) as error:
        raise DataError(f"{path} is missing or no image that can be read.") from error


def _to_rgb(image, path: str):
    if image.mode in ("I", "F"):
        # Older Pillows read 16 bits as "I".
        raise DataError(
            f"{path} has pixels of 32 bits ({image.mode}) in an unknown range; convert"
            " it to 8 bits."
        )
    if image.mode.startswith("I;16"):
        # Pillow does the same for colours of 16 bits; `convert` would clip at 255.
        image = pil_image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


def _resize(image, size: int, wanted: int):
    """Resizes the shorter side to `wanted` pixels and cuts size x size out."""
    width, height = image.size
    if min(width, height) != wanted:
        if width <= height:
            new = (wanted, max(wanted, int(height * wanted / width)))
        else:
            new = (max(wanted, int(width * wanted / height)), wanted)
        image = image.resize(new, pil_image.Resampling.BILINEAR)
    left = round((image.size[0] - size) / 2)
    top = round((image.size[1] - size) / 2)
    return image.crop((left, top, left + size, top + size))


def read_classes(
    folder: str,
    class_names: Sequence[str],
    *,
    below: str = "",
    choose: Callable[[list[str]], list[str]] = lambda paths: paths,
) -> tuple[list[str], np.ndarray]:
    """Lists the images of a folder that has one folder for each class.

    Args:
      folder: Holds `<class>/<below>/*.jpg`.
      class_names: The classes, in the order of their labels.
      below: A folder within each class's folder.
      choose: Chooses some of a class's sorted paths.

    Returns:
      Paths by class and then by name, and labels int64 [n].

    Raises:
      DataError: If a class has no images.
    """
    paths, labels = [], []
    for label, name in enumerate(class_names):
        own = choose(list_folder(os.path.normpath(os.path.join(folder, name, below))))
        paths += own
        labels += [label] * len(own)
    return paths, np.array(labels, dtype=np.int64)
