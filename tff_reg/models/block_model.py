"""A model as a list of named blocks: what federated regularisers look into.

FedMLB runs the tail of one model on features of another, FedAlign runs one block
at a fraction of its width, MAN reads every activation, MOON and UniVarFL read
the embedding, stochastic depth drops residual branches. A `BlockModel` offers
all of that in terms of its blocks; the last block is the classifier.
"""

from __future__ import annotations

from typing import Optional, Sequence

import tensorflow as tf

from tff_reg.models import forward as forward_lib
from tff_reg.models import layers

ForwardPass = forward_lib.ForwardPass
Outputs = forward_lib.Outputs


class MissingCapabilityError(ValueError):
    """Something was asked of a model that its layers cannot do."""


class Block(layers.ForwardLayer):
    """One block. Sub-classes make their layers and define `call(x, forward)`."""

    def call(self, x, forward: ForwardPass):
        raise NotImplementedError


class Classifier(Block):
    """The last block: from features to an embedding, and from that to logits."""

    def embed(self, x, forward: ForwardPass):
        """Features [batch, ...] to the embedding [batch, features]."""
        raise NotImplementedError

    def classify(self, embedding, forward: ForwardPass):
        """The embedding [batch, features] to logits [batch, num_classes]."""
        raise NotImplementedError

    def call(self, x, forward: ForwardPass):
        return self.classify(self.embed(x, forward), forward)


class BlockModel:
    """A network of named blocks, the last of which is its classifier.

    Attributes:
      blocks: The blocks, in order.
      block_names: Their names.
      input_shape: Shape of one example, without the batch axis.
      num_classes: Number of logits.
      num_branches: Number of residual branches (what `ForwardPass.branch_scales`
        scales); 0 if the model has none that can be dropped.
      supports_width: Whether passes below full width are possible.
      dtype: Data type of weights and computation.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        input_shape: Sequence[int],
        num_classes: int,
        num_branches: int = 0,
        supports_width: bool = False,
        dtype: str = "float32",
    ):
        if len(blocks) < 2 or not isinstance(blocks[-1], Classifier):
            raise ValueError(
                "A BlockModel needs at least one block before its classifier, and "
                f"the classifier last; got {[type(b).__name__ for b in blocks]}."
            )
        self.blocks = list(blocks)
        self.block_names = [block.name for block in blocks]
        if len(set(self.block_names)) != len(blocks):
            raise ValueError(
                f"The blocks' names must be different, but are {self.block_names}."
            )
        self.input_shape = tuple(input_shape)
        self.num_classes = num_classes
        self.num_branches = num_branches
        self.supports_width = supports_width
        self.dtype = tf.as_dtype(dtype)

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        return [v for block in self.blocks for v in block.trainable_variables]

    @property
    def non_trainable_variables(self) -> list[tf.Variable]:
        return [v for block in self.blocks for v in block.non_trainable_variables]

    @tf.autograph.experimental.do_not_convert
    def __call__(self, x, forward: Optional[ForwardPass] = None) -> Outputs:
        """Runs the whole network.

        Args:
          x: float [batch, *input_shape].
          forward: The pass's settings; by default an evaluation at full width.

        Returns:
          The `Outputs` of all blocks.

        Raises:
          MissingCapabilityError: If the pass needs what the model's layers lack.
        """
        return self.run_from(0, tf.cast(x, self.dtype), forward or ForwardPass())

    @tf.autograph.experimental.do_not_convert
    def run_from(self, first_block: int, x, forward: ForwardPass) -> Outputs:
        """Runs blocks `first_block` and later on a feature.

        Args:
          first_block: Index of the first block to run.
          x: What that block takes: the output of the block before it, of this
            model or of another one with the same blocks.
          forward: The pass's settings.

        Returns:
          The `Outputs` of the blocks that were run.

        Raises:
          MissingCapabilityError: If the pass needs what the model's layers lack.
        """
        block_outputs = []
        for index in range(first_block, len(self.blocks) - 1):
            x = self.run_block(index, x, forward)
            block_outputs.append(x)
        self.check_supports(forward)
        classifier = self.blocks[-1]
        embedding = classifier.embed(x, forward)
        logits = classifier.classify(embedding, forward)
        return Outputs(
            block_outputs=[*block_outputs, logits],
            embedding=embedding,
            logits=logits,
            activations=tuple(forward.activations),
        )

    @tf.autograph.experimental.do_not_convert
    def run_block(self, index: int, x, forward: ForwardPass) -> tf.Tensor:
        """Runs the one block `index` (negative counts from the end) on a feature.

        Args:
          index: Which block.
          x: Its input. Below full width this may hold fewer channels than at
            full width: the block's kernels are cut to them.
          forward: The pass's settings.

        Returns:
          The block's output.

        Raises:
          MissingCapabilityError: If the pass needs what the model's layers lack.
        """
        self.check_supports(forward)
        return self.blocks[index](x, forward)

    def check_supports(self, forward: ForwardPass):
        """Checks that the model's layers can do what a pass asks for.

        Args:
          forward: The pass's settings.

        Raises:
          MissingCapabilityError: If they cannot.
        """
        if not forward.is_full_width and not self.supports_width:
            width = "a width that is drawn at run time"
            if forward.has_static_width:
                width = f"width {forward.width}"
            raise MissingCapabilityError(
                f"This model cannot run at {width}: its layers cannot be "
                "cut to their first channels. Take one whose layers can, for example "
                "'resnet8' or 'resnet20' of tff_reg.models."
            )
        if forward.branch_scales is not None and not self.num_branches:
            raise MissingCapabilityError(
                "This model has no residual branches to drop. Build it from "
                "tff_reg.models (for example 'resnet20'), whose residual blocks "
                "can leave their branch out."
            )
