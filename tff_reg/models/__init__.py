"""Models as lists of named blocks, and the networks that come with the package.

Importing this package does not import TensorFlow; its names do when first used.
"""

from tff_reg import lazy

__getattr__, __dir__, __all__ = lazy.exports(
    __name__,
    {
        "block_model": [
            "Block",
            "BlockModel",
            "Classifier",
            "ImageSizeError",
            "MissingCapabilityError",
        ],
        "forward": ["ForwardPass", "Outputs"],
        "keras_calls": [],
        "keras_models": ["KerasModelFn", "from_keras", "from_keras_blocks"],
        "layers": [],
        "learning_model": ["LearningModel", "build_model_fn", "initial_weights"],
        "norms": [],
        "names": ["MODEL_NAMES", "NORM_NAMES", "PROJECTOR_NAMES", "norms_of"],
        "pooling": [],
        "resize": ["resize_bilinear"],
        "simplex": [],
    },
)
