"""Shape-only kernels of operators whose own kernel turns a dynamic size into the number it has in the example.

Their kernels in C++ take sizes as plain integers, or choose among algorithms by size. Only the shapes of the results
are needed while capturing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "cdist",
    "conv_tbc",
    "kron",
    "lstm",
    "max_pool1d",
    "max_pool1d_with_indices",
    "rnn",
    "shape_as_tensor",
    "take_along_dim",
]


_broadcast: Callable[..., Sequence[int]] = torch.broadcast_shapes  # without types in torch


def max_pool1d(
    original: Callable[..., Any],
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Tensor:
    """Result of ``aten::max_pool1d``: that of ``max_pool2d`` for an image of one row."""
    result: Tensor = torch.ops.aten.max_pool2d(
        self.unsqueeze(-2),
        (1, *kernel_size),
        (1, *(stride or kernel_size)),
        (0, *padding),
        (1, *dilation),
        ceil_mode,
    )
    return result.squeeze(-2)


def max_pool1d_with_indices(
    original: Callable[..., Any], self: Tensor, *arguments: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    """Results of ``aten::max_pool1d_with_indices``."""
    values = max_pool1d(original, self, *arguments, **options)
    return values, values.new_empty(values.shape, dtype=torch.int64)


def kron(original: Callable[..., Any], self: Tensor, other: Tensor) -> Tensor:
    """Result of ``aten::kron``: axes are multiplied, counted from the last one."""
    rank = max(self.dim(), other.dim())
    shapes = [(1,) * (rank - tensor.dim()) + tuple(tensor.shape) for tensor in (self, other)]
    dtype = torch.result_type(self, other)
    return self.new_empty([one * two for one, two in zip(*shapes, strict=True)], dtype=dtype)


def take_along_dim(original: Callable[..., Any], self: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Result of ``aten::take_along_dim``: all axes but ``dim`` are broadcast."""
    if dim is None:
        return self.new_empty([indices.numel()])
    torch._check(  # type: ignore[no-untyped-call]
        self.dim() == indices.dim(), lambda: f"the indices have {indices.dim()} axes, the input has {self.dim()}"
    )
    axis = dim % self.dim()
    shape = list(_broadcast(self.narrow(axis, 0, 1).shape, indices.narrow(axis, 0, 1).shape))
    return self.new_empty([*shape[:axis], indices.shape[axis], *shape[axis + 1 :]])


def cdist(
    original: Callable[..., Any], x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None
) -> Tensor:
    """Result of ``aten::cdist``, which has another algorithm above 25 rows."""
    torch._check(  # type: ignore[no-untyped-call]
        x1.size(-1) == x2.size(-1), lambda: f"points of {x1.size(-1)} and {x2.size(-1)} coordinates"
    )
    batch = _broadcast(x1.shape[:-2], x2.shape[:-2])
    return x1.new_empty([*batch, x1.size(-2), x2.size(-2)])


def _sequence(input: Tensor, hidden: Tensor, bidirectional: bool, batch_first: bool) -> Tensor:
    batch = input.size(0 if batch_first else 1)
    # Two runtime sizes that have to agree are one dim of the exported model.
    torch._check(  # type: ignore[no-untyped-call]
        hidden.size(1) == batch, lambda: f"the hidden state is for {hidden.size(1)} sequences, the input has {batch}"
    )
    return input.new_empty([*input.shape[:-1], hidden.size(2) * (2 if bidirectional else 1)])


def _state(state: Tensor) -> Tensor:
    return state.new_empty(state.shape)


def lstm(
    original: Callable[..., Any],
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Results of ``aten::lstm.input``: the sequence, the hidden state and the cell state."""
    return _sequence(input, hx[0], bidirectional, batch_first), _state(hx[0]), _state(hx[1])


def rnn(
    original: Callable[..., Any],
    input: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    """Results of ``aten::gru.input``, ``rnn_tanh.input`` and ``rnn_relu.input``: the sequence and the hidden state."""
    return _sequence(input, hx, bidirectional, batch_first), _state(hx)


def shape_as_tensor(original: Callable[..., Any], self: Tensor) -> Tensor:
    """Result of ``aten::_shape_as_tensor``, whose own kernel reads memory that fake tensors do not have."""
    return self.new_empty([self.dim()], dtype=torch.int64)


def conv_tbc(original: Callable[..., Any], self: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """Result of ``aten::conv_tbc``, whose kernel reads the sizes as numbers: [time, batch, channels]."""
    return self.new_empty([self.size(0) + 2 * pad - weight.size(0) + 1, self.size(1), weight.size(2)])
