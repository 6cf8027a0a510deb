"""Models as lists of named blocks, for regularisers that use intermediate features.

FedMLB runs the tail of one model on features of another, FedAlign runs one block at a
fraction of its width, MAN reads every activation, MOON and UniVarFL read the embedding,
stochastic depth drops residual branches. A `BlockModel` supports all these passes; its
last block is the classifier.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.models import forward as forward_lib, initial, layers, simplex

ForwardPass = forward_lib.ForwardPass
Outputs = forward_lib.Outputs


class MissingCapabilityError(ValueError):
    """Raised if a model's layers do not support a pass."""


class ImageSizeError(ValueError):
    """Raised if images are too small for a network."""


def check_image_size(
    model_name: str, input_shape: Sequence[int], minimum_side: int
) -> None:
    """Checks that an image is large enough for a network's poolings."""
    height, width, _ = input_shape
    if min(height, width) < minimum_side:
        raise ImageSizeError(
            f"The model {model_name!r} takes images from {minimum_side}x{minimum_side} "
            f"pixels, but these have {height}x{width}. Use a model without this limit, "
            "for example 'cnn' or 'resnet8'."
        )


class Block(layers.ForwardLayer):
    """One block. Sub-classes create their layers in `make` and compute in `call`."""

    def call(self, x, forward: ForwardPass):
        raise NotImplementedError


class Classifier(Block):
    """The last block: maps features to an embedding, and the embedding to logits.

    Attributes:
      takes_any_size: Whether images may have another size than the model's input.
    """

    takes_any_size = True

    @property
    def linear_layer(self) -> Optional[tf.Module]:
        """The layer that `classify` calls, this package's or Keras's, or None."""
        return None

    def replace_linear_layer(self, layer: layers.ForwardLayer) -> None:
        """Replaces `linear_layer`, which must not be None."""
        raise NotImplementedError

    def embed(self, x, forward: ForwardPass):
        """Returns the embedding [batch, features] of features [batch, ...]."""
        raise NotImplementedError

    def classify(self, embedding, forward: ForwardPass):
        """Returns the logits [batch, num_classes] of an embedding [batch, features]."""
        raise NotImplementedError

    def call(self, x, forward: ForwardPass):
        return self.classify(self.embed(x, forward), forward)


class BlockModel:
    """A network of named blocks, the last of which is its classifier.

    Methods that run a pass raise a MissingCapabilityError if the model's layers do not
    support the pass.

    >>> from tff_reg import models
    >>> shape = (8, 8, 1)
    >>> model_fn = models.build_model_fn("resnet8", image_shape=shape, num_classes=3)
    >>> model_fn().network.block_names
    ['stem', 'stage1', 'stage2', 'stage3', 'classifier']

    Attributes:
      blocks: The blocks, in order.
      block_names: The blocks' names.
      input_shape: Shape of one example, without the batch axis.
      num_classes: Number of logits; None if the output is no vector of logits.
      num_branches: Number of residual branches that can be dropped; 0 if none.
      supports_width: Whether passes below full width are possible.
      dtype: Data type of weights and computation.
      seed: Seed of later random draws, such as an orthogonal classifier's.
      has_independent_examples: Whether the features of an example before the
        classifier are independent of the other examples of its batch.
      evaluation_branch_scales: The factor of each residual branch in passes with
        `training=False` whose own `branch_scales` are None (stochastic depth: the
        probabilities of keeping the branches); None leaves the branches unscaled.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        input_shape: Sequence[int],
        num_classes: Optional[int],
        has_independent_examples: bool,
        num_branches: int,
        supports_width: bool,
        dtype: str = "float32",
        seed: int = 0,
    ):
        if not blocks or not isinstance(blocks[-1], Classifier):
            raise ValueError(
                "A BlockModel's last block is its classifier; got "
                f"{[type(b).__name__ for b in blocks]}."
            )
        self.blocks = list(blocks)
        self.block_names = [block.name for block in blocks]
        if len(set(self.block_names)) != len(blocks):
            raise ValueError(
                f"The blocks' names must be different, but are {self.block_names}."
            )
        self.input_shape = tuple(input_shape)
        self.num_classes: Any = num_classes
        self.num_branches = num_branches
        self.supports_width = supports_width
        self.dtype = tf.as_dtype(dtype)
        self.seed = seed
        self.has_independent_examples = has_independent_examples
        self.evaluation_branch_scales: Optional[Sequence[float]] = None
        self._constants: list[tf.Variable] = []
        # Weights by name that are constants of the network, and never sent.
        self.frozen: Mapping[str, tf.Tensor] = {}

    # Whether a pass in training mode draws random numbers.
    is_random = False
    # Whether a layer sets trained weights in a pass, as spectral normalisation does.
    sets_trained_weights = False
    # Whether the logits are logarithms of the probabilities that a Keras model returns.
    gives_probabilities = False

    @property
    def input_spec(self):
        """The `tf.TensorSpec` of a batch of examples."""
        return tf.TensorSpec([None, *self.input_shape], self.dtype)

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """All blocks' trainable variables, block by block."""
        return [v for block in self.blocks for v in block.trainable_variables]

    @property
    def non_trainable_variables(self) -> list[tf.Variable]:
        """All blocks' non-trainable variables, block by block."""
        return [v for block in self.blocks for v in block.non_trainable_variables]

    @property
    def head_variables(self) -> list[tf.Variable]:
        """The trainable variables of the last linear layer, else of the last block."""
        layer = self.blocks[-1].linear_layer
        return (self.blocks[-1] if layer is None else layer).trainable_variables

    @property
    def constants(self) -> list[tf.Variable]:
        """The variables of frozen layers: neither training nor a pass changes them."""
        known = {id(v) for v in self._constants}
        for layer in (part for block in self.blocks for part in block.submodules):
            if not getattr(layer, "trainable", True):  # A frozen Keras layer.
                known.update(map(id, layer.weights))
        return [v for v in self.non_trainable_variables if id(v) in known]

    def compute_in(self, dtype: Any) -> None:
        """Lets layers compute products with their kernels in a data type.

        All else is computed in that of the weights: norms, losses, depthwise kernels.
        """
        for layer in (part for block in self.blocks for part in block.submodules):
            if isinstance(layer, layers.ForwardLayer):
                layer.compute_dtype = tf.as_dtype(dtype)

    def freeze_classifier(self, initialization: str = "plain"):
        """Fixes the initial weights of the classifier's linear layer.

        Its kernel and bias become non-trainable variables of the same names, which are
        still sent between server and clients and saved with the model.

        Args:
          initialization: 'plain' keeps the layer's own random initial weights;
            'orthogonal' makes the classes' weight vectors (the kernel's columns)
            orthonormal and the biases 0. With more classes than features the
            kernel's rows are orthonormal instead.

        Raises:
          ValueError: If the layer is frozen already.
          MissingCapabilityError: If the classifier does not end in a linear layer.
        """
        layer = self._linear_layer("frozen")
        bias = getattr(layer, "bias", None)
        if not layer.trainable_variables:
            raise ValueError("The classifier of this model is frozen already.")
        kernel_initializer = bias_initializer = None
        if initialization == "orthogonal":
            kernel_initializer = initial.orthogonal(self.seed)
            bias_initializer = tf.zeros
        self._constants.append(_fix_variable(layer, "kernel", kernel_initializer))
        if bias is not None:
            self._constants.append(_fix_variable(layer, "bias", bias_initializer))

    def use_simplex_classifier(self, dimensions: Optional[int], scaling: float):
        """Replaces the last linear layer by a `simplex.SimplexClassifier`.

        Args:
          dimensions: Dimensions of the classes' directions; None for the number of
            classes.
          scaling: Initial factor of the logits.

        Raises:
          MissingCapabilityError: If the classifier does not end in a linear layer.
          ValueError: If there are fewer dimensions than classes.
        """
        kernel = self._linear_layer("replaced").kernel
        with tf.name_scope(self.block_names[-1]):
            layer = simplex.SimplexClassifier(
                kernel.shape[0],
                self.num_classes,
                dimensions or self.num_classes,
                scaling,
                seed=self.seed,
                name="simplex",
                dtype=self.dtype,
            )
        self.blocks[-1].replace_linear_layer(layer)
        self._constants.append(layer.directions)

    def _linear_layer(self, what_for: str) -> Any:
        """Returns the classifier's linear layer; raises if it has none."""
        layer = self.blocks[-1].linear_layer
        kernel: Any = getattr(layer, "kernel", None)
        bias = getattr(layer, "bias", None)
        if isinstance(kernel, tf.Tensor):
            raise ValueError("The classifier of this model is frozen already.")
        is_linear = isinstance(kernel, tf.Variable) and kernel.shape.rank == 2
        if not is_linear or _count_variables(layer) != 1 + (bias is not None):
            what = "unknown" if layer is None else type(layer).__name__
            raise MissingCapabilityError(
                f"The classifier of this model cannot be {what_for}: its last layer "
                f"({what}) is no linear layer with a kernel [features, classes]."
            )
        return layer

    @tf.autograph.experimental.do_not_convert
    def __call__(self, x, forward: ForwardPass) -> Outputs:
        """Runs the whole network."""
        return self.run_from(0, tf.cast(x, self.dtype), forward)

    @tf.autograph.experimental.do_not_convert
    def run_from(self, first_block: int, x, forward: ForwardPass) -> Outputs:
        """Runs blocks `first_block` and later on a feature.

        Args:
          first_block: Index of the first block to run.
          x: The block's input: the previous block's output, from this model or from
            another model with the same blocks.
          forward: The pass's settings.

        Returns:
          The `Outputs` of the blocks that were run.
        """
        forward = self._settings_of(forward)
        kept: list[tuple[tf.Tensor, tf.Tensor]] = []
        if forward.record_activations:
            forward = dataclasses.replace(forward, on_activation=kept.append)
        block_outputs, preactivations = [], []
        for index in range(first_block, len(self.blocks) - 1):
            before = len(kept)
            x = self.run_block(index, x, forward)
            block_outputs.append(x)
            if forward.record_activations:
                given = kept[-1][1] if len(kept) > before else x
                # A unit that ends without a non-linearity has other channels inside.
                ends_so = given.shape[-1] == x.shape[-1]
                preactivations.append(given if ends_so else x)
        classifier = self.blocks[-1]
        embedding = classifier.embed(x, forward)
        logits = classifier.classify(embedding, forward)
        return Outputs(
            block_outputs=[*block_outputs, logits],
            embedding=embedding,
            logits=logits,
            activations=tuple(activation for activation, _ in kept),
            preactivations=preactivations,
        )

    @tf.autograph.experimental.do_not_convert
    def classify_from(self, features, forward: ForwardPass) -> list[tf.Tensor]:
        """Computes the logits of features that enter the network at several blocks.

        If examples are independent, each block runs once on the joined batch of all
        features. This is faster: with a small batch, a late block takes as long to read
        its weights as to compute.

        Args:
          features: (first block, feature [batch, ...]) pairs in ascending order, each
            an argument of `run_from`.
          forward: The pass's settings.

        Returns:
          The logits [batch, num_classes] of each pair, in their order.
        """
        if not self.has_independent_examples:
            return [self.run_from(*pair, forward).logits for pair in features]
        forward = self._settings_of(forward)
        joined = []
        for index in range(features[0][0], len(self.blocks) - 1):
            entering = [x for block, x in features if block == index]
            joined = [self.blocks[index](tf.concat([*joined, *entering], 0), forward)]
        last = [x for block, x in features if block == len(self.blocks) - 1]
        sizes = [tf.shape(x)[0] for _, x in features]
        done = len(features) - len(last)
        parts = tf.split(joined[0], sizes[:done], num=done) if done else []
        return [self.blocks[-1](x, forward) for x in [*parts, *last]]

    @tf.autograph.experimental.do_not_convert
    def run_block(self, index: int, x, forward: ForwardPass) -> tf.Tensor:
        """Runs the one block `index` (negative counts from the end) on a feature.

        Args:
          index: Index of the block.
          x: The block's input. Below full width it may have fewer channels; the
            block's kernels are cut to the input's channels.
          forward: The pass's settings.

        Returns:
          The block's output.
        """
        return self.blocks[index](x, self._settings_of(forward))

    def _settings_of(self, forward: ForwardPass) -> ForwardPass:
        """Checks a pass; in evaluation, adds `evaluation_branch_scales`."""
        self.check_supports(forward)
        scales = self.evaluation_branch_scales
        if forward.training or scales is None or forward.branch_scales is not None:
            return forward
        scales = tf.constant(scales, self.dtype)
        return dataclasses.replace(forward, branch_scales=scales)

    def check_supports(self, forward: ForwardPass):
        """Checks that the model's layers support a pass.

        Args:
          forward: The pass's settings.

        Raises:
          MissingCapabilityError: If they do not.
        """
        if not forward.is_full_width and not self.supports_width:
            width = "a width that is drawn at run time"
            if forward.has_static_width:
                width = f"width {forward.width}"
            raise MissingCapabilityError(
                f"This model cannot run at {width}: its layers cannot be narrowed to "
                "their first channels. Use a model that supports it, for example "
                "'resnet8' or 'resnet20' of tff_reg.models."
            )
        if forward.branch_scales is not None and not self.num_branches:
            raise MissingCapabilityError(
                "This model has no residual branches to drop. Use a residual network, "
                "for example 'resnet20' of tff_reg.models."
            )

    def check_takes_any_size(self) -> None:
        """Checks that images may have another size than the model's input.

        Raises:
          MissingCapabilityError: If they may not.
        """
        if not getattr(self.blocks[-1], "takes_any_size", True):
            raise MissingCapabilityError(
                "This model flattens its features, so it takes images of one size only."
                " Use a model that pools, for example 'resnet8'."
            )


def _count_variables(layer: Any) -> int:
    return len(layer.trainable_variables) + len(layer.non_trainable_variables)


def _fix_variable(
    layer: Any, name: str, initializer: Optional[initial.Initializer]
) -> tf.Variable:
    """Replaces a layer's trainable variable by a non-trainable one.

    Its value is set by its initialiser, not by an assignment: TFF builds models in
    graphs and runs their initialisers.
    """
    variable = getattr(layer, name)
    with tf.init_scope(), tf.name_scope(""):
        if initializer is not None:
            value = initializer(variable.shape, variable.dtype)
        elif tf.executing_eagerly():
            value = variable.read_value()
        else:
            value = variable.initial_value
        fixed = tf.Variable(
            value, trainable=False, name=variable.name.rpartition(":")[0]
        )
    # Keras stops tracking a variable only when its attribute is deleted.
    delattr(layer, name)
    setattr(layer, name, fixed)
    return fixed
