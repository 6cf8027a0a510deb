"""Tiny-ImageNet in its official layout."""

import pytest

from tests.tasks import layouts
from tff_reg import tasks
from tff_reg.tasks import tiny_imagenet


@pytest.mark.parametrize("inside", [False, True])
def test_reads_train_and_the_annotated_val(tmp_path, inside):
    written = layouts.write_tiny_imagenet(tmp_path)
    folder = tmp_path / "tiny-imagenet-200" if inside else tmp_path
    data = tiny_imagenet.load(str(folder))
    layouts.assert_holds(data, written)
    assert data.class_names == ("n00000000", "n00000001", "n00000002")


def test_raises_on_a_folder_that_is_something_else(tmp_path):
    with pytest.raises(tasks.DataError, match="no tiny-imagenet-200.*download http"):
        tiny_imagenet.load(str(tmp_path))
    (tmp_path / "tiny-imagenet-200" / "train").mkdir(parents=True)
    with pytest.raises(tasks.DataError, match="has no val/images"):
        tiny_imagenet.load(str(tmp_path))


@pytest.mark.parametrize(
    "text, words",
    [
        ("val_0.JPEG\tn99999999\t0\t0\t1\t1\n", "names no image and class of train"),
        ("\n", "is empty"),
        ("val_77.JPEG\tn00000000\t0\t0\t1\t1\n", "val_77.JPEG is missing"),
    ],
)
def test_raises_on_wrong_annotations(tmp_path, text, words):
    layouts.write_tiny_imagenet(tmp_path)
    path = tmp_path / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    path.write_text(text)
    with pytest.raises(tasks.DataError, match=words):
        tiny_imagenet.load(str(tmp_path))
