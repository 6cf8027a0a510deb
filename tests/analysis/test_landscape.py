import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_zoo
from tff_reg import analysis, curves, models
from tff_reg.analysis import hessian, landscape


@pytest.fixture(name="curvature")
def _curvature():
    """The loss 1/2 w.Aw with A = diag(4, 1, 0), at w = (1, 2, 3)."""
    weights = tf.Variable(np.array([1.0, 2.0, 3.0]))
    scale = np.array([4.0, 1.0, 0.0])
    return hessian.Hessian(
        lambda batch: tf.reduce_mean(batch) * tf.reduce_sum(scale * weights**2) / 2,
        [np.ones(2)],
        variables=[weights],
    )


def test_losses_are_those_of_the_plane(curvature):
    directions = [[1.0, 0, 0], [0, 1.0, 0]]
    found = analysis.loss_landscape(curvature, directions, extent=2.0, points=5)
    np.testing.assert_allclose(found.coordinates, [-2, -1, 0, 1, 2])
    first, second = np.meshgrid(found.coordinates, found.coordinates)
    expected = (4 * (1 + first) ** 2 + (2 + second) ** 2) / 2
    np.testing.assert_allclose(found.losses, expected, rtol=1e-12)
    assert found.center == 4.0
    # The model has its own weights again.
    np.testing.assert_array_equal(curvature.variables[0], [1, 2, 3])


def test_eigenvectors_are_directions(curvature):
    vectors = curvature.top_eigenvalues(2).vectors
    found = analysis.loss_landscape(curvature, vectors, extent=0.1, points=3)
    middle = found.losses[1]
    curve = (middle[0] - 2 * middle[1] + middle[2]) / 0.1**2
    np.testing.assert_allclose(curve, 4.0, rtol=1e-4)


def test_weights_come_back_when_it_is_interrupted_and_it_goes_on(curvature):
    directions = np.eye(3)[:2]
    rows = []

    def stop(losses):
        rows.append(losses)
        if len(rows) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        analysis.loss_landscape(curvature, directions, points=3, after_row=stop)
    np.testing.assert_array_equal(curvature.variables[0], [1, 2, 3])
    assert np.sum(np.isnan(rows[-1])) == 3
    # What is known is not computed again.
    known = rows[-1].copy()
    known[0, 0] = -7.0
    found = analysis.loss_landscape(curvature, directions, points=3, known=known)
    whole = analysis.loss_landscape(curvature, directions, points=3)
    assert found.losses[0, 0] == -7
    np.testing.assert_array_equal(found.losses.ravel()[1:], whole.losses.ravel()[1:])


def _check_filters(curvature, direction, axes):
    """Checks that a direction is as long as the weights over each variable's axes."""
    parts = curvature.unflatten(direction)
    for part, variable, along in zip(parts, curvature.variables, axes, strict=True):
        if along is None:
            assert not np.any(part)
            continue
        expected = np.sum(variable.numpy() ** 2, along)
        np.testing.assert_allclose(np.sum(part**2, along), expected, rtol=1e-5)


@pytest.mark.parametrize("name", keras_zoo.KERASES)
def test_random_directions_have_the_filters_lengths(name):
    keras = keras_zoo.KERASES[name]
    model = keras.Sequential(
        [
            keras.Input([5, 5, 3]),
            keras.layers.DepthwiseConv2D(2, depth_multiplier=2),
            keras.layers.Conv2D(4, 2, groups=2),
            keras.layers.Conv2DTranspose(5, 2),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
    )
    curvature = hessian.Hessian(model, (np.ones([2, 5, 5, 3]), np.zeros(2, int)))
    directions = analysis.random_directions(curvature)
    axes = [(0, 1), None, (0, 1, 2), None, (0, 1, 3), None, (0,), None]
    for direction in directions:
        _check_filters(curvature, direction, axes)
    np.testing.assert_array_equal(directions, analysis.random_directions(curvature))
    other = analysis.random_directions(curvature, seed=1)
    assert not np.any(directions[0][:12] == other[0][:12])
    assert not np.any(directions[0][:12] == directions[1][:12])


def test_our_own_depthwise_and_grouped_kernels_have_a_filter_an_output():
    model_fn = models.build_model_fn("shufflenet", image_shape=[8, 8, 1], num_classes=3)
    data = (np.ones([2, 8, 8, 1], np.float32), np.zeros(2, int))
    curvature = hessian.Hessian(model_fn(), data)
    by_shape = {1: None, 2: (0,), 3: (1,), 4: (0, 1, 2)}
    axes = [
        (0, 1) if v.shape[-1] == 1 else by_shape[v.shape.rank]
        for v in curvature.variables
    ]
    assert {(0, 1), (1,)} <= {*axes}
    (direction, _) = analysis.random_directions(curvature)
    _check_filters(curvature, direction, axes)


def test_losses_that_are_not_finite_are_infinite():
    weight = tf.Variable([1.0, 0.0])
    curvature = hessian.Hessian(
        lambda batch: tf.reduce_mean(batch) * tf.reduce_sum(tf.math.log(weight[0])),
        [np.ones(2, np.float32)],
        variables=[weight],
    )
    found = analysis.loss_landscape(curvature, np.eye(2), extent=2.0, points=3)
    np.testing.assert_array_equal(np.isinf(found.losses), [[True, False, False]] * 3)


def test_the_middle_point_is_the_model(curvature):
    with pytest.raises(ValueError, match="points must be odd"):
        analysis.loss_landscape(curvature, np.eye(3)[:2], points=4)


def _bowl(steepness):
    coordinates = np.linspace(-1, 1, 7)
    first, second = np.meshgrid(coordinates, coordinates)
    return analysis.Landscape(coordinates, steepness * (first**2 + second**2))


def test_pictures_have_one_scale_and_the_same_bytes(tmp_path):
    landscapes = {"steep": _bowl(4.0), "flat": _bowl(1.0)}
    for name in ("a.png", "b.png"):
        picture = curves.as_png(landscape.draw(landscapes))
        (tmp_path / name).write_bytes(picture)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    image = matplotlib.image.imread(tmp_path / "a.png")
    assert image.shape[:2] == (1320, 1590)
    # On one scale only the steep bowl reaches its end: yellow.
    is_yellow = (image[..., 0] > 0.95) & (image[..., 1] > 0.85) & (image[..., 2] < 0.3)
    half = image.shape[1] // 2
    below = slice(700, None)
    assert np.sum(is_yellow[below, :half]) > 20
    # There, but for the colour bar on the right, the flat one has none.
    assert np.sum(is_yellow[below, half:1400]) == 0


def test_infinite_losses_are_drawn_at_the_end_of_the_scale(tmp_path):
    bowl = _bowl(1.0)
    bowl.losses[0, 0], bowl.losses[1, 1] = np.inf, np.nan
    made = landscape.draw({"a": bowl}, highest=0.5)
    path = tmp_path / "a.png"
    path.write_bytes(curves.as_png(made))
    assert matplotlib.image.imread(path).shape[2] in (3, 4)
    flat = analysis.Landscape(bowl.coordinates, np.zeros([7, 7]))
    assert curves.as_png(landscape.draw({"a": flat}))


def test_nothing_to_draw_gives_one_sentence():
    bowl = analysis.Landscape(_bowl(1.0).coordinates, np.full([7, 7], np.inf))
    with pytest.raises(ValueError, match="finite"):
        landscape.draw({"a": bowl})
