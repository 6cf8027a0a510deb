"""The names of the models that come with the package (no TensorFlow here)."""

# By name: the module of the function of that name, which builds the network.
MODULES = {
    "cnn": "plain_cnns",
    "resnet8": "resnet",
    "resnet10": "resnet",
    "resnet18": "resnet",
    "resnet18_imagenet": "resnet",
    "resnet18_no_maxpool": "resnet",
    "resnet18_feduv": "resnet",
    "resnet20": "resnet",
    "resnet56": "resnet",
    "vgg9": "plain_cnns",
    "mobilenet": "mobilenet",
    "shufflenet": "shufflenet",
    "squeezenet": "squeezenet",
    "feddyn_cnn": "plain_cnns",
    "man_convnet": "plain_cnns",
    "univarfl_cnn": "plain_cnns",
    "feduv_cnn": "plain_cnns",
}
MODEL_NAMES = tuple(MODULES)
NORM_NAMES = ("group", "batch", "none")
PROJECTOR_NAMES = ("none", "moon", "univarfl", "feduv")


def norms_of(model_name: str) -> tuple[str, ...]:
    """Returns the normalisations that a model can have.

    >>> from tff_reg import models
    >>> models.norms_of("resnet56"), models.norms_of("feddyn_cnn")
    (('group', 'batch'), ('none',))

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
