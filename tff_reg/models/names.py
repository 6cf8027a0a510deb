"""The names of the models that come with the package (no TensorFlow here)."""

MODEL_NAMES = ("cnn", "resnet8", "resnet18", "resnet20", "resnet56")
NORM_NAMES = ("group", "batch")
PROJECTOR_NAMES = ("none", "moon", "univarfl")
