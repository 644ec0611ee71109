"""Packing, unpacking and recurrent layers over packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .harness import Case, T, run

LENGTHS = T(("n",), torch.int64, low=1, high=6)


class Packed(nn.Module):
    """A layer over packed sequences: the padded output, the lengths and the final states."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        output, last = self.layer(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return *pad_packed_sequence(output), last


def packed(x: torch.Tensor, lengths: torch.Tensor) -> PackedSequence:
    return pack_padded_sequence(x, lengths, enforce_sorted=False)


def masked(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return pad_packed_sequence(packed(x, lengths), padding_value=-1.0)


CASES = (
    *(
        Case(target, Packed(layer), (T((5, "n", 3)), LENGTHS), f"opset {opset}", opset=opset)
        for opset in (11, 20)
        for target, layer in (
            ("aten.lstm.data", nn.LSTM(3, 4, 2, bidirectional=True)),
            ("aten.gru.data", nn.GRU(3, 4)),
            ("aten.rnn_tanh.data", nn.RNN(3, 4)),
            ("aten.rnn_relu.data", nn.RNN(3, 4, nonlinearity="relu")),
        )
    ),
    Case("fxonnx.pack_padded_sequence.default", packed, (T((5, "n", 3)), LENGTHS)),
    Case("fxonnx.pack_padded_sequence.default", packed, (T((5, "n"), torch.int64), LENGTHS), "integers"),
    Case("fxonnx.pack_padded_sequence.default", packed, (T((5, "n", 2, 3)), LENGTHS), "4 axes", opset=13),
    Case("fxonnx.pad_packed_sequence.default", masked, (T((5, "n", 3)), LENGTHS)),
    Case("fxonnx.pad_packed_sequence.default", masked, (T((5, "n"), torch.int64), LENGTHS), "integers"),
    Case("fxonnx.pad_packed_sequence.default", masked, (T((5, "n", 2, 3)), LENGTHS), "4 axes", opset=13),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_packed_sequences(case: Case) -> None:
    run(case)
