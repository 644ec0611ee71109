"""Types that an operator does not take are computed in a wider one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fxonnx
from fxonnx_translations.kernels import NO_KERNEL
from fxonnx_translations.opschema import facts_of

from .harness import Case, T, run

_BFLOAT16 = torch.bfloat16

CASES = (
    Case("aten.add.Tensor", lambda x: x + 1.5, (T(("n", 3), _BFLOAT16),), ops=("Cast", "Add", "Cast")),
    Case("aten.linear.default", lambda x, w: F.linear(x, w), (T(("n", 3), _BFLOAT16), T((2, 3), _BFLOAT16))),
    Case("aten.gt.Scalar", lambda x: x > 0, (T(("n", 3), _BFLOAT16),), ops=("Cast", "Greater")),
    Case("aten.softmax.int", lambda x: x.softmax(-1), (T(("n", 3), _BFLOAT16),)),
    Case("aten.acos.default", torch.acos, (T(("n", 3), _BFLOAT16, -1, 1),), "not in the schema", opset=18),
    # Each operator rounds: two steps are not one in the wider type.
    Case(
        "aten.mul.Tensor",
        lambda x: (x + 256) * 3,
        (T(("n", 3), _BFLOAT16),),
        "rounds twice",
        ops=("Cast", "Add", "Cast", "Cast", "Mul", "Cast"),
        rtol=0,
        atol=0,
    ),
    Case("aten.relu.default", torch.relu, (T(("n", 3), torch.int64),)),
    Case(
        "aten.where.self", lambda x, y: torch.where(x > 0, x, y), (T(("n", 3), torch.int16), T(("n", 3), torch.int16))
    ),
    Case(
        "aten.maximum.default",
        torch.maximum,
        (T(("n", 3), torch.int16), T(("n", 3), torch.int16)),
        ops=("Cast", "Cast", "Max", "Cast"),
    ),
    Case("aten.tril.default", lambda x: x.tril(), (T((3, 3), torch.int8, -100, 100),)),
    Case("aten.add.Tensor", lambda x: x + x, (T(("n", 3), torch.int8, -100, 100),), "wraps around"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_wider(case: Case) -> None:
    run(case)


def test_nothing_is_cast_that_has_a_kernel() -> None:
    program = fxonnx.export(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()).eval(), (torch.ones(2, 3),))
    assert [node.op_type for node in program.model.graph] == ["Gemm", "Relu"]


def test_the_table_names_operators_of_onnx() -> None:
    assert [name for name in NO_KERNEL if all(facts_of(name, opset) is None for opset in (11, 20, 23, 24))] == []
