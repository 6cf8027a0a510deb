"""Files of the form of the golden ones, for networks that have none.

The numbers come from plain TensorFlow in PyTorch's layout, written from the authors'
layers, not from the package.
"""

from __future__ import annotations

import collections
import json

import numpy as np
import tensorflow as tf

from tests.golden import replay


def parameters(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """The arrays that say how to make weights, by the rules of cases/README.md.

    Args:
      shapes: PyTorch's shapes by PyTorch's names, in PyTorch's order.

    Returns:
      The arrays by their keys.
    """
    offsets, amplitudes = [], []
    for name, shape in shapes.items():
        is_weight = name.endswith(".weight")
        if len(shape) > 1:
            offset, amplitude = 0.0, np.sqrt(2 / np.prod(shape[1:]))
        elif f"{name.rpartition('.')[0]}.weight" in shapes and is_weight:
            offset, amplitude = 1.0, 0.1
        else:
            offset, amplitude = 0.0, 0.05
        offsets.append(offset)
        amplitudes.append(amplitude)
    padded = [[*shape, *[0] * (4 - len(shape))] for shape in shapes.values()]
    return dict(
        param_names=np.array([*shapes]),
        param_shapes=np.array(padded),
        param_offset=np.array(offsets),
        param_amp=np.array(amplitudes),
    )


def summary(key: str, arrays) -> dict[str, np.ndarray]:
    """What files have of one array for every weight."""
    flat = [np.asarray(array, np.float64).ravel() for array in arrays]
    first16 = np.full([len(flat), 16], np.nan)
    for row, values in zip(first16, flat):
        row[: len(values)] = values[:16]
    return {
        f"f64.{key}.norm": np.array([np.linalg.norm(values) for values in flat]),
        f"f64.{key}.sum": np.array([values.sum() for values in flat]),
        f"f64.{key}.first16": first16,
        f"f64.{key}.total_norm": np.linalg.norm(np.concatenate(flat)),
    }


def save(path, config: dict, arrays: dict):
    np.savez(path, config=np.array(json.dumps(config)), **arrays)


def inputs(path, config: dict, shapes: dict[str, list[int]]):
    """Writes the beginnings of a file and reads them.

    Returns:
      The arrays written, the weights and a function that gives a batch's images, in
      PyTorch's layout, and labels, all in float64.
    """
    arrays = parameters(shapes)
    save(path, config, arrays)
    case = replay.Case(path.stem, "float64", path.parent)
    weights = {
        name: tf.Variable(value.astype(np.float64))
        for name, value in case.weights(config["weights_phase"]).items()
    }

    def batch(number):
        images, labels = case.batch(number).values()
        return tf.transpose(images, [0, 3, 1, 2]), labels

    return arrays, weights, batch


def convolution(x, weight, stride=1):
    """PyTorch's convolution with padding (size - 1) / 2; images channels first."""
    pad = weight.shape[-1] // 2
    x = tf.pad(tf.transpose(x, [0, 2, 3, 1]), [[0, 0], [pad, pad], [pad, pad], [0, 0]])
    x = tf.nn.conv2d(x, tf.transpose(weight, [2, 3, 1, 0]), stride, "VALID")
    return tf.transpose(x, [0, 3, 1, 2])


def pool(x):
    x = tf.nn.max_pool2d(tf.transpose(x, [0, 2, 3, 1]), 2, 2, "VALID")
    return tf.transpose(x, [0, 3, 1, 2])


def scaled(x, weights, name):
    """The learnt scale and offset of a norm."""
    scale, offset = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return x * scale[:, None, None] + offset[:, None, None]


def group_norm(x, weights, name, groups):
    grouped = tf.reshape(x, [x.shape[0], groups, -1])
    mean, variance = tf.nn.moments(grouped, [2], keepdims=True)
    normalised = tf.reshape((grouped - mean) / tf.sqrt(variance + 1e-5), x.shape)
    return scaled(normalised, weights, name)


def cross_entropy(logits, labels):
    log_probabilities = tf.nn.log_softmax(logits)
    return -tf.reduce_mean(tf.gather(log_probabilities, labels, batch_dims=1))


def _mean_square(x):
    return tf.reduce_mean(tf.square(x), list(range(1, x.shape.rank)))


def man_convnet(weights, x, variant):
    """MAN's ConvNet.

    Returns:
      The logits, and every activation term before its mean: of the paper, or of one
      of the authors' two codes ('code', 'samcode').
    """
    terms = []
    for number in (1, 2, 3):
        x = convolution(x, weights[f"conv{number}.weight"])
        x = x + weights[f"conv{number}.bias"][:, None, None]
        x = tf.nn.relu(group_norm(x, weights, f"gn{number}", groups=4))
        before, x = x, pool(x)
        terms.append(_mean_square(x if (number, variant) == (3, "samcode") else before))
    x = tf.reshape(x, [x.shape[0], -1])
    for number in (1, 2):
        x = x @ tf.transpose(weights[f"fc{number}.weight"])
        x = tf.nn.relu(x + weights[f"fc{number}.bias"])
        terms.append(_mean_square(x))
    if variant == "code":
        # The third overwritten by the fourth; squares of PyTorch's std at the end.
        deviations = tf.square(x - tf.reduce_mean(x, axis=0))
        variances = tf.reduce_sum(deviations, axis=0) / (x.shape[0] - 1)
        terms = [terms[0], terms[1], terms[3], terms[4], variances]
    return x @ tf.transpose(weights["fc3.weight"]) + weights["fc3.bias"], terms


def write_man_convnet(path, variant: str, image=(3, 64, 64), classes=7, batch_size=3):
    """Writes an H file of MAN on its authors' ConvNet."""
    config = dict(
        model="ConvNet",
        variant=variant,
        num_classes=classes,
        batch=batch_size,
        first_example=3,
        image=image,
        weights_phase=0.4,
        zeta_or_mu_mean=0.2,
        lr=0.1,
        weight_decay=1e-3,
        momentum=0.0,
        clip_norm=0.5,
    )
    channels, height, width = image
    norms = {f"gn{number}": [64] for number in (1, 2, 3)}
    kernels = {f"conv{number}": [64, 64, 3, 3] for number in (1, 2, 3)}
    kernels["conv1"][1] = channels
    linear = {
        "fc1": [512, 64 * (height // 8) * (width // 8)],
        "fc2": [384, 512],
        "fc3": [classes, 384],
    }
    # In the order in which the authors' class makes them.
    shapes = {}
    for name, shape in {**kernels, **norms, **linear}.items():
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = shape, shape[:1]
    arrays, weights, batch = inputs(path, config, shapes)
    x, labels = batch(0)
    variables = list(weights.values())
    with tf.GradientTape(persistent=True) as tape:
        logits, terms = man_convnet(weights, x, variant)
        ce = cross_entropy(logits, labels)
        activation = tf.add_n([tf.reduce_mean(term) for term in terms])
    plain, added = tape.gradient(ce, variables), tape.gradient(activation, variables)
    added = [0.0 * w if a is None else a for w, a in zip(variables, added)]
    strength = config["zeta_or_mu_mean"]
    total = [g + strength / 2 * a for g, a in zip(plain, added)]
    norm = np.linalg.norm(np.concatenate([np.ravel(g) for g in total]))
    clipped = [g * min(1.0, config["clip_norm"] / (norm + 1e-6)) for g in total]
    update = [
        -config["lr"] * (g + config["weight_decay"] * w)
        for g, w in zip(clipped, variables)
    ]
    results = {
        "logits": logits,
        "loss_ce": ce,
        "act_terms": [tf.reduce_mean(term) for term in terms],
        "act_sum": activation,
        "loss_total_code": ce + strength / 2 * activation,
        "loss_total_paper_eq15": ce + strength * activation,
        "clip_total_norm": norm,
        **{f"act_per_example_{i}": term for i, term in enumerate(terms)},
    }
    arrays.update({f"f64.{key}": np.array(value) for key, value in results.items()})
    for key, tensors in {
        "grad_ce": plain,
        "grad_act_sum": added,
        "grad_total_paper_eq15": [g + strength * a for g, a in zip(plain, added)],
        "grad_total_preclip": total,
        "grad_postclip": clipped,
        "param_after": [w + u for w, u in zip(variables, update)],
        "delta": update,
    }.items():
        arrays.update(summary(key, tensors))
    save(path, config, arrays)


def _resnet8_shapes(channels: int, classes: int) -> dict[str, list[int]]:
    """Of the weights of FedML's smallest residual network."""
    shapes = {}

    def add(convolution_name, norm_name, shape):
        shapes[f"{convolution_name}.weight"] = shape
        shapes[f"{norm_name}.weight"] = shapes[f"{norm_name}.bias"] = shape[:1]

    add("conv1", "bn1", [16, channels, 3, 3])
    planes = 16
    for number, width in enumerate((16, 32, 64), start=1):
        unit = f"layer{number}.0."
        add(f"{unit}conv1", f"{unit}bn1", [width, planes, 3, 3])
        add(f"{unit}conv2", f"{unit}bn2", [width, width, 3, 3])
        if width != planes:
            add(f"{unit}downsample.0", f"{unit}downsample.1", [width, planes, 1, 1])
        planes = width
    shapes["fc.weight"], shapes["fc.bias"] = [classes, planes], [classes]
    return shapes


def _resnet8(weights, x, statistics):
    """The logits; adds each norm's mean and unbiased variance to `statistics`."""

    def normalised(x, name):
        mean, variance = tf.nn.moments(x, [0, 2, 3], keepdims=True)
        count = x.shape[0] * x.shape[2] * x.shape[3]
        unbiased = variance * count / (count - 1)
        statistics[name] = np.ravel(mean), np.ravel(unbiased)
        return scaled((x - mean) / tf.sqrt(variance + 1e-5), weights, name)

    x = tf.nn.relu(normalised(convolution(x, weights["conv1.weight"]), "bn1"))
    for unit, stride in (("layer1.0.", 1), ("layer2.0.", 2), ("layer3.0.", 2)):
        y = convolution(x, weights[f"{unit}conv1.weight"], stride)
        y = tf.nn.relu(normalised(y, f"{unit}bn1"))
        y = normalised(convolution(y, weights[f"{unit}conv2.weight"]), f"{unit}bn2")
        if stride > 1:
            x = convolution(x, weights[f"{unit}downsample.0.weight"], stride)
            x = normalised(x, f"{unit}downsample.1")
        x = tf.nn.relu(x + y)
    x = tf.reduce_mean(x, [2, 3])
    return x @ tf.transpose(weights["fc.weight"]) + weights["fc.bias"]


def write_resnet8(path, image=(2, 20, 12), classes=5, batch_size=6):
    """Writes a Z file: two steps of SGD with Nesterov's momentum on ResNet-8."""
    config = dict(
        model="resnet8",
        num_classes=classes,
        batch=batch_size,
        first_example=2,
        image=image,
        steps=2,
        weights_phase=0.3,
        lr=0.05,
        momentum=0.8,
        nesterov=True,
        weight_decay=1e-3,
        clip_norm=None,
    )
    arrays, weights, batch = inputs(path, config, _resnet8_shapes(image[0], classes))
    variables = list(weights.values())
    momenta = [0.0] * len(variables)
    running = collections.defaultdict(lambda: (0.0, 1.0))
    for step in range(config["steps"]):
        x, labels = batch(step)
        statistics = {}
        with tf.GradientTape() as tape:
            logits = _resnet8(weights, x, statistics)
            ce = cross_entropy(logits, labels)
        gradients = tape.gradient(ce, variables)
        before = [w.numpy() for w in variables]
        decayed = [g + config["weight_decay"] * w for g, w in zip(gradients, before)]
        momenta = [config["momentum"] * m + d for m, d in zip(momenta, decayed)]
        for w, d, m in zip(variables, decayed, momenta):
            w.assign_sub(config["lr"] * (d + config["momentum"] * m))
        for name, parts in statistics.items():
            old = running[name]
            running[name] = [0.9 * o + 0.1 * p for o, p in zip(old, parts)]
        prefix = f"step{step + 1}."
        arrays[f"f64.{prefix}loss_ce"] = ce.numpy()
        arrays[f"f64.{prefix}logits"] = logits.numpy()
        means, variances = zip(*running.values())
        for key, tensors in {
            "grad": gradients,
            "param_after": variables,
            "delta": [w - b for w, b in zip(variables, before)],
            "bn.running_mean": means,
            "bn.running_var": variances,
        }.items():
            arrays.update(summary(prefix + key, tensors))
    arrays["bn_names"] = np.array([*running])
    save(path, config, arrays)
