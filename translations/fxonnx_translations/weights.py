"""Initializers: tensors that share the module's memory, and tensors derived from them when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from .dtypes import from_torch, to_torch_dtype

__all__ = ["DerivedTensor", "Recipe", "TorchTensor", "derive"]

Recipe = Callable[..., torch.Tensor]


class DerivedTensor(ir.LazyTensor):
    """A weight computed from other weights each time its bytes are asked for; it never holds them.

    Args:
        name: Initializer name.
        sources: The tensors the recipe takes, in order: module weights or other derived tensors.
        recipe: A function of the source tensors, e.g. ``torch.t``.
        dtype: Element type of the result.
        shape: Static shape of the result.
    """

    def __init__(
        self,
        name: str,
        sources: Sequence[TorchTensor | DerivedTensor],
        recipe: Recipe,
        dtype: ir.DataType,
        shape: Sequence[int],
    ) -> None:
        self.sources = tuple(sources)
        self.recipe = recipe
        super().__init__(lambda: TorchTensor(self.torch(), name=name), dtype, ir.Shape(shape), name=name)

    def torch(self) -> torch.Tensor:
        """Computes the tensor; nothing is cached, so peak memory is this tensor plus its temporaries."""
        with torch.no_grad():
            return self.recipe(*(_torch(source) for source in self.sources)).contiguous()


def _torch(tensor: TorchTensor | DerivedTensor) -> torch.Tensor:
    if isinstance(tensor, DerivedTensor):
        return tensor.torch()
    raw = tensor.raw
    if not isinstance(raw, torch.Tensor):
        raise TypeError(f"initializer {tensor.name!r} does not hold a torch.Tensor")
    return raw.detach()


def derive(name: str, sources: Sequence[TorchTensor | DerivedTensor], recipe: Recipe) -> DerivedTensor:
    """A derived tensor; shape and dtype come from running ``recipe`` on the meta device.

    Args:
        name: Initializer name of the result.
        sources: Weights or derived weights, in the order the recipe takes them.
        recipe: A function of the source tensors, e.g. ``torch.t``.
    """
    stand_ins = [
        torch.empty(source.shape.numpy(), dtype=to_torch_dtype(source.dtype), device="meta") for source in sources
    ]
    result = recipe(*stand_ins)
    return DerivedTensor(name, sources, recipe, from_torch(result.dtype), tuple(result.shape))
