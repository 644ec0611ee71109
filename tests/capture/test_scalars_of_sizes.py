"""Tensors of one element that hold expressions of sizes: branches on them are constraints, and they can be sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxonnx


class Padding(nn.Module):
    """A function of a module with the geometry of a convolution in buffers, as audio codecs have it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("kernel", torch.tensor(7))
        self.register_buffer("stride", torch.tensor(4))
        self.register_buffer("padding", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)  # type: ignore[no-any-return]


def _extra_padding(self: Any, x: Tensor) -> Tensor:
    length = x.shape[-1]
    frames = torch.ceil((length - self.kernel + self.padding) / self.stride + 1).to(torch.int64) - 1
    extra = frames * self.stride + self.kernel - self.padding - length
    return nn.functional.pad(x, (0, extra.item())) if extra >= 0 else x


def _half(self: Any, x: Tensor) -> Tensor:
    half = torch.tensor(x.shape[-1]) // 2
    return x[:, :half] if half > 2 else x


def _rounded(self: Any, x: Tensor) -> Tensor:
    parts = torch.div(torch.tensor(x.shape[-1]), 3, rounding_mode="floor")
    parts = torch.maximum(parts, torch.tensor(1))
    return x[:, : parts.item()] if parts != 4 else x + 1


def _fraction(self: Any, x: Tensor) -> Tensor:
    share = torch.tensor(x.shape[-1]) / 4
    return x[:, : torch.floor(share).to(torch.int64).item()] if share >= 1.0 else x * 2


def _negative(self: Any, x: Tensor) -> Tensor:
    below = -torch.tensor(x.shape[-1]) * 2 + 9
    return x + 1 if below.clone() < 0 else x - 1


ROWS = {
    "extra padding": (_extra_padding, {13, 8, 6, 4, 16, 29}),
    "half": (_half, {13, 6, 8, 16, 29}),
    "rounded": (_rounded, {2, 4, 6, 8, 11, 16, 29}),
    "fraction": (_fraction, {13, 4, 6, 8, 16, 29}),
    "negative": (_negative, {13, 6, 8, 16, 29}),
}


@pytest.mark.parametrize(("function", "valid"), ROWS.values(), ids=ROWS)
def test_results_are_right_or_refused(function: Any, valid: set[int]) -> None:
    model = Padding(function).eval()
    size = 13 if 13 in valid else 11
    program = fxonnx.export(model, (torch.rand(2, size),), dynamic_shapes={"x": {1: "n"}}, verify=True)
    for size in (1, 2, 3, 4, 6, 8, 11, 12, 13, 16, 29):
        x = torch.rand(2, size)
        try:
            (result,) = program(x)
        except fxonnx.ArgumentError:
            assert size not in valid
        else:
            torch.testing.assert_close(result, model(x))


def test_a_branch_is_a_constraint() -> None:
    with pytest.warns(UserWarning, match=r"(?s)n >= 6.*x\[:, :half\] if half > 2"):
        program = fxonnx.export(Padding(_half).eval(), (torch.rand(2, 13),), dynamic_shapes={"x": {1: "n"}})
    with pytest.raises(fxonnx.ArgumentError, match=r"the model was exported for n >= 6, got n = 5"):
        program(torch.rand(2, 5))


def test_written_scalars_are_unknown() -> None:
    def written(self: Any, x: Tensor) -> Tensor:
        length = torch.tensor(x.shape[-1])
        length[()] = x.sum().to(torch.int64)
        return x + 1 if length > 2 else x

    model = Padding(written).eval()
    program = fxonnx.export(model, (torch.rand(2, 13),), dynamic_shapes={"x": {1: "n"}})
    for x in (torch.ones(2, 13), torch.zeros(2, 13), torch.ones(2, 1)):
        torch.testing.assert_close(program(x)[0], model(x))


@pytest.mark.parametrize("digits", [1, 3, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_to_digits_is_exact(dtype: torch.dtype, digits: int) -> None:
    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0 + round(x.sum().item(), digits)

    generator = torch.Generator().manual_seed(0)
    integers = torch.randint(-(10**4), 10**4, (60,), generator=generator, dtype=dtype)
    halves = (integers[:30] + 0.5) / 10**digits
    numbers = torch.cat([halves, halves.nextafter(halves * 2), integers / 1000, torch.tensor([0, 2.675, 5e15, -1e30])])
    model = Rounded()
    program = fxonnx.export(model, (torch.ones(1, dtype=dtype),))
    for number in numbers.to(dtype):
        assert torch.equal(program(number[None])[0], model(number[None])), number.item()


def _equal_to_zero(flag: Any, x: Tensor) -> Any:
    return flag == 0


def _not_true(flag: Any, x: Tensor) -> Any:
    return flag != True  # noqa: E712


RELATIONS: dict[str, Any] = {
    "== 0": _equal_to_zero,
    "!= True": _not_true,
    "== 2": lambda flag, x: flag == 2,
    "== 1.0": lambda flag, x: flag == 1.0,
    "0 ==": lambda flag, x: 0 == flag,  # noqa: SIM300
    "< 1": lambda flag, x: flag < 1,
    ">= 0.5": lambda flag, x: flag >= 0.5,
    "!= flag": lambda flag, x: flag != (x.max() > 1).item(),
    "<= flag": lambda flag, x: flag <= (x.max() > 1).item(),
}


class Flag(nn.Module):
    """Branches on a relation of the truth value of a tensor."""

    def __init__(self, relation: Any) -> None:
        super().__init__()
        self.relation = relation

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.relation((x.sum() > 0).item(), x) else x + 1


@pytest.mark.parametrize("relation", RELATIONS.values(), ids=RELATIONS)
def test_relations_of_truth_values(relation: Any) -> None:
    model = Flag(relation)
    program = fxonnx.export(model, (torch.tensor([1.0, 2.0]),))
    for values in ([1.0, 2.0], [0.1, 0.2], [-3.0, 2.0], [-1.0, 0.5]):
        x = torch.tensor(values)
        torch.testing.assert_close(program(x)[0], model(x))
