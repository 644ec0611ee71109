"""Canonical forms of sizes: equal to the originals for all integers, and small in deep models."""

from __future__ import annotations

import math
import operator
import random
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import fxonnx
from fxonnx._capture.constraints.size_forms import DataSamples, SizeForms
from fxonnx._capture.constraints.size_sets import size_function
from fxonnx_translations._builder.exact_quotients import exact_integer, quotient_of_products
from fxonnx_translations._builder.size_values import SizeValues
from fxonnx_translations._torch_compat import (
    CeilToInt,
    FloorDiv,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    shape_config,
    sympy_functions,
)

from ..functions import Function

n = sympy.Symbol("n", integer=True, positive=True)
u = sympy.Symbol("u", integer=True)
m = sympy.Symbol("m", integer=True, positive=True)


def ceil(value: sympy.Expr, divisor: int) -> sympy.Expr:
    return CeilToInt(IntTrueDiv(value, sympy.Integer(divisor)))


def same(size: sympy.Expr, stride: int = 2, kernel: int = 3) -> sympy.Expr:
    """A convolution with the padding of TensorFlow's SAME."""
    padding = Max(0, (ceil(size, stride) - 1) * stride + kernel - size)
    return FloorDiv(size + padding - kernel, stride) + 1


FORMS = [
    pytest.param(FloorDiv(n - 1, 2) + 1, FloorDiv(n - 1, 2) + 1, id="strided"),
    pytest.param(FloorDiv(n + 1, 2), FloorDiv(n - 1, 2) + 1, id="rounded-up"),
    pytest.param(same(n), FloorDiv(n - 1, 2) + 1, id="same"),
    pytest.param(same(same(same(n))), FloorDiv(n - 1, 8) + 1, id="same-nested"),
    pytest.param(n + Mod(7 - Mod(n, 7), 7), 7 * FloorDiv(n - 1, 7) + 7, id="padded-to-a-multiple"),
    pytest.param(Min(n, 7 * ceil(n, 7)), n, id="padded-and-cropped"),
    pytest.param(2 * FloorDiv(n, 2) + Mod(n, 2), n, id="quotient-and-remainder"),
    pytest.param(Max(0, 2 * ceil(n, 2) - n) - PythonMod(-n, 2), sympy.Integer(0), id="constant"),
    pytest.param(FloorDiv(3 * n + 6, 3), n + 2, id="line"),
    pytest.param(FloorDiv(u - 3, 4) + 1, FloorDiv(u - 3, 4) + 1, id="any-integer"),
]


@pytest.mark.parametrize(("expression", "expected"), FORMS)
def test_forms(expression: sympy.Expr, expected: sympy.Expr) -> None:
    forms = SizeForms()
    assert forms.form(expression) == expected
    assert forms.form(expected) == expected


KEPT = [
    pytest.param(Max(n, 5), id="clamped"),
    pytest.param(FloorDiv(n, 2) + FloorDiv(n, 3), id="two-periods"),
    pytest.param(FloorDiv(n, m), id="two-symbols"),
    pytest.param(FloorDiv(n * n, 2), id="square"),
    pytest.param(Mod(n, 2), id="remainder"),
    pytest.param(FloorDiv(n, 9973) + Mod(n, 9967), id="long-period"),
]


@pytest.mark.parametrize("expression", KEPT)
def test_other_expressions_are_unchanged(expression: sympy.Expr) -> None:
    assert SizeForms().form(expression) is expression


def at(expression: sympy.Basic, size: int) -> int:
    """The value of an expression in Python's arithmetic."""
    values = [at(argument, size) for argument in expression.args]
    if expression.is_Symbol or expression.is_Integer:
        return size if expression.is_Symbol else int(expression)
    kinds = {
        FloorDiv: lambda a, b: a // b, Mod: lambda a, b: a % b, PythonMod: lambda a, b: a % b,
        IntTrueDiv: lambda a, b: a / b, CeilToInt: math.ceil,
        Max: lambda *v: max(v), Min: lambda *v: min(v), sympy.Add: lambda *v: sum(v), sympy.Mul: lambda *v: math.prod(v),
    }  # fmt: skip
    return next(function for kind, function in kinds.items() if isinstance(expression, kind))(*values)


def test_a_function_is_defined_for_all_integers() -> None:
    function = size_function(3 * FloorDiv(u - 1, 4) + PythonMod(u, 6))
    assert function is not None
    assert (function.period, function.slope) == (12, 9)
    assert list(function.table(30)) == [3 * ((size - 1) // 4) + size % 6 for size in range(30)]
    negative = size_function(3 * FloorDiv(u - 1, 4) + PythonMod(u, 6), sign=-1)
    assert negative is not None
    assert list(negative.table(30)) == [3 * ((size - 1) // 4) + size % 6 for size in range(0, -30, -1)]
    assert size_function(FloorDiv(u, 9973)) is None
    clamped = size_function(Max(u, 5))
    assert clamped is not None
    assert clamped.slope is None


def test_random_expressions_keep_their_values() -> None:
    chance = random.Random(0)
    changed = 0
    for _ in range(150):
        expression: sympy.Expr = n
        for _ in range(chance.randint(2, 5)):
            k = chance.randint(2, 5)
            expression = chance.choice(
                [
                    lambda e, k: FloorDiv(e + chance.randint(-3, 3), k),
                    lambda e, k: k * e,
                    lambda e, k: e + PythonMod(-e, k),
                    lambda e, k: ceil(e, k),
                    lambda e, k: Max(e, k * ceil(e, k) - chance.randint(0, 2)),
                    lambda e, k: Min(e + 1, e + PythonMod(e, k)),
                ]
            )(expression, k)
        form, function = SizeForms().form(expression), size_function(expression)
        changed += form != expression
        values = None if function is None else function.table(4096)
        for size in (*range(40), 97, 1000, 4095):
            assert at(form, size) == at(expression, size), (expression, form, size)
            assert values is None or values[size] == at(expression, size), (expression, function, size)
    assert changed > 40


class SamePadding(nn.Module):
    """Six strided convolutions with size-dependent padding, as in EfficientNets converted from TensorFlow."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(2, 2, 3, stride=2) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            pads = [max((math.ceil(size / 2) - 1) * 2 + 3 - size, 0) for size in (x.shape[3], x.shape[2])]
            x = conv(F.pad(x, [pads[0] // 2, pads[0] - pads[0] // 2, pads[1] // 2, pads[1] - pads[1] // 2]))
        return x


def test_a_deep_pyramid_has_small_expressions() -> None:
    model = SamePadding().eval()
    program = fxonnx.export(model, (torch.rand(1, 2, 64, 64),), dynamic_shapes=({2: "h", 3: "w"},), strict_shapes=True)
    assert program.record.constraints == ()
    assert str(program.model.graph.outputs[0].shape) == "[1,2,(((h - 1)//64)) + 1,(((w - 1)//64)) + 1]"
    dims = [str(dim) for node in program.model.graph for value in node.outputs for dim in value.shape or ()]
    assert max(map(len, dims)) < 40
    for height, width in ((64, 64), (65, 63), (1, 7), (100, 130)):
        x = torch.rand(1, 2, height, width)
        torch.testing.assert_close(program(x)[0], model(x))


A, B = FloorDiv(n - 2, 16) + 1, FloorDiv(m - 2, 16) + 1
QUOTIENTS = [
    pytest.param(256 * n * A * B, 256 * A * B, n, id="factors"),
    pytest.param(512 * n * A * B, 32 * (4 * A) * sympy.expand(4 * B), n, id="factors-of-sums"),
    pytest.param(6 * n**3 * m, 2 * n**2, 3 * n * m, id="powers"),
    pytest.param(6 * n, 4 * n, None, id="another-number"),
    pytest.param(6 * n, m, None, id="another-symbol"),
    pytest.param(n**2, n**3, None, id="a-higher-power"),
    pytest.param(n * m + m, m, None, id="a-sum"),
    pytest.param(sympy.Integer(0), n, None, id="zero"),
]


@pytest.mark.parametrize(("dividend", "divisor", "expected"), QUOTIENTS)
def test_quotients_of_products(dividend: sympy.Expr, divisor: sympy.Expr, expected: sympy.Expr | None) -> None:
    found = quotient_of_products(dividend, divisor)
    assert found == expected
    for sizes in [(n_, m_) for n_ in (2, 5, 40) for m_ in (3, 33)] if found is not None else []:
        at = dict(zip((n, m), sizes, strict=True))
        assert dividend.subs(at) == found.subs(at) * divisor.subs(at)


def _truncated(value: sympy.Expr) -> sympy.Expr:
    return sympy_functions.TruncToInt(value)


def _over(value: sympy.Expr, divisor: float) -> sympy.Expr:
    return sympy_functions.FloatTrueDiv(value, sympy.Float(divisor))


HEIGHT, WIDTH = 4 * FloorDiv(n - 1, 4) + 4, 4 * FloorDiv(m - 1, 4) + 4

INTEGERS = [
    pytest.param(_truncated(IntTrueDiv(n, 2)), FloorDiv(n, 2), id="half"),
    pytest.param(_truncated(IntTrueDiv(n * m, 6)), FloorDiv(n * m, 6), id="of-two-sizes"),
    pytest.param(_truncated(2.0 * sympy_functions.ToFloat(n)), 2 * n, id="scaled"),
    pytest.param(_truncated(0.5 * sympy_functions.ToFloat(n)), FloorDiv(n, 2), id="scaled-down"),
    pytest.param(CeilToInt(IntTrueDiv(n - 5, 5) + 1.0), FloorDiv(n + 4, 5), id="strided"),
    pytest.param(_truncated(_over(IntTrueDiv(n, 3), 5.0)), FloorDiv(n, 15), id="divided-twice"),
    pytest.param(sympy_functions.FloorToInt(_over(IntTrueDiv(n, 3) + 2.0, 5.0)), FloorDiv(n + 6, 15), id="sum-divided"),
    pytest.param(
        _truncated(
            sympy_functions.FloatTrueDiv(
                u * FloorDiv(HEIGHT, 4) * FloorDiv(WIDTH, 4), _over(IntTrueDiv(HEIGHT * WIDTH, 4), 4.0)
            )
        ),
        u,
        id="windows",
    ),
    pytest.param(sympy_functions.RoundToInt(IntTrueDiv(n * m, m)), n, id="rounded"),
]


@pytest.mark.parametrize(("expression", "expected"), INTEGERS)
def test_integers_of_quotients(expression: sympy.Expr, expected: sympy.Expr) -> None:
    found = exact_integer(expression)
    assert sympy.expand(found - expected) == 0
    for size in (*range(1, 400), 4093, 1048573):
        values = SizeValues({n: size, m: 7, u: 3})
        assert values.value(found) == values.value(expression)


ROUNDED = [
    pytest.param(_truncated(0.1 * sympy_functions.ToFloat(n)), id="factor"),
    pytest.param(_truncated(_over(sympy_functions.ToFloat(n), 0.1)), id="divisor"),
    pytest.param(_truncated(10.0 * Mod(sympy_functions.ToFloat(n), sympy.Float(0.3))), id="remainder-of-floats"),
    pytest.param(_truncated(3.0 * IntTrueDiv(n, 3)), id="back"),
    pytest.param(_truncated(49.0 * IntTrueDiv(n, 49)), id="back-with-an-error"),
    pytest.param(_truncated(IntTrueDiv(n, 3) + IntTrueDiv(n, 6)), id="two-quotients"),
    pytest.param(_truncated(IntTrueDiv(n, 3) * IntTrueDiv(m, 3)), id="product-of-quotients"),
    pytest.param(
        _truncated(sympy_functions.FloatTrueDiv(IntTrueDiv(n, 3), IntTrueDiv(n, 9))), id="quotient-of-quotients"
    ),
    pytest.param(_truncated(IntTrueDiv(n, m)), id="two-sizes"),
    pytest.param(_truncated(IntTrueDiv(u, 2)), id="negative"),
    pytest.param(sympy_functions.RoundToInt(IntTrueDiv(n, 2)), id="half-to-even"),
    pytest.param(_truncated(sympy_functions.OpaqueUnaryFn_sqrt(n)), id="root"),
]


@pytest.mark.parametrize("expression", ROUNDED)
def test_integers_of_rounded_quotients_are_kept(expression: sympy.Expr) -> None:
    assert exact_integer(expression) is expression


def test_samples_of_data_satisfy_all_that_torch_knows() -> None:
    """No condition has a sample with another answer than torch's, which simplifies it by ranges and assertions."""
    draw, shown = random.Random(0), 0
    with shape_config.patch(backed_size_oblivious=True):
        for _ in range(16):
            environment = ShapeEnv()
            sizes: Any = [environment.create_unbacked_symint() for _ in range(3)]

            def number() -> Any:
                one, other = draw.choice(sizes), draw.choice(sizes)  # noqa: B023
                return draw.choice([one, one + other, 2 * one - 3, one // 3, one * other, draw.randrange(8)])

            def condition() -> Any:
                relation = draw.choice([operator.lt, operator.le, operator.eq, operator.ne, operator.gt])
                return relation(number(), number())

            for size in sizes:
                torch._check(size >= draw.randrange(3))
            samples = DataSamples(environment)
            for _ in range(8):
                asked = [one for one in (condition() for _ in range(6)) if isinstance(one, torch.SymBool)]
                for one in asked:
                    found = environment._maybe_evaluate_static(one.node.expr)
                    for answer in (True, False):
                        is_shown = samples.show(one.node.expr, answer=answer)
                        shown += is_shown
                        assert not is_shown or found is None or bool(found) is answer
                if asked and draw.random() < 0.5 and samples.show(asked[0].node.expr, answer=True):
                    torch._check(asked[0])
    assert shown > 300


def test_conditions_on_data_that_nothing_decides_are_not_simplified(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[sympy.Basic] = []
    simplify = ShapeEnv._maybe_evaluate_static

    def recorded(self: ShapeEnv, expression: sympy.Basic, **options: Any) -> Any:
        asked.append(expression)
        return simplify(self, expression, **options)

    def forward(x: torch.Tensor) -> torch.Tensor:
        kept = x[x[:, 0] > 0]
        for _ in range(3):
            kept = F.pad(kept.repeat(2, 1)[1:], (0, 0, 0, 1)).T.contiguous().T + 1
        return kept

    monkeypatch.setattr(ShapeEnv, "_maybe_evaluate_static", recorded)
    program = fxonnx.export(Function(forward).eval(), (torch.randn(6, 3),), dynamic_shapes=({0: "n"},))
    assert len(set(asked)) < 12  # 18 if every condition is simplified
    for size in (1, 4, 9):
        x = torch.randn(size, 3)
        torch.testing.assert_close(program(x)[0], forward(x))
