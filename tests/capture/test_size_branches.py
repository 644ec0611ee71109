"""Both branches of a condition on sizes: shapes that are equal after it, and guards of a branch only."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxonnx

from ..functions import Function
from .test_edges import SIZES, statuses


def pads_before_and_cuts(x: torch.Tensor) -> torch.Tensor:
    """The cut has the original size in both branches; the size after the condition is a product of three terms else."""
    h, w = x.shape[-2:]
    below, right = (h - 1) // 4 * 4 + 4, (w - 1) // 4 * 4 + 4
    x = F.pad(x, (0, right - w, 0, below - h)).cumsum(-1)
    if h != below or w != right:
        x = x[..., :h, :w]
    return x * 2


def works_in_windows(x: torch.Tensor) -> torch.Tensor:
    """Layouts of copies in branches, which depend on the padding."""
    h, w = x.shape[-2:]
    below, right = (8 - h % 8) % 8, (8 - w % 8) % 8
    x = x.permute(0, 2, 3, 1)
    if below > 0 or right > 0:
        x = F.pad(x, (0, 0, 0, right, 0, below))
    rows, columns = h + below, w + right
    x = x.reshape(-1, rows // 8, 8, columns // 8, 8, 3).permute(0, 1, 3, 2, 4, 5).contiguous().cumsum(3)
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, rows, columns, 3)
    if below > 0 or right > 0:
        x = x[:, :h, :w].contiguous()
    return x.view(-1, h * w, 3)


def centers_after_pooling(x: torch.Tensor) -> torch.Tensor:
    """The condition and the number of steps are of a size that depends on both, and on no multiple of 1/2."""
    x = F.avg_pool2d(x, max(1, round(min(x.shape[-2:]) / 16)))
    n = x.shape[-1]
    steps = torch.arange(-(n - 1) / 2, n / 2) / (n - 1) if n % 2 else torch.arange(-n / 2, n / 2) / n
    return x * steps


def fills_where_sizes_differ(x: torch.Tensor) -> torch.Tensor:
    """The longer side is the size in both branches."""
    h, w = x.shape[-2:]
    if h != w:
        x = F.pad(x, (0, max(h, w) - w, 0, max(h, w) - h))
    return x @ x


def reflects_a_wide_one(x: torch.Tensor) -> torch.Tensor:
    """A branch that has a limit of its own."""
    return F.pad(x, (17, 17, 0, 0), "reflect") if x.shape[-1] > 16 else x + 1


def pads_by_a_tensor_of_sizes(x: torch.Tensor) -> torch.Tensor:
    """A tensor of sizes, beside a padding to a multiple."""
    sizes, rest = torch.tensor(x.shape), int(x.shape[-1]) % 8
    if rest:
        x = torch.cat([x, torch.zeros([*x.shape[:-1], 8 - rest])], -1)
    return x.unflatten(-1, (-1, 8)).sum(-1) * sizes[-1] + torch.as_tensor(x.shape)[-2]


def cuts_from_the_end(x: torch.Tensor) -> torch.Tensor:
    """The branch knows that the number is positive."""
    pad = (8 - x.shape[-1] % 8) % 8
    if pad > 0:
        x = F.pad(x, (0, pad))
    x = x.unflatten(-1, (-1, 8)).cumsum(-1).flatten(-2)
    if pad > 0:
        x = x[..., :-pad]
    return x


def padded(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    rest = x.shape[-1] - x.shape[-1] // 4 * 4
    if rest == 0:
        return x, 0
    return torch.cat([x, torch.zeros(*x.shape[:-1], 4 - rest)], -1), 4 - rest


def cuts_what_a_function_pads(x: torch.Tensor) -> torch.Tensor:
    x, pad = padded(x)
    x = x.unflatten(-1, (-1, 4)).cumsum(-1).flatten(-2)
    return x[..., :-pad] if pad else x


def pads_by_a_chosen_number(x: torch.Tensor) -> torch.Tensor:
    """A condition whose branches compute numbers only."""
    is_cut = x.shape[-1] % 8 != 0
    pad = 8 - x.shape[-1] % 8 if is_cut else 0
    if is_cut:
        x = F.pad(x, (0, pad))
    x = x.unflatten(-1, (-1, 8)).cumsum(-1).flatten(-2)
    return x[..., :-pad] if pad else x


def adds_one_or_another_size(x: torch.Tensor) -> torch.Tensor:
    """``or`` and ``and`` that choose one of two sizes: the file has both."""
    rest = x.shape[-1] % 8 or x.shape[-2]
    return x * rest + (x.shape[-2] % 2 and x.shape[-1])


def chooses_by_a_fraction(x: torch.Tensor) -> torch.Tensor:
    """The numbers that decide are also values in the branches."""
    near, root = int(x.shape[-1] * 0.2), int(math.sqrt(x.shape[-2]))
    x = x * near if near > 3 else x - near
    return x / root if root > 3 else x + root


@pytest.mark.parametrize("example", [(16, 24), (13, 21), (16, 21)], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        *(pads_before_and_cuts, works_in_windows, fills_where_sizes_differ, centers_after_pooling),
        *(pads_by_a_tensor_of_sizes, cuts_from_the_end, cuts_what_a_function_pads, pads_by_a_chosen_number),
        *(adds_one_or_another_size, chooses_by_a_fraction),
    ],
)
def test_sizes_that_are_equal_where_a_branch_runs(
    function: Callable[..., Any], example: tuple[int, int], tmp_path: Path
) -> None:
    program, letters = statuses(function, example, tmp_path / "m.onnx")
    assert letters == "r" * len(SIZES)
    assert not [one for one in program.record.constraints if one.narrows]


class Windows(nn.Module):
    """Its results require gradients, for which torch runs the graphs of branches once more."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return works_in_windows(x * self.weight)


def test_guards_of_a_branch_are_limits_there_only(tmp_path: Path) -> None:
    assert statuses(Windows(), (16, 24), tmp_path / "m.onnx")[1] == "r" * len(SIZES)
    program, letters = statuses(reflects_a_wide_one, (16, 24), tmp_path / "m.onnx")
    assert letters == "rrrrfrrr"
    assert [one.text for one in program.record.constraints if one.narrows] == ["w != 17"]


def test_a_copy_in_windows_has_no_limit(tmp_path: Path) -> None:
    """Only memory layouts differ if there is one window."""

    def windows(x: torch.Tensor) -> torch.Tensor:
        x = F.pad(x, (0, -x.shape[-1] % 8))
        return x.reshape(*x.shape[:3], -1, 8).permute(0, 1, 3, 2, 4).contiguous().flatten(1)

    program, letters = statuses(windows, (16, 24), tmp_path / "m.onnx")
    assert letters == "r" * len(SIZES)
    assert not [one for one in program.record.constraints if one.narrows]


def asks_for_more_where_sizes_are_equal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == y.shape[0]:
        return (x * y).sum(0) if x.shape[0] < 4 else (x - y).sum(0)
    return x.sum(0) * y.sum(0)


def test_conditions_among_equal_sizes_have_both_branches(tmp_path: Path) -> None:
    module, path = Function(asks_for_more_where_sizes_are_equal), tmp_path / "m.onnx"
    example = (torch.rand(4, 3), torch.rand(6, 3))
    program = fxonnx.export(module, example, path, dynamic_shapes=({0: "n"}, {0: "m"}))
    assert not [one for one in program.record.constraints if one.narrows]
    session = onnxruntime.InferenceSession(path)
    for n, m in ((4, 6), (1, 1), (2, 2), (3, 3), (4, 4), (7, 7), (3, 5), (9, 1)):
        for x in (torch.randn(n, 3), torch.rand(n, 3)):
            for y in (torch.randn(m, 3), x if n == m else torch.rand(m, 3)):
                (found,) = session.run(None, {"x": x.numpy(), "y": y.numpy()})
                torch.testing.assert_close(torch.from_numpy(found), module(x, y), atol=1e-4, rtol=1e-4)


class Box:
    value: Any


def put(box: Box, value: torch.Tensor) -> torch.Tensor:
    box.value = value
    return value


class OfModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.box = Box()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return put_by_data(self.box, x)


def put_by_data(box: Box, x: torch.Tensor) -> torch.Tensor:
    return put(box, x * 2) if x.sum() > 0 else x


BOX = Box()


@pytest.mark.parametrize("model", [OfModel(), Function(lambda x: put_by_data(BOX, x))], ids=["module", "variable"])
def test_what_a_branch_keeps_beyond_the_call_is_refused(model: nn.Module) -> None:
    with pytest.raises(fxonnx.CaptureError, match="it changes the attribute 'value' of Box in a call"):
        fxonnx.export(model, (torch.rand(4, 3),), dynamic_shapes=({0: "n"},))


def counts_in_an_object(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    box = Box()
    box.value = x * 0
    z = put(box, x * 2) if x.shape[0] == y.shape[0] else x - 1
    return z + box.value


@dataclass
class Root:
    a: torch.Tensor

    def dense(self) -> torch.Tensor:
        return self.a @ self.a.T


@dataclass
class Product(Root):
    b: torch.Tensor

    def dense(self) -> torch.Tensor:
        return self.a @ self.b.T * 2


class Lazy:
    """A product that is computed when it is asked for, and kept."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y
        self.kept: dict[str, Root] = {}

    def operator(self) -> Root:
        if "operator" not in self.kept:
            self.kept["operator"] = self.chosen()
        return self.kept["operator"]

    def chosen(self) -> Root:
        if self.x.size() == self.y.size() and torch.equal(self.x, self.y):
            return Root(self.x)
        return Product(self.x, self.y)


def computes_when_asked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    lazy = Lazy(x, y)
    return lazy.operator().dense() + lazy.operator().a.sum()


def asks_what_a_branch_keeps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    box = Box()
    z = put(box, x * 2) if y.sum() > 0 else x
    return z + getattr(box, "value", x * 0)


def asks_after_a_branch_that_none_may_take(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    box = Box()
    z = put(box, x * 5) if x.sum() > 1e7 else y.sum() + x
    return z + getattr(box, "value", x * 0)


@pytest.mark.parametrize(
    "function",
    [computes_when_asked, asks_what_a_branch_keeps, asks_after_a_branch_that_none_may_take, counts_in_an_object],
)
def test_branches_that_change_an_object_of_the_call_go_on_to_its_end(
    function: Callable[..., Any], tmp_path: Path
) -> None:
    module, path = Function(function), tmp_path / "m.onnx"
    example = torch.rand(4, 3), torch.rand(6, 3)
    program = fxonnx.export(module, example, path, dynamic_shapes=({0: "n"}, {0: "m"}))
    assert not [one for one in program.record.constraints if one.narrows]
    session = onnxruntime.InferenceSession(path)
    for n, m in ((4, 6), (1, 1), (3, 3), (7, 7), (9, 2)):
        for x in (torch.randn(n, 3), torch.rand(n, 3) * 1e8):
            for y in (torch.rand(m, 3), -torch.rand(m, 3), x if n == m else torch.ones(m, 3)):
                (found,) = session.run(None, {"x": x.numpy(), "y": y.numpy()})
                torch.testing.assert_close(torch.from_numpy(found), module(x, y), atol=1e-4, rtol=1e-4)


def makes_contiguous(x: torch.Tensor) -> torch.Tensor:
    """As the upsampling of Diffusers."""
    if x.shape[0] >= 64:
        x = x.contiguous()
    if x.numel() * 2 > pow(2, 31):
        x = x.contiguous()
    return x.transpose(0, 1) * 2


def _makes_contiguous_and_asks(x: torch.Tensor) -> torch.Tensor:
    """torch knows the first condition when it asks the second one."""
    if x.shape[0] >= 64:
        x = x.contiguous()
    return x * 2 if x.shape[0] >= 100 else x * 3


def _writes_to_what_may_be_a_copy(x: torch.Tensor) -> torch.Tensor:
    y = x.transpose(0, 1)
    if y.shape[0] >= 64:
        y = y.contiguous()
    y.add_(1)
    return x * 2


def _makes_contiguous_and_asks_for_strides(x: torch.Tensor) -> torch.Tensor:
    x = x.transpose(0, 1)
    if x.shape[0] >= 64:
        x = x.contiguous()
    return x * x.stride(0)


def _makes_contiguous_and_asks_for_identity(x: torch.Tensor) -> torch.Tensor:
    y = z = x[:, ::2].transpose(0, 1)
    if y.shape[1] >= 64:
        y = y.contiguous()
    return y + 1 if y is z else y * 3


def _makes_contiguous_or_computes(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] >= 64:  # noqa: SIM108 - the statement
        x = x.contiguous()
    else:
        x = x * 2
    return x + 1


def _makes_contiguous_beside_a_write(x: torch.Tensor) -> torch.Tensor:
    seen = torch.zeros(1)
    if x.shape[0] >= 64 and seen.add_(1) is not None:
        x = x.contiguous()
    return x + seen


@pytest.mark.parametrize(
    ("function", "letters"),
    [
        (makes_contiguous, "rrrrr"),
        (_makes_contiguous_and_asks, "rrrrf"),
        (_writes_to_what_may_be_a_copy, "rfrrf"),
        (_makes_contiguous_and_asks_for_strides, "rfrrf"),
        (_makes_contiguous_and_asks_for_identity, "rrfff"),
        (_makes_contiguous_or_computes, "rrfff"),
        (_makes_contiguous_beside_a_write, "rrfff"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_branch_that_only_makes_a_tensor_contiguous_is_no_limit(
    function: Callable[..., torch.Tensor], letters: str, tmp_path: Path
) -> None:
    model, path = Function(function).eval(), tmp_path / "m.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = fxonnx.export(model, (torch.rand(5, 70),), path, dynamic_shapes={"x": {0: "n", 1: "m"}})
    if function is makes_contiguous:
        assert not program.record.constraints
        assert len(program.record.capture.attempts) == 1
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    session, found = onnxruntime.InferenceSession(path, quiet), ""
    for sizes in ((3, 70), (63, 63), (64, 70), (70, 64), (100, 9)):
        x = torch.rand(sizes)
        try:
            result = session.run(None, {"x": x.numpy()})[0]
        except Exception:  # noqa: BLE001 - of ONNX Runtime
            found += "f"
            continue
        found += "r" if torch.allclose(torch.from_numpy(result), model(x.clone()), atol=1e-5) else "w"
    assert found == letters


def upsamples(x: torch.Tensor) -> torch.Tensor:
    """As the UNets of Diffusers, whose quotients of sizes only select a memory layout."""
    half, size = F.avg_pool2d(x, 2, ceil_mode=True), None
    for dim in x.shape[-2:]:
        if dim % 2 != 0:
            size = x.shape[-2:]
            break
    scale = 2 if size is None else max([one / other for one, other in zip(size, half.shape[-2:], strict=True)])
    if half.numel() * scale > pow(2, 31):
        half = half.contiguous()
    if size is None:
        return x + F.interpolate(half, scale_factor=2.0, mode="nearest")
    return x + F.interpolate(half, size=size, mode="nearest")


@pytest.mark.parametrize("example", [(16, 24), (13, 24)])
def test_upsampling_to_the_size_of_a_skip_has_no_limit(example: tuple[int, int], tmp_path: Path) -> None:
    program, letters = statuses(upsamples, example, tmp_path / "m.onnx")
    assert letters == "r" * len(SIZES)
    assert not [one for one in program.record.constraints if one.narrows]


def _scales_by_quotients(x: torch.Tensor) -> torch.Tensor:
    h, w = x.shape[-2:]
    return x * max([h / w, w / h, 0.25]) - min([h / 8, w / 4]) * min([h / w])


def test_the_largest_of_quotients_of_sizes(tmp_path: Path) -> None:
    program, letters = statuses(_scales_by_quotients, (16, 24), tmp_path / "m.onnx")
    assert letters == "r" * len(SIZES)
    assert len(program.record.capture.attempts) == 1
