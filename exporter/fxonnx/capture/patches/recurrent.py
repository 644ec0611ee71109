"""Shape-only kernels: recurrent layers and convolutions over time with any number of steps, and shapes as tensors.

torch's own shape function of ``aten.lstm.input`` and its relatives runs the layer step by step, which fixes the number
of steps. Only the shapes of the results are needed while capturing, and those follow from the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["conv_tbc", "lstm", "rnn", "shape_as_tensor"]


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
