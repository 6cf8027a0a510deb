"""Small data sets in the layouts that the official downloads unpack to."""

import csv
import pathlib
import pickle
import sqlite3

import numpy as np
import tensorflow as tf
from PIL import Image

from tff_reg.lazy import tff

SHARED = pathlib.Path(__file__).parents[3] / "shared" / "data"


def assert_holds(data, written):
    """What was loaded is what was written, of the common types and in its order."""
    for part, (images, labels) in written.items():
        x, y = getattr(data, f"x_{part}"), getattr(data, f"y_{part}")
        assert x.dtype == np.uint8 and np.array_equal(x, images)
        assert y.dtype == np.int32 and np.array_equal(y, labels)


def random_images(count, *shape, seed=0):
    """uint8 [count, *shape]."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, *shape), np.uint8)


def some_labels(count, num_classes, seed=0):
    """int64 [count] with every class, shuffled."""
    return np.random.default_rng(seed).permutation(np.arange(count) % num_classes)


def to_planes(images):
    """[n, height, width, 3] to CIFAR's rows of colour planes."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_cifar(folder, *, binary, num_classes, batch=20):
    """Writes CIFAR-10 (10 classes) or CIFAR-100; returns images and labels by part."""
    ten = num_classes == 10
    name = {
        (True, True): "cifar-10-batches-bin",
        (True, False): "cifar-10-batches-py",
        (False, True): "cifar-100-binary",
        (False, False): "cifar-100-python",
    }[ten, binary]
    folder = folder / name
    folder.mkdir()
    train = [f"data_batch_{i}" for i in range(1, 6)] if ten else ["train"]
    test = "test_batch" if ten else "test"
    written = {}
    for part, names in (("train", train), ("test", [test])):
        count = batch * len(names)
        images = random_images(count, 32, 32, 3, seed=len(part))
        labels = some_labels(count, num_classes, seed=len(part))
        written[part] = images, labels
        for i, file in enumerate(names):
            rows = slice(i * batch, (i + 1) * batch)
            if binary:
                _write_cifar_binary(folder / f"{file}.bin", images[rows], labels[rows])
            else:
                _write_cifar_pickle(folder / file, images[rows], labels[rows], ten)
            if binary and not ten:
                # The coarse label comes first.
                path = folder / f"{file}.bin"
                content = np.fromfile(path, np.uint8).reshape(-1, 3073)
                coarse = np.zeros((len(content), 1), np.uint8)
                np.hstack([coarse, content]).tofile(path)
    class_names = [f"class {i}" for i in range(num_classes)]
    if binary:
        file = "batches.meta.txt" if ten else "fine_label_names.txt"
        # As CIFAR-10's, which ends with an empty line.
        (folder / file).write_text("\n".join(class_names) + "\n\n")
    else:
        key = "label_names" if ten else "fine_label_names"
        with open(folder / ("batches.meta" if ten else "meta"), "wb") as file:
            pickle.dump({key: class_names}, file, protocol=2)
    return written


def _write_cifar_binary(path, images, labels):
    rows = np.hstack([labels[:, np.newaxis].astype(np.uint8), to_planes(images)])
    rows.tofile(path)


def _write_cifar_pickle(path, images, labels, ten):
    content = {
        "batch_label": "training batch",
        "labels" if ten else "fine_labels": [int(label) for label in labels],
        "data": to_planes(images),
        "filenames": [f"{i}.png" for i in range(len(labels))],
    }
    if not ten:
        content["coarse_labels"] = [0] * len(labels)
    with open(path, "wb") as file:
        pickle.dump(content, file, protocol=2)


def write_stl10(folder, num_train=20, num_test=10):
    """Writes `stl10_binary`; returns images and labels by part."""
    folder = folder / "stl10_binary"
    folder.mkdir()
    written = {}
    for part, count in (("train", num_train), ("test", num_test)):
        images = random_images(count, 96, 96, 3, seed=count)
        labels = some_labels(count, 10, seed=count)
        # Channels, then columns, then rows.
        images.transpose(0, 3, 2, 1).tofile(folder / f"{part}_X.bin")
        (labels + 1).astype(np.uint8).tofile(folder / f"{part}_y.bin")
        written[part] = images, labels
    (folder / "class_names.txt").write_text("\n".join(f"c{i}" for i in range(10)))
    return written


def write_image(path, image):
    """Writes a file; PNG keeps the pixels, whatever the ending of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, format="PNG")


def write_tiny_imagenet(folder, num_classes=3):
    """Writes `tiny-imagenet-200`; returns images and labels by part."""
    folder, per_class, num_val = folder / "tiny-imagenet-200", 4, 5
    wnids = [f"n{i:08d}" for i in range(num_classes)]
    train = random_images(num_classes * per_class, 64, 64, 3)
    for row, image in enumerate(train):
        wnid = wnids[row // per_class]
        name = f"{wnid}_{row % per_class}.JPEG"
        write_image(folder / "train" / wnid / "images" / name, image)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("x\t0\t0\t1\t1\n")
    val = random_images(num_val, 64, 64, 3, seed=1)
    labels = some_labels(num_val, num_classes)
    lines = []
    for row, image in enumerate(val):
        name = f"val_{row}.JPEG"
        write_image(folder / "val" / "images" / name, image)
        lines.append(f"{name}\t{wnids[labels[row]]}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return {
        "train": (train, np.repeat(np.arange(num_classes), per_class)),
        "test": (val, labels),
    }


def write_class_folders(folder, names, per_class, *shape, suffix=".jpg", seed=0):
    """Writes `<name>/NNNN.jpg`; returns the images by class."""
    images = random_images(len(names) * per_class, *shape, 3, seed=seed)
    for row, image in enumerate(images):
        name = f"{row % per_class:04d}{suffix}"
        write_image(folder / names[row // per_class] / name, image)
    return images.reshape(len(names), per_class, *shape, 3)


def write_ham10000(folder, *, with_sources=True):
    """Writes the table and both folders; returns the table's rows."""
    kinds = ["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]
    sources = ["rosendahl", "vidir_modern"]
    rows, number = [], 0
    for lesion in range(60):
        for _ in range(1 + lesion % 3):
            row = {
                "lesion_id": f"HAM_{lesion:07d}",
                "image_id": f"ISIC_{number:07d}",
                "dx": kinds[lesion % 7],
                "dx_type": "histo",
                "age": "60.0",
                "sex": "",
                "localization": "back",
            }
            if with_sources:
                row["dataset"] = sources[lesion // 7 % 2]
            rows.append(row)
            part = f"HAM10000_images_part_{1 + number % 2}"
            image = random_images(1, 12, 16, 3, seed=number)[0]
            write_image(folder / part / f"{row['image_id']}.jpg", image)
            number += 1
    with open(folder / "HAM10000_metadata.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        # The official table is not in the order of the images either.
        writer.writerows(rows[::-1])
    return rows


def write_tff_file(path, splits):
    """Writes TFF's SQLite format by its writer: {split: {client: {feature: [n, ...]}}}.

    Its writer gives a client one split, so each split is a file, and they are joined.
    """
    slices = tf.data.Dataset.from_tensor_slices
    for split, clients in splits.items():
        part = str(path) if split == next(iter(splits)) else f"{path}.{split}"
        tff.simulation.datasets.save_to_sql_client_data(
            list(clients),
            lambda name, clients=clients: slices(clients[name]),
            part,
            split_names_by_client_id=dict.fromkeys(clients, split),
        )
        if part != str(path):
            with sqlite3.connect(path) as base:
                base.execute("ATTACH ? AS other", [part])
                for table in ("examples", "client_metadata"):
                    base.execute(f"INSERT INTO {table} SELECT * FROM other.{table}")
