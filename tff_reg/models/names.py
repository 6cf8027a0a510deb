"""The names of the models that come with the package (no TensorFlow here)."""

MODEL_NAMES = (
    "cnn",
    "resnet8",
    "resnet10",
    "resnet18",
    "resnet18_imagenet",
    "resnet18_no_maxpool",
    "resnet18_feduv",
    "resnet20",
    "resnet56",
    "vgg9",
    "mobilenet",
    "shufflenet",
    "squeezenet",
    "feddyn_cnn",
    "man_convnet",
    "univarfl_cnn",
    "feduv_cnn",
)
NORM_NAMES = ("group", "batch", "none")
PROJECTOR_NAMES = ("none", "moon", "univarfl", "feduv")


def norms_of(model_name: str) -> tuple[str, ...]:
    """The normalisations that a model can have.

    Args:
      model_name: One of `MODEL_NAMES`.

    Returns:
      Some of `NORM_NAMES`; the first is taken where nobody asks for another.
    """
    if model_name.startswith("resnet"):
        return ("group", "batch")
    if model_name == "feduv_cnn":
        return ("batch", "group")
    if model_name in ("feddyn_cnn", "univarfl_cnn"):
        return ("none",)
    return NORM_NAMES
