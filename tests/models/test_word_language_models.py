"""Word language models of the PyTorch examples: recurrent layers with states, and a Transformer that keeps its mask."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxonnx

WORDS, WIDTH = 20, 8


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        steps = torch.arange(50.0)[:, None]
        rates = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        table = torch.stack([torch.sin(steps * rates), torch.cos(steps * rates)], -1).flatten(1)
        self.register_buffer("table", table[:, None])
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.table[: x.size(0), :])


class TransformerModel(nn.Transformer):
    """The model creates its mask at the first call and whenever the length differs."""

    def __init__(self) -> None:
        super().__init__(d_model=WIDTH, nhead=2, dim_feedforward=16, num_encoder_layers=2, num_decoder_layers=1)
        self.src_mask: Tensor | None = None
        self.positions, self.words = Positions(), nn.Embedding(WORDS, WIDTH)
        self.decoder = nn.Linear(WIDTH, WORDS)

    def forward(self, src: Tensor, has_mask: bool = True) -> Tensor:
        if not has_mask:
            self.src_mask = None
        elif self.src_mask is None or self.src_mask.size(0) != len(src):
            size = len(src)
            self.src_mask = torch.log(torch.tril(torch.ones(size, size))).to(src.device)
        x = self.positions(self.words(src) * math.sqrt(WIDTH))
        return F.log_softmax(self.decoder(self.encoder(x, mask=self.src_mask)), dim=-1)


class RecurrentModel(nn.Module):
    """The decoder shares the weight of the embedding."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.dropout, self.encoder = nn.Dropout(0.5), nn.Embedding(WORDS, WIDTH)
        options = {"nonlinearity": kind.partition("_")[2].lower()} if "_" in kind else {}
        self.layer = getattr(nn, kind.partition("_")[0])(WIDTH, WIDTH, 2, dropout=0.5, **options)
        self.decoder = nn.Linear(WIDTH, WORDS)
        self.decoder.weight = self.encoder.weight

    def forward(self, words: Tensor, hidden: Any) -> Any:
        output, hidden = self.layer(self.dropout(self.encoder(words)), hidden)
        decoded = self.decoder(self.dropout(output)).view(-1, WORDS)
        return F.log_softmax(decoded, dim=1), hidden

    def initial(self, batch: int) -> Any:
        state = next(self.parameters()).new_zeros(2, batch, WIDTH)
        return (state, state.clone()) if isinstance(self.layer, nn.LSTM) else state


def compare(program: fxonnx.ONNXProgram, model: nn.Module, args: tuple[Any, ...]) -> None:
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(model(*args))
    for ours, theirs in zip(program(*args), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN_TANH", "RNN_RELU"])
def test_recurrent(kind: str) -> None:
    model = RecurrentModel(kind).eval()
    state: Any = ({1: "n"}, {1: "n"}) if kind == "LSTM" else {1: "n"}
    example = (torch.randint(0, WORDS, (6, 2)), model.initial(2))
    program = fxonnx.export(model, example, dynamic_shapes=({0: "t", 1: "n"}, state))
    for time, batch in ((6, 2), (9, 3), (1, 1)):
        compare(program, model, (torch.randint(0, WORDS, (time, batch)), model.initial(batch)))


@pytest.mark.filterwarnings("ignore:The tensor attribute self.src_mask was assigned during export")
@pytest.mark.parametrize("has_mask", [True, False])
def test_transformer(has_mask: bool) -> None:
    model = TransformerModel().eval()
    example = (torch.randint(0, WORDS, (6, 2)), has_mask)
    program = fxonnx.export(model, example, dynamic_shapes=({0: "t", 1: "n"}, None))
    for time, batch in ((6, 2), (9, 3), (1, 1)):
        compare(program, model, (torch.randint(0, WORDS, (time, batch)), has_mask))
