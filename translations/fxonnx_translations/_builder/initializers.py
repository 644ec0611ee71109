"""Initializers: tensors that share the module's memory, and derived weights, computed when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters

from .._torch_compat import FakeTensor, unset_fake_temporarily
from .default_device import cpu_by_default
from .dtypes import from_torch, to_torch_dtype
from .sub_byte import PER_BYTE, contiguous, onnx_sizes, pack, to_numpy

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


class TorchTensor(tensor_adapters.TorchTensor):
    """An initializer that shares the memory of a torch tensor; elements of a sub-byte dtype are packed when they are read.

    Args:
        tensor: The torch tensor.
        name: Initializer name.
    """

    def __init__(self, tensor: torch.Tensor, name: str | None = None) -> None:
        if tensor.dtype not in PER_BYTE:
            super().__init__(tensor, name=name)
            return
        shape = ir.Shape(onnx_sizes(tensor.shape, tensor.dtype))
        # Not the initializer of the base class, which does not know these dtypes.
        ir.Tensor.__init__(self, tensor, from_torch(tensor.dtype), shape=shape, name=name)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the numbers, one per element of the array."""
        return to_numpy(self.raw) if self.raw.dtype in PER_BYTE else super().numpy()

    def tobytes(self) -> bytes:
        """Return the bytes of the ONNX tensor."""
        # The base class refuses a tensor without values.
        if self.raw.dtype not in PER_BYTE or isinstance(self.raw, FakeTensor):
            return super().tobytes()
        with unset_fake_temporarily():
            return pack(self.raw).numpy().tobytes()

    def tofile(self, file: Any) -> None:
        """Write the bytes of the ONNX tensor."""
        if self.raw.dtype in PER_BYTE:
            file.write(self.tobytes())
        else:
            super().tofile(file)


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

    def __repr__(self) -> str:
        names = ", ".join(repr(source.name) for source in self.sources)
        return (
            f"{type(self).__name__}<{self.dtype},{self.shape}>({f'from {names}, ' if names else ''}name={self.name!r})"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> DerivedTensor:
        """Itself: it does not change, and its recipe may refer to a captured graph, which cannot be copied."""
        return self

    def with_sources(self, sources: Sequence[TorchTensor | DerivedTensor]) -> DerivedTensor:
        """Return the same tensor derived from other weights of the same dtypes and shapes."""
        shape = [int(size) for size in self.shape.numpy()]
        return DerivedTensor(str(self.name), sources, self.recipe, self.dtype, shape)

    def evaluated(self) -> ir.TensorProtocol:
        """Compute the tensor as a tensor of its element type."""
        content = self.torch()
        if self.dtype in BITS and content.dtype not in PER_BYTE:
            return ir.PackedTensor(_packed(content).numpy(), self.dtype, shape=self.shape, name=self.name)
        return TorchTensor(content, name=self.name)

    def torch(self) -> torch.Tensor:
        """Compute the tensor; it is not cached, so peak memory is this tensor plus its temporaries."""
        with cpu_by_default(), torch.no_grad(), unset_fake_temporarily():
            return contiguous(self.recipe(*(values_of(source) for source in self.sources)))


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
    """Return the values of a weight on the CPU, without a copy if it is there, or of a derived weight, computed now."""
    if isinstance(tensor, DerivedTensor):
        return tensor.torch()
    raw = tensor.raw
    if not isinstance(raw, torch.Tensor):
        raise TypeError(f"initializer {tensor.name!r} does not hold a torch.Tensor")
    return raw.detach().cpu()


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
    meta_tensors = [torch.empty(_sizes_of(source), dtype=_dtype_of(source), device="meta") for source in sources]
    result = recipe(*meta_tensors)
    return DerivedTensor(name, sources, recipe, dtype or from_torch(result.dtype), tuple(result.shape))


def _sizes_of(source: TorchTensor | DerivedTensor) -> Sequence[int]:
    return source.shape.numpy() if isinstance(source, DerivedTensor) else tuple(source.raw.shape)


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
