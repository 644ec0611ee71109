"""``QuantizeConfig``, the argument ``quantize`` of ``export``."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ._extensions import add_on
from ._public import public

__all__ = ["Activations", "QuantizeConfig", "Rounding", "UsualName", "WeightDtype"]

WeightDtype: TypeAlias = Literal["int4", "int8"]
Activations: TypeAlias = Literal["float", "dynamic", "static"]
Rounding: TypeAlias = Literal["nearest", "search"]
_Choice: TypeAlias = Literal["float", "int4", "int8"]
_Table: TypeAlias = Literal["float", "int4", "int8", "tied"]


class UsualName(str):
    """A pattern for a name that some layers usually have: a model may have none of these."""

    __slots__ = ()


@public
@dataclass(frozen=True)
class QuantizeConfig:
    """Post-training quantization by rounding, for ``export(quantize=...)``.

    Weights of linear layers become integers with scales. By default, activations stay floating-point numbers, and the
    columns of a weight, one for each output feature, are divided into blocks that share a scale. With ``calibration``
    or ``activations="dynamic"``, activations become 8-bit integers as well, and a weight has one scale for each output
    feature or channel.

    Attributes:
        dtype: Element type of the weights, "int4" or "int8".
        block_size: Number of weights that share a scale, a power of two from 16 on; where it does not divide the number
            of input features, the largest one that does, if that is at least 32. None: 32 for int4; for int8, 128 in
            ONNX Runtime from opset 21 on, otherwise a column.
        block_sizes: Names of modules or parameters, or patterns for them as in ``include``, to the ``block_size`` of
            their weights; the first that matches decides.
        bits: Names of modules or parameters, or patterns for them as in ``include``, to 4 or 8, the bits of their
            weights in place of those of ``dtype``; the first that matches decides. ``embeddings`` and ``lm_head``, if
            it is given, come before it.
        symmetric: Whether blocks have no zero points.
        rounding: "nearest": the scale of a block represents all of its weights. "search": of some scales for 4-bit
            weights, the one with the least squared error is used, with an error that is about 6 percent smaller.
        importance: Names of parameters to the mean square of each input feature of their layer over representative
            inputs, a tensor of one axis. "search" multiplies the squared errors of the feature by it: rounding changes
            the outputs of a layer less. `fxonnx.genai.export` measures it for its recipes.
        accuracy_level: Attribute of MatMulNBits: 4 permits rounding of the activations to int8, which is the fastest
            on the CPU, 1 computes in float32, 0 leaves the choice to the runtime. In other graphs, ONNX Runtime reads
            the session option ``session.qdq_matmulnbits_accuracy_level`` instead, which is 4 by default.
        include: Names of modules or parameters, or glob patterns for them, whose weights are quantized; of layers that
            the graph packs into one product, all must be included. Routers of experts that are one operator are
            quantized only if it names them.
        exclude: As ``include``, for weights that are left as they are.
        embeddings: Element type of embedding tables; "int4" requires a target with GatherBlockQuantized. "tied": of a
            table that the layer of the logits shares, the type of that layer, of which the file then has one copy;
            "int8" of others. None: "float"; in `fxonnx.genai.export` of a decoder with a precision of "int4" or
            "int8": "tied".
        lm_head: Element type of the layer that computes the logits; None for ``dtype``. The layer is recognized by its
            name (``lm_head``, ``embed_out``, ``output_layer``, ``proj_out``), or by the weight of an embedding.
        activations: "float": weights only. "dynamic": the inputs of linear layers become uint8 with a scale and a zero
            point that every call computes for each row, such as a token. "static": the inputs and outputs of
            convolutions and the inputs of linear layers become 8-bit integers with constant scales from
            ``calibration``. None: "static" with ``calibration``, otherwise "float".
        weights_only: As ``include``, with ``activations="dynamic"``: layers whose activations stay floating-point
            numbers, and whose weights have blocks.
        calibration: Batches of representative inputs, iterated over once, for example a ``DataLoader``. A batch is a
            tensor, a tuple or list of positional arguments, a dict of keyword arguments, or a pair of one of these and
            a label, which is ignored. For a model with two arguments, two elements are a pair only if the first one is
            a tuple, list or dict where the model takes a tensor.
        permuted: As ``include``, for weights whose blocks a checkpoint has formed of input features in another order
            (``desc_act`` of GPTQ). The graph permutes the inputs of their products.
    """

    dtype: WeightDtype = "int4"
    _: KW_ONLY
    block_size: int | None = None
    block_sizes: Mapping[str, int] = field(default_factory=dict)
    bits: Mapping[str, int] = field(default_factory=dict)
    symmetric: bool = True
    rounding: Rounding = "nearest"
    importance: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    accuracy_level: int = 4
    include: Collection[str] = ("*",)
    exclude: Collection[str] = ()
    embeddings: _Table | None = None
    lm_head: _Choice | None = None
    activations: Activations | None = None
    weights_only: Collection[str] = ()
    calibration: Iterable[Any] | None = field(default=None, repr=False, compare=False)
    permuted: Collection[str] = ()

    @property
    def activation_mode(self) -> Activations:
        """How activations are represented: ``activations``, or the mode that ``calibration`` implies."""
        if self.activations is not None:
            return self.activations
        return "float" if self.calibration is None else "static"

    @classmethod
    def from_checkpoint(cls, directory: str | os.PathLike[str]) -> QuantizeConfig:
        """Read the configuration of a checkpoint that GPTQ, AWQ or compressed-tensors has quantized.

        ``program.save(path, weights=directory)`` then stores the checkpoint's own integers, scales and zero points.

        Args:
            directory: The directory with config.json and the safetensors files.

        Raises:
            ArgumentError: If the checkpoint is not quantized by one of these methods, or its format is not supported.
        """
        found: QuantizeConfig = add_on("quantization").config_of_checkpoint(Path(directory))
        return found
