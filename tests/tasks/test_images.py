"""Decoding image files: sizes, kinds, order, damage."""

import numpy as np
import pytest
from PIL import Image

from tests.tasks import layouts
from tff_reg import tasks
from tff_reg.tasks import images


def _write(folder, pictures, form="PNG"):
    paths = []
    for row, picture in enumerate(pictures):
        paths.append(str(folder / f"{row:04d}.jpg"))
        Image.fromarray(picture).save(paths[-1], format=form)
    return paths


def test_many_files_come_back_in_the_order_of_their_paths(tmp_path):
    # More than are decoded at a time.
    pictures = layouts.random_images(200, 5, 7, 3)
    found = images.read(_write(tmp_path, pictures), None)
    assert found.dtype == np.uint8 and np.array_equal(found, pictures)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "1"])
def test_everything_becomes_three_colours(tmp_path, mode):
    picture = Image.fromarray(layouts.random_images(1, 8, 8, 3)[0]).convert(mode)
    form = "TIFF" if mode == "CMYK" else "PNG"
    picture.save(tmp_path / "a.png", format=form)
    (found,) = images.read([str(tmp_path / "a.png")], None)
    assert np.array_equal(found, np.asarray(picture.convert("RGB")))


@pytest.mark.parametrize("size", [None, 8])
def test_the_upper_half_of_16_bits_is_taken(tmp_path, size):
    grey = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1040
    Image.fromarray(grey).save(tmp_path / "a.png")
    (found,) = images.read([str(tmp_path / "a.png")], size)
    assert np.array_equal(found, np.stack([grey // 256] * 3, axis=-1))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_raises_on_pixels_of_32_bits(tmp_path, dtype):
    path = str(tmp_path / "a.png")
    Image.fromarray(np.full((4, 4), 1000, dtype)).save(path, format="TIFF")
    with pytest.raises(tasks.DataError, match="a.png has pixels of 32 bits"):
        images.read([path], None)


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (50, 50), (41, 67)])
def test_the_shorter_side_is_resized_and_the_middle_cut_out(tmp_path, shape):
    (picture,) = layouts.random_images(1, *shape, 3)
    (found,) = images.read(_write(tmp_path, [picture]), 20, margin=1.5)
    height, width = shape
    new = (30, 30 * height // width) if width < height else (30 * width // height, 30)
    whole = Image.fromarray(picture).resize(new, Image.Resampling.BILINEAR)
    left, top = round((new[0] - 20) / 2), round((new[1] - 20) / 2)
    expected = whole.crop((left, top, left + 20, top + 20))
    assert np.array_equal(found, np.asarray(expected))


def test_a_large_jpeg_is_decoded_at_a_fraction_and_looks_the_same(tmp_path):
    y, x = np.mgrid[:400, :600]
    picture = np.stack([x % 256, y % 256, (x + y) % 256], axis=-1).astype(np.uint8)
    picture = np.asarray(Image.fromarray(picture).resize((1200, 800)))
    (path,) = _write(tmp_path, [picture], "JPEG")
    (found,) = images.read([path], 32)
    with Image.open(path) as whole:
        small = whole.resize((48, 32), Image.Resampling.BILINEAR).crop((8, 0, 40, 32))
    difference = np.abs(found.astype(int) - np.asarray(small))
    assert difference.mean() < 4


def test_raises_on_images_of_different_sizes(tmp_path):
    pictures = [np.zeros((4, 4, 3), np.uint8), np.zeros((4, 5, 3), np.uint8)]
    paths = _write(tmp_path, pictures)
    with pytest.raises(tasks.DataError, match="4x5 pixels.*4x4; give image_size"):
        images.read(paths, None)
    assert images.read(paths, 4).shape == (2, 4, 4, 3)


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
@pytest.mark.parametrize("length", [0, 10, 300])
def test_raises_on_a_damaged_file_and_names_it(tmp_path, form, length):
    paths = _write(tmp_path, layouts.random_images(3, 16, 16, 3), form)
    with open(paths[1], "r+b") as file:
        file.truncate(length)
    with pytest.raises(tasks.DataError, match="0001.jpg is missing or no image"):
        images.read(paths, 16)


def test_lists_images_by_name_and_nothing_else(tmp_path):
    for name in ("b.PNG", "a.jpg", "c.JPEG", "readme.txt", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / ".folder").mkdir()
    names = [path.rpartition("/")[2] for path in images.list_folder(str(tmp_path))]
    assert names == ["a.jpg", "b.PNG", "c.JPEG"]


def test_raises_on_images_and_folders_that_would_be_passed_over(tmp_path):
    (tmp_path / "a.jpg").touch()
    (tmp_path / "b.webp").touch()
    with pytest.raises(tasks.DataError, match="b.webp is an image .* convert it to"):
        images.list_folder(str(tmp_path))
    (tmp_path / "b.webp").unlink()
    (tmp_path / "more").mkdir()
    with pytest.raises(tasks.DataError, match="more is a folder, and its images"):
        images.list_folder(str(tmp_path))


def test_raises_on_a_folder_without_images(tmp_path):
    with pytest.raises(tasks.DataError, match="has no images"):
        images.list_folder(str(tmp_path))
    with pytest.raises(tasks.DataError, match="cannot be read"):
        images.list_folder(str(tmp_path / "none"))
