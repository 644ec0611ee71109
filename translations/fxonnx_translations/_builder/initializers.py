"""Initializers: tensors that share the module's memory, and derived weights, computed when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from .._torch_compat import FakeTensor, unset_fake_temporarily
from .dtypes import from_torch, to_torch_dtype

__all__ = [
    "BITS",
    "DerivedTensor",
    "Recipe",
    "TorchTensor",
    "derive",
    "has_content",
    "sources_of",
    "storage_key",
    "values_of",
]

Recipe = Callable[..., torch.Tensor]

BITS: Mapping[ir.DataType, int] = MappingProxyType(
    {dtype: 4 for name in ("INT4", "UINT4", "FLOAT4E2M1") if (dtype := getattr(ir.DataType, name, None)) is not None}
)
"""Element types that are packed in bytes; in torch, a derived tensor of one has one code per int8 or uint8 element."""


class DerivedTensor(ir.LazyTensor):
    """A derived weight: computed from other weights each time its bytes are read, and never stored.

    The recipe of an element type of ``BITS`` returns one code per element of int8 or uint8.

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
        super().__init__(self.evaluated, dtype, ir.Shape(shape), name=name)

    def with_sources(self, sources: Sequence[TorchTensor | DerivedTensor]) -> DerivedTensor:
        """Return the same tensor derived from other weights of the same dtypes and shapes."""
        shape = [int(size) for size in self.shape.numpy()]
        return DerivedTensor(str(self.name), sources, self.recipe, self.dtype, shape)

    def evaluated(self) -> ir.TensorProtocol:
        """Compute the tensor as a tensor of its element type."""
        content = self.torch()
        if self.dtype in BITS:
            return ir.PackedTensor(_packed(content).numpy(), self.dtype, shape=self.shape, name=self.name)
        return TorchTensor(content, name=self.name)

    def torch(self) -> torch.Tensor:
        """Compute the tensor; it is not cached, so peak memory is this tensor plus its temporaries."""
        with torch.no_grad(), unset_fake_temporarily():
            return self.recipe(*(values_of(source) for source in self.sources)).contiguous()


def sources_of(tensor: Any) -> Iterator[TorchTensor]:
    """Yield the weights that an initializer consists of or is derived from."""
    if isinstance(tensor, DerivedTensor):
        for source in tensor.sources:
            yield from sources_of(source)
    elif isinstance(tensor, TorchTensor):
        yield tensor


def has_content(tensor: torch.Tensor) -> bool:
    """Whether a tensor has data, unlike fake tensors and tensors on the meta device."""
    return not (tensor.is_meta or isinstance(tensor, FakeTensor))


def storage_key(tensor: torch.Tensor, name: str) -> Hashable:
    """Return a key that is equal for tied weights, and for a complex tensor and its real view.

    Args:
        tensor: The weight.
        name: Its name, which is the key of a tensor without elements.
    """
    real = torch.view_as_real(tensor.detach()) if tensor.is_complex() and not tensor.is_conj() else tensor
    if not real.numel():
        return name
    where = (real.data_ptr(),) if has_content(real) else (real.untyped_storage()._cdata, real.storage_offset())
    return (*where, tuple(real.shape), real.stride(), real.dtype)


def values_of(tensor: TorchTensor | DerivedTensor) -> torch.Tensor:
    """Return the values of a weight, without a copy, or those of a derived weight, computed now."""
    if isinstance(tensor, DerivedTensor):
        return tensor.torch()
    raw = tensor.raw
    if not isinstance(raw, torch.Tensor):
        raise TypeError(f"initializer {tensor.name!r} does not hold a torch.Tensor")
    return raw.detach()


def derive(
    name: str, sources: Sequence[TorchTensor | DerivedTensor], recipe: Recipe, dtype: ir.DataType | None = None
) -> DerivedTensor:
    """Return a derived weight; its shape and dtype come from running ``recipe`` on the meta device.

    Args:
        name: Initializer name of the result.
        sources: Weights or derived weights, in the order the recipe takes them.
        recipe: A function of the source tensors, e.g. ``torch.t``.
        dtype: Element type of the result, if it is one of ``BITS``.
    """
    meta_tensors = [torch.empty(source.shape.numpy(), dtype=_dtype_of(source), device="meta") for source in sources]
    result = recipe(*meta_tensors)
    return DerivedTensor(name, sources, recipe, dtype or from_torch(result.dtype), tuple(result.shape))


def _dtype_of(source: TorchTensor | DerivedTensor) -> torch.dtype:
    if isinstance(source, DerivedTensor) and source.dtype in BITS:
        return torch.int8 if source.dtype == ir.DataType.INT4 else torch.uint8
    return to_torch_dtype(source.dtype)


def _packed(codes: torch.Tensor) -> torch.Tensor:
    """Pack pairs of 4-bit codes into bytes, the first one in the low bits."""
    flat = codes.reshape(-1).view(torch.uint8) & 15
    if flat.numel() % 2:
        flat = torch.nn.functional.pad(flat, (0, 1))
    return flat[0::2] | flat[1::2] << 4
