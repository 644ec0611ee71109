"""Refusals that need no test of their own: a program, the class of the error, the line that it names, and its words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import fxonnx
from fxonnx import CaptureError, ExportError, TranslationError

from ..functions import Function
from ..messages import check_message

N = ({0: "n"},)


@dataclass(frozen=True)
class Refusal:
    """A program that an export refuses.

    Attributes:
        name: The refused program.
        model: Makes the model.
        inputs: The example inputs.
        words: A pattern of the message.
        line: A part of the line of the program that the message quotes, if it quotes one.
        error: The class of the error.
        says_what_to_do: Whether the message has a hint, or lists the valid values.
        options: Options of the export.
    """

    name: str
    model: Callable[[], Any]
    inputs: tuple[Tensor, ...]
    words: str
    line: str = ""
    error: type[ExportError] = CaptureError
    says_what_to_do: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


class Asserting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert x.size(0) == 3, "three rows, please"
        return x


class Futures(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.jit.wait(torch.jit.fork(torch.relu, x))


class Options(nn.Module):
    def scale(self, options: dict[str, int] | int) -> int:
        return 1 if isinstance(options, dict[str, int]) else 0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale({"scale": 2})


class Viewed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x + 1
        row = x[0]
        if bool(x.sum() > 0):
            x += 1
            row = row * 2
        return row


class Popped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        sizes: dict[str, int] = {"a": 3, "b": 4}
        key, size = sizes.popitem()
        return x + size + len(key)


class Appended(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        if bool(x.sum() > 0):
            parts += [x]
        return torch.stack(parts)


def scripted(kind: type[nn.Module]) -> Callable[[], Any]:
    return lambda: torch.jit.script(kind().eval())


def of(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: Function(function).eval()


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return pad_packed_sequence(self.layer(pack_padded_sequence(x, lengths))[0])[0]


def fixed(x: Tensor) -> Tensor:
    if x.shape[0] % 4:
        return x
    return x + torch.ones(12, 3)


def shortened(x: Tensor) -> Tensor:
    y = x * 2
    y.data = y[:1]
    return y


def weighted_gradients(x: Tensor) -> Any:
    """With weights of the outputs, the number of parts is a size of the example."""
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        weights = [torch.tensor(1.0), torch.tensor(2.0)]
        return torch.autograd.grad(torch.unbind(x.sum(1)), x, grad_outputs=weights)[0]


REFUSALS = (
    Refusal("script: failed assertion", scripted(Asserting), (torch.rand(4, 3),), "three rows, please"),
    Refusal(
        "script: operation without an equivalent", scripted(Futures), (torch.rand(4, 3),),
        "TorchScript's prim::fork has no equivalent in ONNX", "in: ", says_what_to_do=False,
    ),
    Refusal(
        "script: type", scripted(Options), (torch.rand(4, 3),), "isinstance with TorchScript's type",
        says_what_to_do=False,
    ),
    Refusal(
        "script: write in a branch to an aliased tensor", scripted(Viewed), (torch.rand(4, 3),),
        "modifies a tensor in place and uses a view of it",
    ),
    Refusal(
        "script: dict that an operator changes", scripted(Popped), (torch.rand(2),),
        "aten::popitem has no equivalent in ONNX", says_what_to_do=False,
    ),
    Refusal(
        "script: list of outside that a branch changes", scripted(Appended), (torch.rand(2),),
        "aten::add_ mutates a value from outside of a data-dependent branch",
    ),
    Refusal(
        "sizes: bitwise operators of older opsets", of(lambda x: x + (x.shape[0] & 4)), (torch.zeros(7, 2),),
        "has an ONNX form from opset 18 on",
        error=TranslationError, options={"dynamic_shapes": N, "opset_version": 17},
    ),
    # Not the line of the check, which only depends on the size.
    Refusal(
        "sizes: fixed by an operand", of(fixed), (torch.rand(12, 3),), "x axis 0, 'n', is always 12", r"at: .*ones\(12",
        options={"dynamic_shapes": N},
    ),
    Refusal(
        "sizes: iteration over one row, without source", of(lambda x: sum(map(torch.sum, x))), (torch.rand(1, 4),),
        "x axis 0, 'n', is always 1", r"at: .*sum\(map", options={"dynamic_shapes": N},
    ),
    Refusal(
        "tensor of a tensor as an integer", of(lambda x: torch.tensor([x[0, 0], 3], dtype=torch.int64)), (torch.ones(2, 4),),
        "the model itself fails on the example inputs: TypeError",
    ),
    Refusal(
        "take_along_dim of another rank", of(lambda x: torch.take_along_dim(x, torch.tensor([0]), 1)), (torch.rand(4, 3),),
        "the indices have 1 axes, the input has 2", says_what_to_do=False,
    ),
    Refusal(
        "cdist of other coordinates", of(lambda x: torch.cdist(x, x[:, :2])), (torch.rand(4, 3),),
        "points of 3 and 2 coordinates", says_what_to_do=False,
    ),
    Refusal(
        "write to a tensor that overlaps itself", of(lambda x: x[:, :1].expand(-1, 4).copy_(x)), (torch.rand(2, 4),),
        "more than one element of the written-to", options={"dynamic_shapes": N},
    ),
    Refusal(
        "data of another shape", of(shortened), (torch.rand(2, 3),),
        r"assigns a tensor of a different shape or dtype to \.data", says_what_to_do=False,
    ),
    Refusal(
        "packed sequence: lengths of another batch", Packed, (torch.randn(5, 2, 3), torch.tensor([5, 3, 2])),
        "3 lengths for 2 sequences", says_what_to_do=False,
    ),
    Refusal(
        "packed sequence: lengths of two axes", Packed, (torch.randn(5, 2, 3), torch.tensor([[5], [3]])),
        "lengths must have one axis, not 2", says_what_to_do=False,
    ),
    Refusal(
        "gradients: as many parts as rows", of(weighted_gradients), (torch.rand(2, 3),), "x axis 0, 'n', is always 2",
        options={"dynamic_shapes": N},
    ),
)  # fmt: skip
"""A new refusal is a row here; it is a test beside its promise only if it checks more than the error."""


@pytest.mark.parametrize("refusal", [pytest.param(one, id=one.name) for one in REFUSALS])
def test_refusals(refusal: Refusal) -> None:
    with pytest.raises(refusal.error, match=refusal.words) as caught:
        fxonnx.export(refusal.model(), refusal.inputs, **refusal.options)
    assert type(caught.value) is refusal.error
    assert re.search(refusal.line, str(caught.value))
    if refusal.says_what_to_do:
        check_message(caught.value)
