"""Random numbers and dropout: torch's shape, type and distribution, and different draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

import fxonnx

from ..functions import Function
from .harness import Case, T, run

aten = torch.ops.aten
F16, BF16, F64, I64, U8, C64 = (
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.complex64,
)
COUNT = 10000
SECOND = 20000


@dataclass(frozen=True)
class Draw:
    """A model that draws random numbers, one row per row of its input."""

    target: str
    function: Callable[[torch.Tensor], torch.Tensor]
    dtype: torch.dtype = torch.float32
    name: str = ""
    value: float = 1.0
    columns: int = 2
    differs: bool = True

    def __str__(self) -> str:
        return f"{self.target}{'-' if self.name else ''}{self.name}"


def _in_place(name: str, *arguments: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: getattr(x.clone(), name)(*arguments)


def _rows(**options: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: torch.rand(x.shape[0], 3, **options)


DRAWS = (
    Draw("aten.rand.default", _rows()),
    Draw("aten.rand.default", _rows(dtype=F64), name="float64"),
    Draw("aten.rand.default", lambda x: torch.rand(x.shape, dtype=C64), name="complex"),
    Draw("aten.rand.generator", lambda x: aten.rand.generator([SECOND, 3], generator=None)),
    Draw("aten.rand_like.default", torch.rand_like),
    Draw("aten.rand_like.default", torch.rand_like, F16, "float16"),
    Draw("aten.rand_like.default", torch.rand_like, BF16, "bfloat16"),
    Draw("aten.rand_like.default", torch.rand_like, C64, "complex"),
    Draw("aten.rand_like.generator", lambda x: aten.rand_like.generator(x, generator=None)),
    Draw("aten.randn.default", lambda x: torch.randn(x.shape)),
    Draw("aten.randn.default", lambda x: torch.randn(x.shape, dtype=C64), name="complex"),
    Draw("aten.randn.generator", lambda x: aten.randn.generator([SECOND, 3], generator=None)),
    Draw("aten.randn_like.default", torch.randn_like),
    Draw("aten.randn_like.default", torch.randn_like, BF16, "bfloat16"),
    Draw("aten.randn_like.default", torch.randn_like, F64, "float64"),
    Draw("aten.randn_like.default", torch.randn_like, C64, "complex"),
    Draw("aten.randn_like.generator", lambda x: aten.randn_like.generator(x, generator=None)),
    Draw("aten.uniform.default", _in_place("uniform_")),
    Draw("aten.uniform.default", _in_place("uniform_", -3, 5), F16, "limits"),
    Draw("aten.uniform.default", _in_place("uniform_", -3, 5), C64, "complex"),
    Draw("aten.normal_functional.default", _in_place("normal_", 2, 0.5)),
    Draw("aten.normal_functional.default", _in_place("normal_", 2, 0.5), C64, "complex"),
    Draw("aten.normal.float_float", lambda x: torch.normal(-1.0, 3.0, x.shape)),
    Draw("aten.normal.Tensor_float", lambda x: torch.normal(x, 3.0)),
    Draw("aten.normal.float_Tensor", lambda x: torch.normal(2.0, x), F64),
    Draw("aten.normal.Tensor_Tensor", lambda x: torch.normal(x, x * 2), F16),
    Draw("aten.log_normal.default", _in_place("log_normal_", 0.5, 0.5)),
    Draw("aten.exponential.default", _in_place("exponential_", 2.0)),
    Draw("aten.exponential.default", _in_place("exponential_"), BF16, "bfloat16"),
    Draw("aten.cauchy.default", _in_place("cauchy_", 1.0, 2.0)),
    Draw("aten.geometric.default", _in_place("geometric_", 0.2)),
    Draw("aten.geometric.default", _in_place("geometric_", 0.7), I64, "int64"),
    Draw("aten.geometric.default", _in_place("geometric_", 0.4), U8, "uint8"),
    Draw("aten.bernoulli.default", torch.bernoulli, value=0.3),
    Draw("aten.bernoulli.default", torch.bernoulli, F64, "float64", value=0.3),
    Draw("aten.bernoulli.p", _in_place("bernoulli_", 0.8), I64),
    Draw("aten.bernoulli.Tensor", lambda x: x.clone().bernoulli_(torch.tensor([0.1, 0.9])), U8),
    Draw("aten.randint.default", lambda x: torch.randint(7, x.shape)),
    Draw("aten.randint.generator", lambda x: aten.randint.generator(7, [SECOND], generator=None)),
    Draw("aten.randint.low", lambda x: torch.randint(-(2**62), 2**62, x.shape), name="wide"),
    Draw("aten.randint.low", lambda x: torch.randint(-2, x.shape[1], x.shape, dtype=torch.int8), name="int8"),
    Draw("aten.randint.low_generator", lambda x: aten.randint.low_generator(3, 9, [SECOND], generator=None)),
    Draw("aten.randint_like.default", lambda x: torch.randint_like(x, 100)),
    Draw("aten.randint_like.Tensor", lambda x: torch.randint_like(x, torch.tensor(100)), I64),
    Draw("aten.randint_like.generator", lambda x: aten.randint_like.generator(x, 100, generator=None)),
    Draw("aten.randint_like.low_dtype", lambda x: torch.randint_like(x, -5, 5), torch.int32),
    Draw(
        "aten.randint_like.low_generator_dtype",
        lambda x: aten.randint_like.low_generator_dtype(x, -5, 5, generator=None),
    ),
    Draw("aten.randperm.default", lambda x: torch.randperm(x.shape[0])),
    Draw("aten.randperm.generator", lambda x: aten.randperm.generator(SECOND, generator=None, dtype=torch.int32)),
    Draw("aten.multinomial.default", lambda x: torch.multinomial(x * torch.tensor([1.0, 0, 3, 2]), 2), columns=4),
    Draw(
        "aten.multinomial.default",
        lambda x: torch.multinomial(x * torch.tensor([1.0, 0, 3, 2]), 5, replacement=True),
        name="replacement",
        columns=4,
    ),
    Draw("aten.multinomial.default", lambda x: torch.multinomial(x, 1, True), F64, "one of many", columns=5),
    Draw("aten.dropout.default", lambda x: F.dropout(x, 0.3)),
    Draw("aten.dropout.default", lambda x: F.dropout(x, 1.0), name="everything dropped", differs=False),
    Draw("aten.native_dropout.default", lambda x: aten.native_dropout(x, 0.3, True)[0]),
    Draw("aten.native_dropout.default", lambda x: aten.native_dropout(x, 0.3, True)[1], name="mask"),
    Draw("aten.feature_dropout.default", lambda x: F.dropout2d(x[..., None, None].expand(-1, -1, 3, 3), 0.4)),
    Draw("aten.feature_dropout.default", lambda x: F.dropout3d(x[..., None, None, None], 1.0), F16, "1", differs=False),
    Draw("aten.alpha_dropout.default", lambda x: F.alpha_dropout(x, 0.4, training=True)),
    Draw("aten.alpha_dropout.default", lambda x: F.alpha_dropout(x, 1.0, training=True), name="1", differs=False),
    Draw(
        "aten.feature_alpha_dropout.default",
        lambda x: F.feature_alpha_dropout(x[..., None, None].expand(-1, -1, 2, 2), 0.4, training=True),
    ),
    Draw("aten.rrelu.default", lambda x: F.rrelu(x, 0.1, 0.6, training=True), value=-2.0),
    Draw("aten.rrelu.default", lambda x: F.rrelu(x, 0.1, 0.6, training=True), F64, "float64", value=-2.0),
    Draw(
        "aten.rrelu_with_noise_functional.default",
        lambda x: aten.rrelu_with_noise_functional(x, torch.zeros_like(x), 0.1, 0.6, True)[0],
        value=-2.0,
    ),
)

CASES = (
    Case("aten.dropout.default", lambda x: F.dropout(x, 0.5, training=False) + 1, (T(("n", 3)),), ops=("Add",)),
    *(
        Case(f"aten.{name}.default", lambda x, n=name: getattr(aten, n).default(x, 0.5, False) + 1, (T(("n", 3, 4)),))
        for name in ("feature_dropout", "alpha_dropout", "feature_alpha_dropout")
    ),
    Case("aten.native_dropout.default", lambda x: aten.native_dropout(x, 0.5, False), (T(("n", 3)),)),
    Case("aten.rrelu.default", lambda x: F.rrelu(x, 0.1, 0.3), (T(("n", 3)),), ops=("LeakyRelu",)),
    Case(
        "aten.rrelu_with_noise_functional.default",
        lambda x: aten.rrelu_with_noise_functional(x, torch.ones_like(x), 0.1, 0.6, False),
        (T(("n", 3)),),
    ),
    Case("aten.rrelu.default", lambda x: F.rrelu(x, 0.1, 0.3, training=True), (T(("n", 3), low=0.0),), "positive"),
    Case(
        "aten.randperm.default", lambda x: torch.randperm(x.shape[0]).sort().values, (T(("n",)),), "each once", opset=11
    ),
    Case(
        "aten.multinomial.default",
        lambda x: torch.multinomial(x, 3).sort().values,
        (T(("n", 3), low=0.1),),
        "all categories",
    ),
    Case("aten.bernoulli.default", torch.bernoulli, (torch.tensor([0.0, 1.0, 1.0, 0.0]),), "certain"),
    Case("aten.randint.low", lambda: torch.randint(5, 6, ()), (), "0-dim"),
)


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The Kolmogorov-Smirnov statistic: the largest difference of the two distribution functions."""
    ours, theirs = (value.flatten().double().sort().values for value in (ours, theirs))
    points = torch.cat([ours, theirs])
    return max(
        (torch.searchsorted(ours, points, side=side) / len(ours))
        .sub(torch.searchsorted(theirs, points, side=side) / len(theirs))
        .abs()
        .max()
        .item()
        for side in ("left", "right")
    )


@pytest.mark.parametrize("opset", [20, 23])
@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_distribution(draw: Draw, opset: int) -> None:
    model = Function(draw.function).eval()
    example, x = (torch.full((rows, draw.columns), draw.value, dtype=draw.dtype) for rows in (COUNT, SECOND))
    program = fxonnx.export(model, (example,), dynamic_shapes=({0: "rows"},), opset_version=opset)
    torch.manual_seed(0)
    expected = model(x)
    if expected.is_complex():
        expected = torch.view_as_real(expected)
    (ours,), (again,) = program(x), program(x)
    assert ours.dtype == expected.dtype
    assert ours.shape == expected.shape
    assert torch.equal(ours, again) != draw.differs
    columns = (value.reshape(len(value), -1).T for value in (ours, expected))
    for one, other in zip(*columns, strict=True):
        # For samples of 20000 a larger statistic has a probability of 5e-11.
        assert _distance(one, other) < 0.035


@pytest.mark.parametrize("case", CASES, ids=str)
def test_not_random(case: Case) -> None:
    run(case)


@pytest.mark.parametrize("opset", [20, 23])
def test_no_two_draws_are_shared_or_folded(opset: int) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            kept = F.dropout(torch.ones(1000), 0.5)
            return torch.rand(1000), torch.rand(1000), F.dropout(x, 0.5), F.dropout(x, 0.5), kept, kept + torch.rand(1)

    program = fxonnx.export(Model(), (torch.ones(1000),), opset_version=opset)
    first, second = program(torch.ones(1000)), program(torch.ones(1000))
    for one, other in ((first[0], first[1]), (first[2], first[3]), *zip(first, second, strict=True)):
        assert not torch.equal(one, other)


@pytest.mark.parametrize("opset", [20, 23])
def test_random_numbers_below_one(opset: int) -> None:
    model = Function(lambda x: torch.rand(x.shape[0], 1000, dtype=BF16))
    (ours,) = fxonnx.export(model.eval(), (torch.ones(200),), opset_version=opset)(torch.ones(200))
    assert ours.max() < 1
    assert ours.min() >= 0
    assert torch.equal(ours.double() * 256, (ours.double() * 256).floor())
