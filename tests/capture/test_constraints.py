"""Constraints: the sizes for which a program is valid, and errors for all other sizes."""

from __future__ import annotations

import json
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import sympy
import torch
from torch import nn
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

import fxonnx
from fxonnx._capture.constraints.constraint_solver import Bounds, bounds_of, is_implied, normal_forms
from fxonnx._capture.constraints.guard_recorder import SourceLine
from fxonnx._capture.constraints.relation_forms import text_of, without_known_quotients
from fxonnx.errors import ArgumentError, CaptureError

from .captures import capture

R = torch.rand
d = Dim("d")


class Apply(nn.Module):
    """A model of one or two inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, y: Any = None) -> Any:
        return self.function(x) if y is None else self.function(x, y)


def model(function: Callable[..., Any]) -> nn.Module:
    return Apply(function).eval()


def branch(x: torch.Tensor) -> torch.Tensor:
    # No graph has both results: they have different numbers of axes.
    if x.shape[1] > 8:
        return x + 1
    return x.sum(1)


def sixteens(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, 4) * 2 if x.shape[0] % 16 == 0 else x.view(-1, 4)


def halved_thrice(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x.view(2, x.shape[0] // 2, 3).sum(0)
    return x


def either(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if (x.shape[0] > 3) | (x.shape[1] > 20) else x.sum(1)


def checked(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] <= 20)
    return x + 1


def asked_twice(x: torch.Tensor) -> torch.Tensor:
    pooled = nn.functional.max_pool2d(x, 3)
    return pooled + 1 if x.shape[2] >= 4 else pooled - 1


def after_torch(x: torch.Tensor) -> torch.Tensor:
    # Attention queries the memory layout of batches of size 1 before the model branches on the size.
    attended = nn.functional.scaled_dot_product_attention(x, x, x).transpose(0, 1).reshape(-1, 4)
    return attended + 1 if x.shape[0] == 1 else attended - 1


def table(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(12.0)[: x.shape[0]]


def written_copy(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    rows = x.view(*x.shape[:2], 2, 2).transpose(1, 2).reshape(x.shape[0] * 2, x.shape[1], 2)
    rows.zero_()
    return x


def batch_norm_of_transposed(x: torch.Tensor) -> torch.Tensor:
    # Contiguous in torch, whatever the layout of the input.
    normed = nn.functional.batch_norm(x.mT, torch.zeros(3), torch.ones(3))
    normed.flatten()[0] = 7
    return normed


def strides_are_data(x: torch.Tensor) -> torch.Tensor:
    rows = x.new_zeros(x.shape[0], (x[0] > -99).sum().item())
    columns = rows[:, :2].transpose(0, 1)
    columns.flatten().add_(1)
    return columns


def last_rows_times_rows(x: torch.Tensor) -> torch.Tensor:
    product = x[-(x.shape[1] - 1) :] * x
    product[:1] = 0
    return product


def written_source(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    columns = x.transpose(0, 1).contiguous()
    x += 1
    return columns


def written_crop(x: Any) -> Any:
    """The rows without padding are a view of the padded ones if there is none."""
    rows = nn.functional.pad(x, (0, (4 - x.shape[1] % 4) % 4))
    rows[:, : x.shape[1]].reshape(-1).add_(1)
    return rows * 2


def cropped_before_a_write(x: Any) -> Any:
    rows = nn.functional.pad(x, (0, (4 - x.shape[1] % 4) % 4))
    cropped = rows[:, : x.shape[1]].flatten()
    rows.add_(1)
    return cropped * 2


def written_rest(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    x[1:].transpose(0, 1).flatten().zero_()
    return x


def written_before(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    x += 1
    return x.transpose(0, 1).contiguous() - x.sum()


def other_sizes_are_impossible(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, 1] = 1
    return x.reshape(x.shape[1] + 1, -1)


def source_is_not_read(x: torch.Tensor) -> torch.Tensor:
    columns = (x * 2).transpose(0, 1).reshape(-1)
    columns += 1
    return columns


def attend(x: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """Attention to two elements more than there are queries."""
    key = nn.functional.pad(x, (0, 0, 0, 2))
    return scaled_dot_product_attention(x, key, key, is_causal=is_causal)


# Function, examples, dynamic_shapes, constraints, inputs within them, inputs outside.
NARROW = [
    pytest.param(branch, (R(2, 12),), ({0: "b", 1: "s"},), ["s >= 9"], (R(1, 9),), (R(2, 8),), id="branch"),
    pytest.param(branch, (R(2, 5),), ({1: "s"},), ["s <= 8"], (R(2, 8),), (R(2, 9),), id="other-branch"),
    pytest.param(branch, (R(2, 12),), ({1: Dim("s", max=40)},), ["s >= 9"], (R(2, 40),), (R(2, 8),), id="dim"),
    pytest.param(branch, (R(2, 12),), ({1: 2 * d},), ["d >= 5"], (R(2, 10),), (R(2, 8),), id="derived-dim"),
    pytest.param(branch, (R(2, 12),), ({1: Dim.DYNAMIC},), ["x.shape[1] >= 9"], (R(2, 9),), (R(2, 8),), id="hint"),
    pytest.param(sixteens, (R(32, 3),), ({0: "n"},), ["n % 16 == 0"], (R(16, 3),), (R(8, 3),), id="multiple"),
    pytest.param(halved_thrice, (R(16, 3),), ({0: "n"},), ["n % 8 == 0"], (R(8, 3),), (R(12, 3),), id="halved"),
    pytest.param(either, (R(5, 3),), ({0: "n", 1: "m"},), ["m > 20 or n > 3"], (R(2, 21),), (R(1, 1),), id="or"),
    pytest.param(checked, (R(5),), ({0: "n"},), ["n <= 20"], (R(20),), (R(21),), id="check"),
    pytest.param(table, (R(5),), ({0: "n"},), ["n <= 12"], (R(12),), (R(13),), id="table"),
    pytest.param(asked_twice, (R(1, 1, 6, 6),), ({2: "h"},), ["h >= 4"], (R(1, 1, 4, 6),), (R(1, 1, 3, 6),), id="bounds"),
    pytest.param(after_torch, (R(3, 2, 5, 4),), ({0: "n"},), ["n != 1"], (R(2, 2, 5, 4),), (R(1, 2, 5, 4),), id="layout"),
    pytest.param(lambda x: x.squeeze(0).sum(0), (R(3, 2),), ({0: "n"},), ["n != 1"], (R(2, 2),), (R(1, 2),), id="squeeze"),
    pytest.param(written_copy, (R(3, 7, 4),), ({0: "n", 1: "s"},), ["s != 1", "n != 1"], (R(2, 2, 4),), (R(3, 1, 4),), id="written-copy"),
    pytest.param(strides_are_data, (R(3, 4),), ({0: "n"},), ["n != 1"], (R(2, 4),), (R(1, 4),), id="strides-are-data"),
    pytest.param(last_rows_times_rows, (R(2, 5),), ({1: "s"},), ["s >= 3"], (R(2, 3),), (R(2, 2),), id="slice-length"),
    pytest.param(written_source, (R(3, 4),), ({0: "n"},), ["n != 1"], (R(2, 4),), (R(1, 4),), id="written-source"),
    pytest.param(written_source, (R(1, 1, 4),), ({0: "n", 1: "s"},), ["n == 1 or s == 1"], (R(1, 3, 4),), (R(2, 3, 4),), id="written-source-of-one-element"),
    pytest.param(lambda x: attend(x, x.shape[1] > 1), (R(2, 3, 4),), ({1: "t"},), ["t >= 2"], (R(2, 2, 4),), (R(2, 1, 4),), id="causal-with-another-key"),
    pytest.param(lambda x: attend(x, x.shape[1] > 4), (R(2, 3, 4),), ({1: "t"},), ["t <= 4"], (R(2, 1, 4),), (R(2, 5, 4),), id="causal"),
    pytest.param(written_rest, (R(4, 3),), ({0: "n"},), ["n != 2"], (R(3, 3),), (R(2, 3),), id="written-rest"),
    pytest.param(other_sizes_are_impossible, (R(4, 3, 2),), ({1: "n"},), ["n >= 2", "(8*n) % (n + 1) == 0"], (R(4, 7, 2),), (R(4, 4, 2),), id="impossible-copy"),
    pytest.param(lambda x, y: x + y, (R(4), R(4)), ({0: "a"}, {0: "b"}), ["a == b"], (R(5), R(5)), (R(4), R(5)), id="equal"),
    pytest.param(lambda x, y: x + y[1:], (R(4), R(5)), ({0: "a"}, {0: "b"}), ["a == b - 1"], (R(5), R(6)), (R(4), R(4)), id="next"),
    pytest.param(lambda x, y: x + y[1:], (R(4), R(5)), ({0: d}, {0: Dim("e")}), ["d == e - 1"], (R(5), R(6)), (R(4), R(4)), id="dims"),
    pytest.param(lambda x, y: x + 1 if y > 2 else x, (R(4), 5), ({0: "n"}, "k"), ["k >= 3"], (R(5), 3), (R(4), 2), id="int"),
    pytest.param(lambda x: x + 1 if x.shape[0] >= 1 else x, (R(4),), ({0: "n"},), ["n >= 1"], (R(1),), (R(0),), id="empty"),
    pytest.param(lambda x, y: torch.cat([x, y]) if y.numel() else x, (R(4), R(2, 2)[0]), ({}, {0: "n"}), ["n >= 1"], (R(4), R(1)), (R(4), R(0)), id="numel"),
    pytest.param(written_crop, (R(3, 8),), ({1: "n"},), ["n % 4 == 0"], (R(3, 12),), (R(3, 7),), id="written-crop"),
    pytest.param(cropped_before_a_write, (R(3, 8),), ({1: "n"},), ["n % 4 == 0"], (R(3, 4),), (R(3, 9),), id="written-rows"),
    pytest.param(lambda x: nn.functional.pixel_unshuffle(x.transpose(2, 3), 2), (R(1, 3, 4, 6),), ({0: "b", 2: "h"},), ["h % 2 == 0"], (R(3, 3, 8, 6),), (R(1, 3, 5, 6),), id="pixel-unshuffle"),
    pytest.param(lambda x: x.reshape(x.shape[0] // 4, 4), (R(8),), ({0: "n"},), ["n % 4 == 0"], (R(12),), (R(9),), id="floor"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "examples", "shapes", "texts", "within", "outside"), NARROW)
def test_constraints_narrow_the_requested_sizes(
    function: Any, examples: Any, shapes: Any, texts: list[str], within: Any, outside: Any
) -> None:
    with pytest.warns(
        UserWarning, match=r"the model cannot be exported for all requested sizes, only for:\n"
    ) as caught:
        program = fxonnx.export(model(function), examples, dynamic_shapes=shapes)
    (warning,) = caught
    assert warning.filename == __file__
    lines = str(warning.message).splitlines()[1:]
    places = [line for line in lines if line.startswith("    ")]
    assert [line.strip() for line in lines if line not in places] == texts
    assert places
    assert all(re.match(r"    at: .*test_constraints\.py:\d+ in \w+|    at: .*<lambda>: ", line) for line in places)
    narrow = [constraint for constraint in program.record.constraints if constraint.narrows]
    assert [constraint.text for constraint in narrow] == texts
    assert all(constraint.line for constraint in narrow)
    for inputs in (examples, within):
        torch.testing.assert_close(program(*inputs)[0], function(*inputs))
    with pytest.raises(
        ArgumentError,
        match=r"^error\[FX001\]: [xy, ]+: the model was exported for .*, got \S+ = \d+.*\n  at: .*\nhint: ",
    ):
        program(*outside)
    with pytest.raises(ArgumentError, match="the model was exported for"):
        fxonnx.verify(program, outside)
    with pytest.raises(CaptureError, match=re.escape(str(warning.message)) + r"\nhint: pass strict_shapes=False"):
        fxonnx.export(model(function), examples, dynamic_shapes=shapes, strict_shapes=True)


def convolved(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.conv2d(x, torch.ones(2, 1, 1, 1)).flatten(1).sum(1)


def ceiled(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.max_pool2d(x, 2, 2, ceil_mode=True) * 2


encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)


def windows(x: torch.Tensor) -> torch.Tensor:
    pooled = nn.functional.avg_pool2d(x, (2, 3), (4, 2), (0, 1), ceil_mode=True)
    return pooled.flatten(2) + pooled.shape[2] * 10 + pooled.shape[3]


def split_by_the_size(x: torch.Tensor) -> torch.Tensor:
    one, two, three = torch.cat([x, x * x, x + 1]).split(x.shape[0])
    return one * two + three


# Function, examples, dynamic_shapes, other inputs: no constraint is needed.
WIDE = [
    pytest.param(lambda x: x + 1, (R(4, 3),), ({0: "n"},), (R(1, 3),), id="nothing"),
    pytest.param(branch, (R(2, 12),), ({1: Dim("s", min=9)},), (R(2, 9),), id="asked-for"),
    pytest.param(branch, (R(2, 12),), ({1: Dim("s", min=20, max=30)},) and ({1: Dim("s", min=10, max=30)},), (R(2, 30),), id="within-asked"),
    pytest.param(convolved, (R(1, 1, 5, 5),), ({0: "n", 2: "h", 3: "w"},), (R(3, 1, 1, 1),), id="memory-format"),
    pytest.param(convolved, (R(2, 1, 1, 1),), ({0: "n", 2: "h", 3: "w"},), (R(1, 1, 4, 3),), id="example-of-1"),
    pytest.param(ceiled, (R(1, 1, 5, 7),), ({2: "h", 3: "w"},), (R(1, 1, 2, 3),), id="pool"),
    pytest.param(windows, (R(1, 1, 8, 9),), ({2: "h", 3: "w"},), (R(1, 1, 12, 11),), id="pool-with-a-window-taken-back"),
    pytest.param(lambda x: encoder(x), (R(2, 5, 8),), ({0: "n", 1: "t"},), (R(1, 1, 8),), id="strides"),
    pytest.param(lambda x: encoder(x), (R(1, 5, 8),), ({0: "n", 1: "t"},), (R(3, 4, 8),), id="strides-at-1"),
    pytest.param(lambda x: encoder(x), (R(5, 5, 8),), ({0: "n", 1: "t"},), (R(3, 4, 8),), id="strides-that-agree"),
    pytest.param(lambda x: scaled_dot_product_attention(x, x, x, is_causal=x.shape[1] > 1), (R(2, 1, 4),), ({1: "t"},), (R(2, 3, 4),), id="causal-of-one"),
    pytest.param(written_before, (R(3, 4),), ({0: "n"},), (R(1, 4),), id="written-before-the-copy"),
    pytest.param(source_is_not_read, (R(3, 4),), ({0: "n"},), (R(1, 4),), id="written-copy-of-a-temporary"),
    pytest.param(source_is_not_read, (R(1, 4),), ({0: "n"},), (R(3, 4),), id="written-view-of-a-temporary"),
    pytest.param(batch_norm_of_transposed, (R(1, 2, 3),), ({0: "n", 1: "s"},), (R(3, 4, 3),), id="batch-norm"),
    pytest.param(split_by_the_size, (R(3, 4),), ({0: "n"},), (R(1, 4),), id="split"),
    pytest.param(lambda x, y: x + y, (R(4), R(4)), ({0: "n"}, {0: "n"}), (R(1), R(1)), id="same-name"),
    pytest.param(lambda x, y: x + y[1:], (R(4), R(5)), ({0: d}, {0: d + 1}), (R(7), R(8)), id="derived"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "examples", "shapes", "other"), WIDE)
def test_no_constraint_is_needed(function: Any, examples: Any, shapes: Any, other: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fxonnx.export(model(function), examples, dynamic_shapes=shapes, strict_shapes=True)
    assert not any(constraint.narrows for constraint in program.record.constraints)
    for inputs in (examples, other):
        torch.testing.assert_close(program(*inputs)[0], function(*inputs))


def test_the_range_of_a_dim_is_enforced() -> None:
    shapes = ({0: Dim("n", min=2, max=9), 1: 2 * Dim("m", max=4)},)
    program = fxonnx.export(model(lambda x: x + 1), (R(3, 4),), dynamic_shapes=shapes, strict_shapes=True)
    assert [constraint.text for constraint in program.record.constraints] == ["n >= 2", "n <= 9", "m <= 4"]
    assert program.model.metadata_props["pkg.fxonnx.constraints"].count('"code": null') == 3
    torch.testing.assert_close(program(x := R(9, 2))[0], x + 1)
    for size in (1, 10):
        with pytest.raises(
            ArgumentError, match=r"x: the model was exported for n .= [29], got n = 10?\nhint: widen the range"
        ):
            program(R(size, 2))


def test_dim_aliases_are_in_the_metadata() -> None:
    program = fxonnx.export(model(lambda x, y: x + y), (R(3), R(3)), dynamic_shapes=({0: "a"}, {0: "b"}))
    assert program.model.metadata_props["pkg.fxonnx.dim_aliases"] == '{"a": ["b"]}'


POOLS = [(2, 4, 0), (3, 2, 1), (3, 3, 0), ((3, 2), (2, 5), (1, 0)), (5, 3, 2), (1, 2, 0)]


@pytest.mark.parametrize("options", POOLS, ids=str)
def test_pooled_sizes_are_correct_at_every_size(options: tuple[Any, ...]) -> None:
    def pool(x: torch.Tensor) -> torch.Tensor:
        pooled = nn.functional.max_pool2d(x, *options, ceil_mode=True)
        return pooled.flatten() + torch.ones(pooled.shape[1] * pooled.shape[2])

    program = fxonnx.export(model(pool), (R(1, 8, 9),), dynamic_shapes=({1: "h", 2: "w"},))
    program.verify(sizes=[{"h": height, "w": 21 - height} for height in range(5, 17)])


def test_constraints_on_auto_dims_do_not_warn_but_are_enforced() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fxonnx.export(model(branch), (R(2, 12),), dynamic_shapes=({1: Dim.AUTO},), strict_shapes=True)
    (constraint,) = program.record.constraints
    assert (constraint.text, constraint.dims, constraint.narrows) == ("x.shape[1] >= 9", ("x.shape[1]",), False)
    with pytest.raises(ArgumentError, match=r"exported for x\.shape\[1\] >= 9, got x\.shape\[1\] = 4"):
        program(R(2, 4))


def test_a_constraint_has_its_line_of_code() -> None:
    captured = capture(model(branch), (R(2, 12),), None, ({1: Dim.AUTO},))
    (constraint,) = captured.limits.constraints
    assert constraint.code == "if x.shape[1] > 8:"
    assert re.fullmatch(r".*/test_constraints\.py:\d+ in branch: if x\.shape\[1\] > 8:", str(constraint.line))
    assert str(constraint) == f"x.shape[1] >= 9 ({constraint.line})"
    assert constraint.expression == (sympy.Symbol("x.shape[1]", integer=True, positive=True) >= 9)
    assert str(SourceLine("a.py:3 in f", "")) == "a.py:3 in f"


class NeedsStrict(nn.Module):
    """Fake tensors have no NumPy arrays, so that strict mode is used."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * float(torch.tensor([1.0, 2.0]).numpy().sum())
        return x + 1 if x.shape[0] > 8 else x - 1


def resized(x: torch.Tensor) -> torch.Tensor:
    """The size to which detection resizes an image, whose blocks of 32 are counted."""
    height, width = x.shape
    scale = torch.sym_min(320 / torch.sym_min(height, width), 640 / torch.sym_max(height, width))
    if ((int(height * scale) + 31) // 32) * ((int(width * scale) + 31) // 32) > 100:
        return x + 1
    return x - 1


def test_long_conditions_are_python_and_cut_in_messages() -> None:
    shapes = {"x": {0: "height", 1: "width"}}
    with pytest.warns(UserWarning, match="cannot be exported for all requested sizes") as caught:
        captured = capture(model(resized), (R(200, 240),), dynamic_shapes=shapes)
    message = str(caught[0].message)
    assert max(map(len, message.splitlines()[1:3])) <= 162
    assert " ...\n" in message
    assert message.endswith("the whole conditions are in ONNXProgram.record.constraints")
    for sizes, holds in (((200, 240), True), ((64, 640), False)):
        given = dict(zip(("height", "width"), sizes, strict=True))
        results = [eval(one.text, {}, dict(given)) for one in captured.limits.constraints]
        assert all(results) == holds
        assert (captured.limits.violated(given) is None) == holds


def test_strict_capture_records_the_line() -> None:
    with pytest.warns(UserWarning, match=r"n >= 9\n    at: .*test_constraints\.py:\d+ in forward: return x \+ 1 if"):
        captured = capture(NeedsStrict().eval(), (R(12),), None, ({0: "n"},))
    assert [constraint.text for constraint in captured.limits.constraints] == ["n >= 9"]


def test_dependent_sizes_are_checked() -> None:
    program = fxonnx.export(
        model(lambda x, y: x if x.shape[0] == y.shape[0] else y), (R(4), R(4)), dynamic_shapes=({0: "n"}, {0: "n"})
    )
    with pytest.raises(
        ArgumentError, match=r"y: the size of y axis 0 is n, here 4: x axis 0 has 4, y axis 0 has 5\nhint"
    ):
        program(R(4), R(5))
    derived = fxonnx.export(
        model(lambda x, y: (x + 1, y + 1)), (R(8), R(9)), dynamic_shapes=({0: 2 * d}, {0: 2 * d + 1})
    )
    assert [tuple(output.shape) for output in derived(R(6), R(7))] == [(6,), (7,)]
    with pytest.raises(
        ArgumentError, match=r"the size of y axis 0 is 2\*d \+ 1, here 7: x axis 0 has 6, y axis 0 has 9"
    ):
        derived(R(6), R(9))
    with pytest.raises(ArgumentError, match=r"x: the size of x axis 0 is 2\*d, which cannot be 7\nhint: the model was"):
        fxonnx.export(model(lambda x: x + 1), (R(8),), dynamic_shapes=({0: 2 * d},))(R(7))


FIXED = [
    pytest.param(lambda x: x + torch.ones(range(x.shape[0]).stop), R(5), {0: "n"}, r"'n', is always 5\n    at: .*lambda x: x \+", id="int"),
    pytest.param(lambda x: x.view(4, 3), R(4, 3), {0: Dim("n")}, r"'n', is always 4\n    at: .*<lambda>: .*x\.view", id="view"),
    pytest.param(lambda x: x if x.shape[0] == 5 else -x, R(5), {0: Dim.DYNAMIC}, r"Dim\.DYNAMIC, is always 5\n    at: ", id="hint"),
    pytest.param(lambda x: x if x.shape[0] == 1 else -x, R(1), {0: "n"}, r"'n', is always 1\n    at: .*\nhint: .*; if the model treats a size of 1 as .*, pass a larger example", id="one"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "x", "shapes", "message"), FIXED)
def test_a_specialized_dim_is_an_error_with_the_line(function: Any, x: Any, shapes: Any, message: str) -> None:
    with pytest.raises(
        CaptureError, match=r"the model specializes a dim that should be dynamic:\n  x axis 0, " + message
    ):
        capture(model(function), (x,), None, (shapes,))


@pytest.mark.parametrize("shapes", [None, ({1: "s"},)], ids=["no-names", "names"])
def test_exported_program(shapes: Any) -> None:
    exported = torch.export.export(model(branch), (R(2, 12),), dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fxonnx.export(exported, dynamic_shapes=shapes)
    name = "x.shape[1]" if shapes is None else "s"
    assert [constraint.text for constraint in program.record.constraints] == [f"{name} >= 9"]
    assert program.record.constraints[0].code == "if x.shape[1] > 8:"
    with pytest.raises(ArgumentError, match="the model was exported for"):
        program(R(2, 4))


def test_exported_program_with_assertions() -> None:
    exported = torch.export.export(
        model(lambda x: x * 2 if x.shape[0] % 16 == 0 else x),
        (R(32, 3),),
        dynamic_shapes=({0: Dim("n", max=64)},),
        prefer_deferred_runtime_asserts_over_guards=True,
    )
    program = fxonnx.export(exported)
    assert [constraint.text for constraint in program.record.constraints] == [
        "x.shape[0] % 16 == 0",
        "x.shape[0] <= 64",
    ]
    (guard,) = program.record.guards
    assert re.fullmatch(r"requires x\.shape\[0\] % 16 == 0 \(test_constraints\.py:\d+\)", guard)


def test_exported_program_with_a_number_of_pieces() -> None:
    exported = torch.export.export(model(lambda x: x[5:].split(2)[-1]), (R(7, 3),), dynamic_shapes=({0: Dim.DYNAMIC},))
    program = fxonnx.export(exported)
    x = R(7, 3)
    torch.testing.assert_close(program(x)[0], x[5:])
    with pytest.raises(ArgumentError, match=r"the model was exported for x\.shape\[0\] <= 7"):
        program(R(9, 3))


def test_metadata_contains_no_file_names() -> None:
    with pytest.warns(UserWarning, match="s >= 9"):
        program = fxonnx.export(model(branch), (R(2, 12),), dynamic_shapes=({1: "s"},))
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    text = session.get_modelmeta().custom_metadata_map["pkg.fxonnx.constraints"]
    assert json.loads(text) == [{"constraint": "s >= 9", "dims": ["s"], "code": "if x.shape[1] > 8:"}]


def test_patches_of_guards_are_removed() -> None:
    from torch.fx.experimental.sym_node import SymNode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    names = ("_log_guard", "_maybe_guard_rel", "guard_or_defer_runtime_assert")
    before = [SymNode.guard_bool, *(getattr(ShapeEnv, name) for name in names)]
    with pytest.raises(CaptureError, match="the model specializes a dim"):
        capture(model(lambda x: x.view(4)), (R(4),), None, ({0: "n"},))
    assert [SymNode.guard_bool, *(getattr(ShapeEnv, name) for name in names)] == before


n, m = (sympy.Symbol(name, integer=True, positive=True) for name in ("n", "batch size"))
z = sympy.Symbol("z", integer=True, nonnegative=True)
RELATIONS = [
    (n > 8, ["n >= 9"]),
    (sympy.Lt(n, 8), ["n <= 7"]),
    (2 * n <= 9, ["n <= 4"]),
    (sympy.Eq(Mod(3 * n, 4), 0), ["n % 4 == 0"]),
    (sympy.Eq(6 * n, 4 * FloorDiv(6 * n, 4)), ["n % 2 == 0"]),
    (sympy.Eq(n, m), ["batch size == n"]),
    (sympy.Eq(n, Min(512, n)), ["n <= 512"]),
    (sympy.Eq(n, Max(5, n)), ["n >= 5"]),
    (sympy.Eq(Mod(m * (n + 1), 4 * m), 0), ["n % 4 == 3"]),
    (sympy.Eq(Mod(6 * m * n, 4 * m * m), 0), ["(3*n) % (2*batch size) == 0"]),
    (sympy.Eq(12 * m * FloorDiv(n, 2), 6 * m * n), ["n % 2 == 0"]),
    (sympy.Eq(4 * m * FloorDiv(n, 2), m * n * m), ["4*(n // 2) == batch size*n"]),
    (sympy.Eq(2 * n, 10), ["n == 5"]),
    (sympy.Eq(FloorDiv(n, 2), 1), ["n >= 2", "n <= 3"]),
    (sympy.Eq(2 * n, 9), ["False"]),
    (sympy.Ne(4 * FloorDiv(n, 4), 0), ["n >= 4"]),
    (sympy.And(n > 3, m > 4), ["batch size >= 5", "n >= 4"]),
    (sympy.Not(sympy.Or(sympy.Eq(n, 3), m > 4)), ["n != 3", "batch size <= 4"]),
    (sympy.Or(sympy.And(n > 3, m > 4), n > 7), ["(batch size > 4 and n > 3) or n > 7"]),
    (FloorDiv(FloorDiv(n - 3, 2) - 1, 2) + 1 >= 1, ["n >= 5"]),
    (FloorDiv(n, 4) + Mod(7 - Mod(FloorDiv(n, 4), 7), 7) > 7, ["n >= 32"]),
    (FloorDiv(n, 2) * 5 - Mod(n, 3) > 3, ["n >= 3"]),
    (Mod(n, 3) + FloorDiv(n, 3) > 1, ["n >= 2", "n != 3"]),
    (sympy.Eq(n * m + m, n * m + 3), ["batch size == 3"]),
    (Max(3, n) < m * n, ["max(3, n) < batch size*n"]),
    (sympy.Eq(n, Max(0, Min(128, n) - Max(0, Min(128, n) - n))), ["n <= 128"]),
    (sympy.Eq(n, Max(0, Min(128, n) - 3)), ["False"]),
    (sympy.Eq(FloorDiv(4 * n - 1, n), 3), []),
    (sympy.Eq(FloorDiv(5 * n - 1, 2 * n), 2), []),
    (sympy.Eq(FloorDiv(4 * z - 1, z), 3), ["z >= 1"]),
    (sympy.Eq(FloorDiv(4 * z - 1, z), 2), ["False", "z >= 1"]),
    (sympy.Eq(FloorDiv(n + 2, n), 1), ["(n + 2) // n == 1"]),
    (sympy.true, []),
]


@pytest.mark.parametrize(("relation", "texts"), RELATIONS, ids=str)
def test_normal_forms(relation: Any, texts: list[str]) -> None:
    assert [text_of(form) for form in normal_forms(relation)] == texts


def test_known_quotients_are_those_of_all_sizes() -> None:
    numbers, found, other = random.Random(0), 0, sympy.Symbol("other", integer=True)
    for _ in range(300):
        a, b, c, k = (numbers.randint(low, high) for low, high in ((-4, 4), (-2, 2), (-4, 4), (1, 3)))
        relation = sympy.Le(FloorDiv(a * n + b * m + c, k * n), other, evaluate=False)
        plain = without_known_quotients(relation)[0]
        if relation.has(FloorDiv) and not plain.has(FloorDiv):
            found += 1
            values = {(a * i + b * j + c) // (k * i) for i in range(1, 12) for j in range(1, 12)}
            assert values == {int(plain.lhs)}, relation
    assert found > 10


FOLLOWS = [
    (n >= 3, Bounds(4), True),
    (n >= 5, Bounds(4), False),
    (n <= 5, Bounds(1, 5), True),
    (2 * FloorDiv(FloorDiv(n - 3, 2) - 1, 2) < FloorDiv(n - 3, 2) + 1, Bounds(3), True),
    (2 * FloorDiv(n, 2) < n, Bounds(1), False),
    (2 * FloorDiv(n, 2) >= n - 1, Bounds(1), True),
    (2 * FloorDiv(n, 2) <= 100, Bounds(1), False),
    (2 * FloorDiv(n, 2) <= 100, Bounds(1, 101), True),
    (3 * FloorDiv(n, 2) > n - 2, Bounds(1), True),
    (sympy.Eq(Mod(n, 2) + 2 * FloorDiv(n, 2), n), Bounds(1), True),
    (sympy.Ne(Mod(n, 5), 4), Bounds(1), False),
    (sympy.Eq(Mod(n + PythonMod(-n, 4), 4), 0), Bounds(1), True),
    (sympy.Ne(3 * FloorDiv(n, 2), 4 * n), Bounds(1), True),
    (sympy.Ne(3 * FloorDiv(n, 2), n), Bounds(1), False),
    (sympy.Or(n > 100, n > 3), Bounds(4), True),
    (FloorDiv(n, 9999) * 2 > FloorDiv(n, 9999), Bounds(1), False),
    (n * n > 8, Bounds(3), True),
    (sympy.Eq(49 * FloorDiv(n + Mod(7 - Mod(n, 7), 7), 7) * n, 7 * (n + Mod(7 - Mod(n, 7), 7)) * n), Bounds(1), True),
]


@pytest.mark.parametrize(("relation", "bounds", "expected"), FOLLOWS, ids=str)
def test_is_implied(relation: Any, bounds: Bounds, expected: bool) -> None:
    assert is_implied(relation, {n: bounds}) is expected
    if expected:
        last = 40 if bounds.high is None else bounds.high
        assert all(relation.subs(n, size) == sympy.true for size in range(bounds.low or 1, last + 1))


def test_bounds() -> None:
    assert bounds_of(sympy.Ge(5, n)) == (n, Bounds(None, 5))
    assert bounds_of(sympy.Ne(n, 5)) is None
    assert bounds_of(n >= m) is None
    assert Bounds(2, None).within(Bounds(1, 7)) == Bounds(2, 7)


@pytest.mark.parametrize(("rows", "text"), [(2, "n >= 3"), (1, "n >= 2")])
def test_an_example_with_an_empty_intermediate_tensor_is_refused(rows: int, text: str) -> None:
    function = {2: lambda x: x[2:].mean(), 1: lambda x: x.tensor_split(2)[-1].mean()}[rows]
    reason = (
        "ReduceMean does not support empty tensors in ONNX Runtime, and an intermediate tensor is empty at this size"
    )
    match = f"the captured program requires {text}, but the example has n = {rows}: {reason}\nhint: pass an example"
    with pytest.raises(CaptureError, match=match):
        fxonnx.export(model(function), (R(rows, 3),), dynamic_shapes=({0: "n"},))
    with pytest.warns(UserWarning, match="only for:"):
        program = fxonnx.export(model(function), (R(5, 3),), dynamic_shapes=({0: "n"},))
    torch.testing.assert_close(program(x := R(4, 3))[0], function(x))


def test_an_intermediate_tensor_that_is_empty_at_every_size_is_refused() -> None:
    lstm = torch.nn.LSTM(4, 4)
    recurrent = model(lambda x: lstm(x[:, torch.sym_max(x.shape[1], 2) : (x.shape[1] + 1) // 2])[0])
    match = (
        "an intermediate tensor is empty at every size: LSTM does not support empty tensors in ONNX Runtime\nhint: skip"
    )
    with pytest.raises(CaptureError, match=match):
        fxonnx.export(recurrent, (R(2, 3, 4),), dynamic_shapes=({1: "n"},))
