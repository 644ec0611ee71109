"""Mistakes of users in forward that torch reports in its own terms: each is an error in the user's, with a next step."""

from __future__ import annotations

import asyncio
import copy
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

import fxonnx

from .functions import Function
from .messages import check_message

X = torch.tensor([[0.5, -1.0, 1.5], [1.0, 0.25, 2.0]])
N: dict[str, Any] = {"dynamic_shapes": ({0: "n"},)}


class WithoutInit(nn.Module):
    def __init__(self) -> None:
        """Forgets that of nn.Module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Waiting(nn.Module):
    async def forward(self, x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return x


def of(function: Callable[[torch.Tensor], Any], x: torch.Tensor = X, **options: Any) -> Callable[[], Any]:
    return lambda: fxonnx.export(Function(function).eval(), (x.clone(),), **options)


def _branches(first: Callable[[torch.Tensor], Any], second: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    return lambda x: torch.cond(x.sum() > 0, first, second, (x,))


MEMORY = r"(?s:.*)at: \S*forward\.py:\d+ (?s:.*)hint: during the capture, tensors have no memory"
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "no super().__init__()": (
        lambda: fxonnx.export(WithoutInit(), (X,)),
        r"model: WithoutInit.__init__ has not called the __init__ of nn.Module\nhint: call super\(\)",
    ),
    "async": (
        lambda: fxonnx.export(Waiting(), (X,)),
        r"of the class coroutine(?s:.*)hint: define forward without async",
    ),
    "copy.copy": (
        of(lambda x: copy.copy(x) * 2),
        r"cannot be pickled or copied(?s:.*)at: \S*forward\.py:\d+ (?s:.*)hint: copy with clone",
    ),
    "torch.save": (of(lambda x: torch.save(x, "x.pt")), r"cannot be pickled (?s:.*)hint: (?s:.*)is_exporting\(\)"),
    "values counted": (
        of(lambda x: x * Counter(x.int().flatten().tolist()).most_common(1)[0][0]),
        r"unhashable type: symbolic int\n(?s:.*)hint: a size or the value of a tensor is the key (?s:.*)frozen",
    ),
    "values as JSON": (
        of(lambda x: x * len(json.dumps(x.tolist()))),
        r"type symbolic float is not JSON serializable\n(?s:.*)hint: the function takes plain numbers",
    ),
    "NumPy's root of a size": (
        of(lambda x: torch.zeros(int(np.sqrt(x.shape[0]))), **N),
        r"of type symbolic int which has no callable sqrt(?s:.*)hint: NumPy has this function for numbers only",
    ),
    "numbers of a generator, of a size": (
        of(lambda x: x * torch.randn(x.shape[0], 1, generator=torch.Generator().manual_seed(1)), **N),
        r"a size is dynamic here, and torch has this operator for plain (?s:.*)at: \S*forward\.py:\d+ (?s:.*)hint: make the dim static; numbers of a",
    ),
    "NumPy's permutation of a size": (
        of(lambda x: x[np.random.permutation(x.shape[0])], **N),
        r"IndexError\n(?s:.*)at: \S*test_mistakes_in_forward\.py:\d+ (?s:.*)hint: compute with functions of torch",
    ),
    "nested tensors": (
        of(lambda x: torch.nested.nested_tensor([x[0], x[1]])),
        r"does not know the shape of the result of aten\._nested_tensor_from_tensor_list(?s:.*)hint: (?s:.*)padded",
    ),
    "a branch returns its operand": (
        of(_branches(lambda x: x, lambda x: x + 1)),
        r"Encountered aliasing (?s:.*)at: (?s:.*)hint: return a new tensor",
    ),
    "a branch writes to its operand": (
        of(_branches(lambda x: x.add_(1), lambda x: x * 1)),
        r"Encountered input mutation (?s:.*)at: (?s:.*)hint: compute a new tensor in each branch",
    ),
    "a loop that grows": (
        of(lambda x: while_loop(lambda y: y.sum() < 9, lambda y: (torch.cat([y, y]),), (x,))),
        r"to have same metadata (?s:.*)hint: return tensors of the shape and dtype",
    ),
    "oneDNN's layout": (of(lambda x: x.to_mkldnn()), f"Cannot access storage of OpaqueTensorImpl{MEMORY}"),
    "shared memory": (of(lambda x: x.share_memory_()), f"only available on CPU{MEMORY}"),
    "storage": (of(lambda x: x.storage()[0] * x), f"Not available for 'meta' device type{MEMORY}"),
    "address": (of(lambda x: x * x.data_ptr()), f"Cannot access data pointer of Tensor{MEMORY}"),
    "DLPack": (of(lambda x: torch.from_dlpack(x)), f"Cannot access data pointer of Tensor{MEMORY}"),
    "transform of halves": (
        of(lambda x: torch.fft.fft(x.bfloat16())),
        r"the model itself fails (?s:.*)Unsupported dtype BFloat16\n  at: (?s:.*)hint: call model",
    ),
    "form of a size": (
        of(lambda x: x * 2, dynamic_shapes=({0: 2 * torch.export.Dim("n") + 1},)),
        r"of the form 2\*n \+ 1(?s:.*)hint: pass an example with such a size",
    ),
    "loop in a lambda": (
        of(lambda x: torch.stack([row * 2 for row in x]), **N),
        r"'n', is always 2\n(?s:.*)hint: write the loop in a function with def",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    make, match = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fxonnx.ExportError, match=match) as caught:
        make()
    check_message(caught.value)
    assert "graph break" not in str(caught.value)
    assert " at 0x" not in str(caught.value)


def _saves(x: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_exporting():
        torch.save(x, "x.pt")
    return x * 2


def _permuted(x: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(x.shape[0]).flip(0)]


def _shared(x: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_exporting():
        x.share_memory_()
    return x * 2


def _counted(x: torch.Tensor, y: torch.Tensor) -> Any:
    return y * Counter(x.int().flatten().tolist()).most_common(1)[0][0]


def _doubled(x: torch.Tensor) -> Any:
    return while_loop(lambda y: y.sum() < 9, lambda y: (y + y.abs(),), (x,))[0]


def _looped(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([row * 2 for row in x])


FOLLOWED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "leave it out of exports": (_saves, {}),
    "functions of torch": (_permuted, N),
    "no memory": (_shared, {}),
    "a new tensor": (_branches(lambda x: x.clone(), lambda x: x + 1), {}),
    "no write": (_branches(lambda x: x + 1, lambda x: x * 1), {}),
    "one shape": (_doubled, {}),
    "def": (_looped, N),
    "clone": (lambda x: x.clone() * 2, {}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FOLLOWED)
def test_the_next_step(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    function, options = FOLLOWED[name]
    monkeypatch.chdir(tmp_path)
    model = Function(function).eval()
    program = fxonnx.export(model, (X.clone(),), **options)
    for x in (X, -X, *([torch.cat([X, X])] if options else [])):
        torch.testing.assert_close(program(x.clone())[0], model(x.clone()))


def test_a_frozen_input_has_values() -> None:
    model = Function(_counted).eval()
    program = fxonnx.export(model, (X, X), frozen=["x"])
    torch.testing.assert_close(program(y=X + 1)[0], model(X, X + 1))
