"""Recurrent layers as one node, and shapes as tensors.

torch's own shape function of ``aten.lstm.input`` and its relatives runs the layer step by step, which fixes the number
of steps. Only the shapes of the results are needed while capturing, and those follow from the arguments. The kernel
of ``torch.onnx.operators.shape_as_tensor`` reads memory that is not there then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import OpOverload

__all__ = ["recurrent_kernels"]

aten = torch.ops.aten


def _sequence(input: Tensor, hidden: Tensor, bidirectional: bool, batch_first: bool) -> Tensor:
    batch = input.size(0 if batch_first else 1)
    # Two runtime sizes that have to agree are one dim of the exported model.
    torch._check(  # type: ignore[no-untyped-call]
        hidden.size(1) == batch, lambda: f"the hidden state is for {hidden.size(1)} sequences, the input has {batch}"
    )
    return input.new_empty([*input.shape[:-1], hidden.size(2) * (2 if bidirectional else 1)])


def _state(state: Tensor) -> Tensor:
    return state.new_empty(state.shape)


def _lstm_input(
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
    return _sequence(input, hx[0], bidirectional, batch_first), _state(hx[0]), _state(hx[1])


def _rnn_input(
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
    return _sequence(input, hx, bidirectional, batch_first), _state(hx)


def _shape_as_tensor(self: Tensor) -> Tensor:
    return self.new_empty([self.dim()], dtype=torch.int64)


def _kernels() -> dict[OpOverload[Any, Any], Callable[..., Any]]:
    return {
        aten.lstm.input: _lstm_input,
        aten.gru.input: _rnn_input,
        aten.rnn_tanh.input: _rnn_input,
        aten.rnn_relu.input: _rnn_input,
        aten._shape_as_tensor.default: _shape_as_tensor,
    }


@contextmanager
def recurrent_kernels() -> Iterator[None]:
    """Within it, tracing keeps every recurrent layer as one ATen node and any number of steps stays possible.

    May be nested. On exit, after an error as well, every operator has the kernel it had before.
    """
    key = DispatchKey.CompositeImplicitAutograd
    kernels = _kernels()
    before = {overload: overload.py_kernels.get(key) for overload in kernels}
    try:
        for overload, kernel in kernels.items():
            _install(overload, kernel)
        yield
    finally:
        for overload, previous in before.items():
            _install(overload, previous)


def _install(overload: OpOverload[Any, Any], kernel: Callable[..., Any] | None) -> None:
    key = DispatchKey.CompositeImplicitAutograd
    if kernel is None:
        overload.py_kernels.pop(key, None)
    else:
        overload.py_kernels[key] = kernel
    # The operator remembers which kernel it resolved for a key.
    overload._dispatch_cache.clear()
