"""Models of all kinds that make tensors where their inputs are, for exports from a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """A model with two examples of its input.

    Attributes:
        make: Makes the model.
        example: The input of the export.
        second: An input of other sizes.
        axes: The dynamic axes.
        needs_values: Whether forward makes a tensor on the device from Python numbers, which has values there.
    """

    make: Callable[[], nn.Module]
    example: Tensor
    second: Tensor
    axes: Mapping[int, str] = field(default_factory=lambda: {0: "batch"})
    needs_values: bool = False


class _Function(nn.Module):
    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.linspace(-1, 1, 5))
        self.register_buffer("table", torch.arange(5.0))
        self.plain = torch.full((5,), 2.0)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def arange(m: Any, x: Tensor) -> Any:
    return x + torch.arange(x.shape[1], device=x.device) * m.weight


def arange_of_a_dynamic_size(m: Any, x: Tensor) -> Any:
    return x * torch.arange(x.shape[0], device=x.device)[:, None]


def linspace_and_zeros(m: Any, x: Tensor) -> Any:
    return x + torch.linspace(0, 1, 5, device=x.device) + torch.zeros(x.shape[0], 5, device=x.device)


def meshgrid(m: Any, x: Tensor) -> Any:
    numbers = torch.arange(5, device=x.device)
    return x + torch.stack(torch.meshgrid(numbers, numbers, indexing="ij")).sum(0)[0]


def literal(m: Any, x: Tensor) -> Any:
    return x * torch.tensor([1.0, 2, 3, 4, 5], device=x.device)


def new_tensors(m: Any, x: Tensor) -> Any:
    return x + x.new_tensor([1.0, 2, 3, 4, 5]) + x.new_zeros(5) + x.new_full((5,), 2)


def literal_without_dims(m: Any, x: Tensor) -> Any:
    return x * torch.tensor(2.0)


def attribute_moved(m: Any, x: Tensor) -> Any:
    return x * m.plain.to(x.device)


def through_the_cpu(m: Any, x: Tensor) -> Any:
    return (x.cpu() * 2).to(x.device) + m.weight


def branch_on_devices(m: Any, x: Tensor) -> Any:
    return x * 2 if x.device == m.weight.device else x * 3


def masked_write(m: Any, x: Tensor) -> Any:
    y = x.clone()
    y[y > 0] = -1.0
    y[:, 1:3] = 0.5
    return y


def written_places(m: Any, x: Tensor) -> Any:
    y = x.clone()
    y[:, [0, 2]] = 7.0
    return y


def statistics(m: Any, x: Tensor) -> Any:
    return x.std(0), x.norm(dim=1), x.cumsum(0), x.sort(-1)[0], x.topk(3)[0]


def attention(m: Any, x: Tensor) -> Any:
    heads = x.view(x.shape[0], 1, 1, 5).expand(-1, 1, 4, 5)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def branch_on_a_value(m: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        return x * 2
    return x - m.weight


def conditions_joined(m: Any, x: Tensor) -> Any:
    if (x.sum() > 0 and x.max() < 5) or x.shape[0] > 7:
        return x + 1
    return x - 1


def early_return(m: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        return x * 2
    y = x + 1
    if y.max() > 3:
        return y
    return y * m.weight


def sum_over_rows(m: Any, x: Tensor) -> Any:
    total = torch.zeros(5, device=x.device)
    for index in range(x.shape[0]):
        total = total + x[index] * index
    return total


def rows_appended(m: Any, x: Tensor) -> Any:
    rows = []
    for index in range(x.shape[0]):
        rows.append(x[index] * 2 + torch.arange(5, device=x.device))  # noqa: PERF401 - the loop is the case
    return torch.stack(rows)


def rows_written(m: Any, x: Tensor) -> Any:
    y = torch.zeros_like(x)
    for index in range(x.shape[0]):
        y[index] = x[x.shape[0] - 1 - index] * index
    return y


def flag_set(m: Any, x: Tensor) -> Any:
    found = False
    for index in range(x.shape[0]):
        if x[index].sum() > 1:
            found = True
    return x * 2 if found else x * 3


def loop_left(m: Any, x: Tensor) -> Any:
    total = x[0] * 0
    for index in range(x.shape[0]):
        if total.sum() > 1:
            break
        total = total + x[index]
    return total


def best_row(m: Any, x: Tensor) -> Any:
    best = 0.0
    for index in range(x.shape[0]):
        value = x[index].sum()
        if value > best:
            best = value
    return x * best


def counted_loop(m: Any, x: Tensor) -> Any:
    count = 0
    while x.abs().max() < 10 and count < 5:
        x = x * 2
        count += 1
    return x + count


def recurrence(m: Any, x: Tensor) -> Any:
    state = torch.zeros(5, device=x.device)
    states = []
    for index in range(x.shape[0]):
        state = torch.tanh(x[index] + state)
        states.append(state)
    return torch.stack(states), state


_FUNCTIONS = (
    *(arange, arange_of_a_dynamic_size, linspace_and_zeros, meshgrid, literal, new_tensors, literal_without_dims),
    *(attribute_moved, through_the_cpu, branch_on_devices, masked_write, written_places, statistics, attention),
    *(branch_on_a_value, conditions_joined, early_return, sum_over_rows, rows_appended, rows_written),
    *(flag_set, loop_left, best_row, counted_loop, recurrence),
)
_WITH_VALUES = (literal, new_tensors, written_places)

_IMAGE: Mapping[int, str] = MappingProxyType({0: "batch", 2: "height", 3: "width"})
_SEQUENCE: Mapping[int, str] = MappingProxyType({0: "batch", 1: "time"})


class _Scripted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        count = 0
        while bool(x.abs().max() < 10) and count < 5:
            x = x * 2
            count += 1
        return x


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.attention(x, x, x)


def _cases() -> Iterator[tuple[str, Case]]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    for function in _FUNCTIONS:

        def make(function: Any = function) -> nn.Module:
            return _Function(function)

        yield function.__name__, Case(make, random(2, 5), random(4, 5), needs_values=function in _WITH_VALUES)
    images = random(2, 8, 16, 16), random(3, 8, 12, 20)
    layers: Mapping[str, Callable[[], nn.Module]] = {
        "convolution": lambda: nn.Sequential(nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        "transposed convolution": lambda: nn.ConvTranspose2d(8, 4, 3, 2),
        "norms of images": lambda: nn.Sequential(nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True)),
        "sizes of images": lambda: nn.Sequential(nn.Upsample(scale_factor=2, mode="bicubic"), nn.AdaptiveAvgPool2d(2)),
    }
    for name, layer in layers.items():
        yield name, Case(layer, *images, _IMAGE)
    sequences = random(2, 6, 16), random(4, 9, 16)
    layers = {
        "LSTM": lambda: nn.LSTM(16, 8, 2, batch_first=True, bidirectional=True),
        "GRU": lambda: nn.GRU(16, 8, batch_first=True),
        "multi-head attention": _Attention,
        "transformer": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2),
        "norms of sequences": lambda: nn.Sequential(nn.LayerNorm(16), nn.RMSNorm(16), nn.Linear(16, 4)),
    }
    for name, layer in layers.items():
        yield name, Case(layer, *sequences, _SEQUENCE)
    yield "script", Case(lambda: torch.jit.script(_Scripted()), random(2, 5), random(4, 5))


CASES: Mapping[str, Case] = MappingProxyType(dict(_cases()))
