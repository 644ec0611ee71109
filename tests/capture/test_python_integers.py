"""``int(size)`` and ``len(tensor)`` in user code keep dynamic dims dynamic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxonnx

from ..functions import Function


def _causal(length: int) -> Tensor:
    return torch.log(torch.tril(torch.ones(length, length)))


class LanguageModel(nn.Module):
    """The word language model of the PyTorch examples, which stores the mask of the last length."""

    def __init__(self) -> None:
        super().__init__()
        self.src_mask: Tensor | None = None
        self.embedding = nn.Embedding(20, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)

    def forward(self, x: Tensor, has_mask: bool = True) -> Tensor:
        if has_mask:
            if self.src_mask is None or self.src_mask.size(0) != len(x):
                self.src_mask = _causal(len(x))
        else:
            self.src_mask = None
        return self.encoder(self.embedding(x.clamp(0, 19).long()), mask=self.src_mask)


def _checked(x: Tensor) -> Tensor:
    size = int(x.shape[0])
    if not isinstance(size, int) or not issubclass(bool, int):
        raise TypeError("a size is an integer")
    return x * size + int("2") + len([1, 2])


def _same_padding(x: Tensor) -> Tensor:
    """TensorFlow's padding for a stride of 1."""
    height, width = int(x.shape[0]), int(x.shape[1])
    return F.max_pool2d(F.pad(x, (0, width // width, 0, height // height))[None], 2, stride=1)[0]


CASES: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "int of a size": lambda: Function(lambda x: x + torch.ones(int(x.shape[0]), 1)),
        "len of a tensor": lambda: Function(lambda x: torch.cat([x, torch.arange(len(x))[:, None]], 1)),
        "len of a result": lambda: Function(lambda x: torch.zeros(len(x[1:]), 2)),
        "int as a type": lambda: Function(_checked),
        "in a function": lambda: Function(_same_padding),
        "language model": LanguageModel,
    }
)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_dims_stay_dynamic(name: str) -> None:
    torch.manual_seed(0)
    model = CASES[name]().eval()
    program = fxonnx.export(model, (torch.randn(5, 4),), dynamic_shapes=({0: "n", 1: "m"},), strict_shapes=True)
    for size in ((5, 4), (7, 3), (2, 6)):
        x = torch.randn(size) * 5
        torch.testing.assert_close(program(x)[0], model(x), atol=1e-5, rtol=1e-4)


def test_a_size_as_a_key_stays_static_with_a_warning() -> None:
    tables = {4: torch.ones(4), 3: torch.zeros(3)}

    def looked_up(x: Tensor) -> Tensor:
        return x + tables[int(x.shape[1])]

    x = torch.rand(2, 4)
    with pytest.warns(UserWarning, match=r"only for:\n  m == 4\n    at: .*tables\[int"):
        program = fxonnx.export(Function(looked_up).eval(), (x,), dynamic_shapes=({0: "n", 1: "m"},))
    torch.testing.assert_close(program(torch.cat([x, x]))[0], torch.cat([x, x]) + 1)


def test_builtins_are_restored_and_other_threads_see_numbers() -> None:
    types: set[type] = set()
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            types.update((type(int(torch.ones(3).shape[0])), type(len(torch.ones(3)))))

    thread = threading.Thread(target=count)
    thread.start()
    try:
        fxonnx.export(CASES["int of a size"]().eval(), (torch.rand(5, 4),), dynamic_shapes=({0: "n"},))
    finally:
        stop.set()
        thread.join()
    assert types == {int}
    assert not {"int", "len"} & set(globals())
