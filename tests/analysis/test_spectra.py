import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_zoo
from tff_reg import analysis, curves, models
from tff_reg.analysis import spectra


@pytest.mark.parametrize("name", keras_zoo.KERASES)
def test_singular_values_by_hand(name):
    keras = keras_zoo.KERASES[name]
    layer = keras.layers.Dense(2)
    model = keras.Sequential([keras.Input([3]), layer, keras.layers.Softmax()])
    layer.kernel.assign([[0.0, -5.0], [2.0, 0.0], [0.0, 0.0]])
    nested = [keras.layers.Dense(3), keras.Sequential([layer])]
    nested = keras.Sequential([keras.Input([2]), *nested])
    for each in (model, nested):
        np.testing.assert_allclose(analysis.classifier_singular_values(each), [5, 2])


def test_singular_values_of_our_models():
    learning_model = models.build_model_fn(
        "resnet8", image_shape=(8, 8, 1), num_classes=10
    )()
    kernel = learning_model.network.blocks[-1].linear_layer.kernel.numpy()
    expected = np.sqrt(np.linalg.eigvalsh(kernel.T @ kernel))[::-1]
    for model in (learning_model, learning_model.network):
        found = analysis.classifier_singular_values(model)
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_models_without_a_linear_layer_are_refused():
    layers = [tf.keras.layers.Dense(2), tf.keras.layers.ReLU()]
    model = tf.keras.Sequential([tf.keras.Input([3]), *layers])
    with pytest.raises(analysis.UnsuitableModelError, match="a Sequential does not"):
        analysis.classifier_singular_values(model)


def _colors(path):
    """The opaque colours of a picture, as numbers 0xRRGGBB."""
    image = np.round(255 * matplotlib.image.imread(path)[..., :3]).astype(int)
    return set(np.unique(image @ [0x10000, 0x100, 1]).tolist())


BLUE, VERMILION = 0x0072B2, 0xD55E00


@pytest.mark.parametrize(
    "draw,values",
    [
        (
            spectra.draw_eigenvalues,
            {"a": np.array([5.0, -3.0, 1.0, 0.0]), "b": np.array([4.0, 2.0])},
        ),
        (spectra.draw_singular_values, {"a": [3.0, 2.0], "b": [2.0, 1.0, 0.5]}),
        (
            spectra.draw_densities,
            {
                name: analysis.SpectralDensity.build(
                    np.array([-0.5, 0.0, scale]), np.array([0.1, 0.8, 0.1]), 0.01
                )
                for name, scale in (("a", 3.0), ("b", 5.0))
            },
        ),
    ],
)
def test_pictures_show_every_run(tmp_path, draw, values):
    def write(path, values):
        path.write_bytes(curves.as_png(draw(values)))

    write(tmp_path / "1.png", values)
    write(tmp_path / "2.png", values)
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "2.png").read_bytes()
    assert matplotlib.image.imread(tmp_path / "1.png").shape[:2] == (900, 1440)
    assert {BLUE, VERMILION} <= _colors(tmp_path / "1.png")
    write(tmp_path / "1.png", {"a": values["a"]})
    assert VERMILION not in _colors(tmp_path / "1.png")


@pytest.mark.parametrize("values", [{}, {"a": [0.0, 0.0]}])
def test_nothing_to_draw_gives_one_sentence(values):
    with pytest.raises(ValueError, match="to draw"):
        spectra.draw_eigenvalues(values)
