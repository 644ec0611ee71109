"""Default and exact numerics: both right for finite numbers and infinities, exact ones also for NaN and signed zeros."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
import torch

import fxonnx
import fxonnx_translations
from fxonnx_translations._builtin import default_registry

from ..functions import VariadicFunction
from .operators import overload_of

aten = torch.ops.aten

_INF, _NAN = math.inf, math.nan
_FINITE = torch.tensor(
    [
        [2.0, -1.0, 2.0, 0.5, -1.0],
        [_INF, 3e38, _INF, -3e38, 1.0],
        [-_INF, -3e38, -_INF, -_INF, -_INF],
        [0.0, 1e-40, 0.0, -1e-40, 0.0],
        [7.0, 7.0, 7.0, 7.0, 7.0],
    ]
)
_WITH_NAN = torch.tensor(
    [
        [2.0, _NAN, 2.0, 0.5, _NAN],
        [_INF, 3e38, _NAN, _INF, 1.0],
        [-_INF, _NAN, -_INF, -_INF, -_INF],
        [_NAN, _NAN, _NAN, _NAN, _NAN],
        [7.0, 7.0, 7.0, 7.0, _NAN],
    ]
)
_ROWS = torch.tensor([[0, 2, 0, 2, 1], [1, 1, 1, 1, 1], [4, 3, 2, 1, 0], [0, 0, 4, 4, 4], [3, 3, 3, 3, 3]])
_LENGTHS = torch.tensor([2, 3])
_EDGES = torch.tensor([-1.0, 0.0, 0.0, 1.5])


def _of_volume(x: torch.Tensor) -> Any:
    volume = x.unsqueeze(1).expand(1, 4, 5, 5)
    return aten.fractional_max_pool3d(volume, [2, 2, 2], [2, 3, 3], torch.tensor([[[0.2, 0.7, 0.4]]]))


@dataclass(frozen=True)
class Row:
    """One operator.

    Attributes:
        targets: Its overloads.
        function: The model.
        default: Largest number of nodes by default.
        exact: Largest number of nodes with exact numerics.
        finite: Inputs for which both are right.
        special: Inputs for which the exact one is right.
    """

    targets: str
    function: Callable[..., Any]
    default: int
    exact: int
    finite: torch.Tensor = _FINITE
    special: torch.Tensor = _WITH_NAN

    def __str__(self) -> str:
        return self.targets


_SAMPLES = torch.tensor([[[0.2, 0.7]]])
_POSITIVE = torch.tensor([0.5, 2.0, 30.0, 300.0])
_POSITIVE_OR_NAN = torch.tensor([0.5, math.nan, 30.0, math.nan])


def _unique(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The unique values, their counts, and all values again: the order of several NaN is not defined."""
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    return values, counts, values[inverse]


ROWS = (
    Row("amax", lambda x: x.amax(1), 1, 6),
    Row("amin", lambda x: x.amin(0), 1, 6),
    Row("max", lambda x: x.max(), 1, 6),
    Row("min", lambda x: x.min(), 1, 6),
    Row("max.dim", lambda x: x.max(1), 2, 10),
    Row("min.dim", lambda x: x.min(1, keepdim=True), 2, 8),
    Row("argmax", lambda x: x.argmax(1), 1, 7),
    Row("argmin", lambda x: x.argmin(), 2, 8),
    Row("topk", lambda x: x.topk(5, 1)[0], 1, 8),
    Row("sort", lambda x: x.sort(0), 1, 8),
    Row("sort.stable", lambda x: x.sort(dim=1, descending=True, stable=True), 1, 8),
    Row("argsort", lambda x: x.argsort(1), 1, 7),
    Row("argsort.stable", lambda x: x.argsort(dim=1, descending=True, stable=True), 1, 7),
    Row("msort", lambda x: x.msort(), 1, 8),
    Row("_unique2", _unique, 3, 32),
    Row("kthvalue", lambda x: x.kthvalue(2, 1)[0], 2, 9),
    Row("median", lambda x: x.median(), 3, 15),
    Row("median.dim", lambda x: x.median(1), 3, 15),
    Row("quantile.scalar", lambda x: torch.quantile(x, 0.4, 1), 6, 16),
    Row("searchsorted.Tensor", lambda x: torch.searchsorted(_EDGES, x), 4, 5),
    Row("searchsorted.Scalar", lambda x: torch.searchsorted(x, 0.5), 3, 4, _EDGES, _EDGES),
    Row("bucketize.Tensor", lambda x: torch.bucketize(x, _EDGES, right=True), 4, 5),
    Row("bucketize.Scalar", lambda x: torch.bucketize(0.5, x), 3, 4, _EDGES, _EDGES),
    Row("cummax", lambda x: x.cummax(1), 8, 13),
    Row("cummin", lambda x: x.cummin(0), 8, 13),
    Row("segment_reduce", lambda x: torch.segment_reduce(x[:, 0], "max", lengths=_LENGTHS), 12, 17),
    Row("scatter_reduce.two", lambda x: x.scatter_reduce(0, _ROWS, x.flip(1), "amax"), 2, 9),
    Row("index_reduce", lambda x: x.index_reduce(0, _ROWS[0], x.flip(1), "amin"), 3, 10),
    Row("linalg_vector_norm", lambda x: torch.linalg.vector_norm(x, math.inf, 1), 2, 7),
    Row(
        "norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dtype norm.ScalarOpt_dim_dtype",
        lambda x: aten.norm.Scalar(x, math.inf),
        2,
        7,
    ),
    Row("embedding_renorm", lambda x: aten.embedding_renorm(x, _ROWS[0], 1.0, math.inf), 9, 14),
    Row("sign", torch.sign, 1, 3),
    Row("sgn", torch.sgn, 1, 3),
    Row("igamma special_gammainc", lambda x: torch.igamma(_POSITIVE, x), 394, 403, _POSITIVE, _POSITIVE_OR_NAN),
    Row("igammac special_gammaincc", lambda x: torch.igammac(x, _POSITIVE), 392, 401, _POSITIVE, _POSITIVE_OR_NAN),
    Row("nextafter", lambda x: torch.nextafter(x, x.flip(1)), 23, 36),
    Row("frexp.Tensor", lambda x: torch.frexp(x)[0], 28, 30),
    Row("angle", torch.angle, 2, 4),
    Row(
        "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices",
        lambda x: torch.nn.functional.max_pool1d(x, 2, 3, 1, 3, True, return_indices=True),
        12,
        18,
        _FINITE.reshape(1, 1, 25)[..., :13],
        _WITH_NAN.reshape(1, 1, 25)[..., :13],
    ),
    Row("trunc fix", torch.trunc, 4, 4, _FINITE[0], _FINITE[1]),
    Row("floor_divide floor_divide.Scalar", lambda x: x // 3, 4, 20, _FINITE[0], _FINITE[1]),
    Row(
        "div.Tensor_mode div.Scalar_mode",
        lambda x: torch.div(x, 3, rounding_mode="trunc"),
        3,
        5,
        _FINITE[0],
        _FINITE[1],
    ),
    Row("fractional_max_pool2d", lambda x: aten.fractional_max_pool2d(x[None], 2, 3, _SAMPLES), 42, 48),
    Row("fractional_max_pool3d", lambda x: _of_volume(x[None]), 58, 64),
)

_INDIFFERENT = {
    *((f"aten::{name}",) for name in ("nanmedian", "nanmedian.dim", "log_sigmoid", "_fft_r2c", "stft")),
    *((f"aten::{name}", f"aten::{name}.Tensor") for name in ("clamp", "clamp_min", "clamp_max")),
    ("aten::add.Tensor", "aten::add.Scalar"),
}
"""They share functions with translations that ask, or only the sign of a zero depends on the answer."""


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_default_and_exact_numerics(row: Row) -> None:
    model = VariadicFunction(row.function).eval()
    default = fxonnx.export(model, (row.finite,))
    exact = fxonnx.export(model, (row.finite,), options=fxonnx.ExportOptions(numerics="exact"))
    for program, inputs in ((default, row.finite), (exact, row.finite), (exact, row.special)):
        expected = torch.utils._pytree.tree_leaves(model(inputs))
        for ours, theirs in zip(program(inputs), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0, equal_nan=True)
    counts = tuple(sum(1 for _ in program.model.graph.all_nodes()) for program in (default, exact))
    assert counts[0] <= counts[1]
    assert counts[0] <= row.default
    assert counts[1] <= row.exact


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _asks(function: FunctionType, seen: set[FunctionType]) -> bool:
    """Whether a function asks for exact numerics, itself or by a function of the package that it calls."""
    if function in seen:
        return False
    seen.add(function)
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    called = [function.__globals__.get(name) for name in sorted(names)]
    return bool(names & {"exact_numerics", "exact_zeros"}) or any(
        _asks(each, seen)
        for each in called
        if isinstance(each, FunctionType) and each.__module__.startswith(fxonnx_translations.__name__)
    )


def test_notes_are_those_of_the_translations_that_ask() -> None:
    registry = default_registry()
    records = [record for table in (registry.table, registry.complex_table) for row in table.values() for record in row]
    functions = [record for record in records if isinstance(record.function, FunctionType)]
    asking = {record.targets for record in functions if _asks(record.function, set())}
    assert asking - _INDIFFERENT == {record.targets for record in records if record.exact}, "@translates(exact=...)"


_TESTED_BESIDE_THEIR_OPERATORS = {
    "torchvision::roi_pool",
    "onnx::Attention.opset23",
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
}


def test_every_note_has_a_row() -> None:
    notes = {target.removeprefix("aten::") for target in default_registry().exact_notes() if overload_of(target)}
    assert notes - _TESTED_BESIDE_THEIR_OPERATORS == {target for row in ROWS for target in row.targets.split()}


def test_support_page_lists_the_notes() -> None:
    page = Path(__file__).parents[2] / "translations" / "SUPPORT.md"
    found = re.findall(r"^\| (\w+::[\w.]+) \| (.+) \|$", page.read_text(), re.MULTILINE)
    assert dict(found) == default_registry().exact_notes(), "run python -m benchmarks.op_coverage --notes"


def test_support_page_says_what_blocks_an_operator() -> None:
    page = Path(__file__).parents[2] / "translations" / "SUPPORT.md"
    rows = re.findall(r"^\| (\w[\w.]*) \|(.*)\| ([^|]*) \|$", page.read_text().partition("## Exact")[0], re.MULTILINE)
    limited = {
        name: reason
        for name, cells, reason in rows
        if re.search(r"\| (no|\d+/\d+) \|", f"|{cells}|") and name != "operator"
    }
    assert "to_sparse" in limited
    assert {name for name, reason in limited.items() if not reason.strip() or "not examined" in reason} == set()
