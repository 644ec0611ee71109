"""Dynamic models at all small sizes, with empty slices, negative limits and divisors of 0."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch.nn.functional import local_response_norm

import fxonnx
from tests.functions import Function
from tests.fuzz.recorded import Recorded

SMALL = range(1, 9)


@dataclass(frozen=True)
class Case:
    """One model of one tensor.

    Attributes:
        name: Description.
        function: The model.
        shape: Sizes of its input at export; axis 0 is dynamic.
        sizes: Sizes of axis 0 that the program is run at.
        refused: The sizes at which the call must be rejected.
        axes: The dynamic axes.
        opset: Target opset.
    """

    name: str
    function: Callable[[torch.Tensor], Any]
    shape: tuple[int, ...] = (5,)
    sizes: tuple[int, ...] = tuple(SMALL)
    refused: tuple[int, ...] = ()
    axes: tuple[int, ...] = (0,)
    opset: int | None = None

    def __str__(self) -> str:
        return self.name


def _written(text: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A model that runs one statement on a copy of its input."""
    found: dict[str, Any] = {"torch": torch}
    exec(f"def function(x):\n    x = x.clone()\n    {text}\n    return x", found)
    return found["function"]  # type: ignore[no-any-return]


WRITES = (
    "x[-2:2] = -1",
    "x[2:-2] = -1",
    "x[1:-1] = -1",
    "x[3:x.shape[0] // 2] = -1",
    "x[x.shape[0] - 3:2] = -1",
    "x[x.shape[0] - 4:] = -1",
    "x[-3:x.shape[0] - 2:2] = -1",
    "x[x.shape[0] - 4::2] = -1",
    "x[-3::2] = -1",
    "x[2:-1:2] = -1",
    "x[-4:-2] = -1",
    "x[-2:-4] = -1",
    "x[:x.shape[0] - 2] = -1",
    "x[2:] = -1",
    "x[-2:] = -1",
)
CASES = (
    *(Case(text, _written(text)) for text in WRITES),
    Case("start of either sign", lambda x: x[-(7 - x.shape[0]) :]),
    Case("start of either sign, with a step", lambda x: x[-(7 - x.shape[0]) :: 2]),
    Case("end of either sign", lambda x: x[: 3 - x.shape[0]]),
    Case("both of either sign", lambda x: x[x.shape[0] - 4 : x.shape[0] - 2]),
    Case("narrow from either side", lambda x: x.narrow(0, x.shape[0] - 4, 1), sizes=(2, 3, 4, 5, 8)),
    Case("narrow to the end", lambda x: x.narrow(0, x.shape[0] - 7, 2)),
    Case("select of either sign", lambda x: x[x.shape[0] - 3], sizes=(2, 3, 4, 5, 8)),
)
BROADCAST = (
    # A guard keeps the first size at 1: the result has the other one.
    Case("floor_divide", lambda x: torch.full((x.shape[0] // 2, 1), 2.5) // (x + 1), (2, 3), (2, 3)),
    Case("remainder", lambda x: torch.full((x.shape[0] // 2, 1), 2.5) % (x + 1), (2, 3), (2, 3)),
    Case("matmul", lambda x: torch.tanh(x[: x.shape[0] // 2]) @ x.mT, (2, 4, 3), (2, 3)),
)
FROM_ZERO = (0, 1, 2, 6)
EMPTY = (
    # ONNX Runtime computes these as torch does.
    Case("roll", lambda x: x.roll(2), sizes=FROM_ZERO),
    Case("roll by a size", lambda x: x.roll(x.shape[0] // 2), sizes=FROM_ZERO),
    Case("roll at an old opset", lambda x: x.roll(2), sizes=FROM_ZERO, opset=11),
    Case("sum along the last axis", lambda x: (x.sum(-1), x.sum((-2, -1)), x.amax(-1)), (5, 3), FROM_ZERO),
    Case("sum along the last axis, at an old opset", lambda x: x.sum((0, -1)), (5, 3), FROM_ZERO, opset=11),
    Case(
        "attention with a mask",
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=x @ x.mT > 0),
        (5, 3, 4),
        FROM_ZERO,
    ),
    Case(
        "heads", lambda x: x.transpose(0, 1).reshape(x.shape[1], x.shape[0] * 2, 3), (5, 4, 6), FROM_ZERO, (0,), (0, 1)
    ),
    Case("first of all", lambda x: torch.cat([x[:1], x]), sizes=FROM_ZERO, refused=(0,)),
    Case("a third, rounded up", lambda x: torch.ones(-(-x.shape[0] // 3)), sizes=FROM_ZERO, refused=(0,)),
    Case("normalized over channels", lambda x: local_response_norm(x, 2), (6, 5, 3), FROM_ZERO, (0,), (1,)),
    Case("sum", lambda x: (x.sum(0), x.prod(0), x.logsumexp(0)), sizes=FROM_ZERO),
    Case("cumsum", lambda x: x.cumsum(0), sizes=FROM_ZERO),
    Case("batch of a mean", lambda x: x.mean(1), (5, 3), FROM_ZERO),
    Case("softmax", lambda x: x.softmax(-1), (5, 3), FROM_ZERO),
    Case("tokens flattened", lambda x: x.reshape(-1, 4) * 2, (5, 3, 4), FROM_ZERO),
    Case("past concatenated", lambda x: torch.cat([x, torch.ones(2, 3)]).mean(0), (5, 3), FROM_ZERO),
    # torch returns NaN, or the captured shape is valid from size 1 on, or a kernel needs an element.
    Case("mean", lambda x: x.mean(0), sizes=FROM_ZERO, refused=(0,)),
    Case("variance", lambda x: x.var(0, unbiased=False), sizes=FROM_ZERO, refused=(0,)),
    Case("nothing between the last two", lambda x: x[-1:-2] * 2, sizes=FROM_ZERO, refused=(0,)),
    Case("from the last one, with a step", lambda x: x[-2:1:2] * 2, sizes=FROM_ZERO, refused=(0,)),
    Case("the last ones up to a position", lambda x: x[-1:3] * 2, sizes=FROM_ZERO, refused=(0,)),
    Case("as many of the columns as rows", lambda x: x[:, -x.shape[0] :] * 2, (5, 3), FROM_ZERO, refused=(0,)),
    Case("written from the last one to a position", _written("x[:, -1:1] = -1"), (6, 3), FROM_ZERO, (0,), (1,)),
    Case("written to the first one", _written("x[:1] = -1"), (5, 3), FROM_ZERO, refused=(0,)),
    Case("written to the first one, with a step", _written("x[:1:3] = -1"), (5, 3), FROM_ZERO, refused=(0,)),
    Case("all but one", lambda x: x[1:] * 2, sizes=FROM_ZERO, refused=(0,)),
    Case("maximum so far", lambda x: x.cummax(0)[0], sizes=FROM_ZERO, refused=(0,)),
    Case("maximum so far in rows", lambda x: x.cummax(1)[0], (5, 3), FROM_ZERO, refused=(0,)),
    Case("logarithm of sums so far", lambda x: x.logcumsumexp(-1), (5, 3), FROM_ZERO, refused=(0,)),
    Case("row of maxima", lambda x: x.argmax(0), (5, 3), FROM_ZERO, refused=(0,)),
    Case("product of two sizes", lambda x: x.reshape(x.shape[0], -1), (5, 3, 4), FROM_ZERO, (0,), axes=(0, 1)),
    Case("nothing of the first", lambda x: x[:1, 2:2].mT, (5, 3, 4), FROM_ZERO, refused=(0,)),
    Case(
        "remainder of one less", lambda x: torch.arange(torch.arange(x.shape[0] - 1).shape[0] % 3), sizes=(1, 2, 3, 6)
    ),
    Case("einsum", lambda x: torch.einsum("btc,bsc->bts", x, x), (5, 3, 4), FROM_ZERO),
    Case("derived size of 0", lambda x: x[: x.shape[0] % 3].cummin(0)[0], sizes=(0, 1, 2, 3, 6), refused=(0, 3, 6)),
    Case(
        "circular padding",
        lambda x: torch.nn.functional.pad(x, (1, 1), mode="circular"),
        (5, 3, 4),
        FROM_ZERO,
        refused=(0,),
        opset=20,
    ),
    Case("median", lambda x: (x.median(), x.nanmedian()), (5, 3), FROM_ZERO, refused=(0,)),
    Case(
        "grid of first ones",
        lambda x: torch.meshgrid(x.flatten()[:3], x.flatten()[:2], indexing="ij")[0],
        (5, 4),
        FROM_ZERO,
        refused=(0,),
    ),
    Case("group norm", lambda x: torch.nn.functional.group_norm(x, 2), (5, 4, 3), FROM_ZERO, refused=(0,)),
    Case("pooling", lambda x: torch.nn.functional.adaptive_max_pool1d(x.mT, 2), (6, 5, 3), FROM_ZERO),
    # ONNX Runtime ends the process: it fuses the Transpose into the MatMul and divides by the size.
    Case("matmul of heads", lambda x: x.transpose(0, 1) @ torch.ones(3, 4, 2), (5, 3, 4), FROM_ZERO, refused=(0,)),
    Case("matmul with heads", lambda x: torch.ones(3, 2, 4) @ x.permute(1, 2, 0), (5, 3, 4), FROM_ZERO, refused=(0,)),
    # The fused kernel leaves the products uninitialized.
    Case("products of columns", lambda x: x.mT @ x, (5, 3, 4), FROM_ZERO, (0,), (1,)),
    Case("products of rows", lambda x: x @ x.mT, (5, 3, 4), FROM_ZERO, (0,), (2,)),
    Case("products of heads", lambda x: x.transpose(0, 1) @ x.permute(1, 2, 0), (5, 3, 4), FROM_ZERO, (0,), (2,)),
    Case("last of a GRU", torch.nn.GRU(3, 4).eval(), (6, 5, 3), FROM_ZERO, (0,), axes=(1,)),
)


@pytest.mark.parametrize("dim", ["size", torch.export.Dim.DYNAMIC], ids=["named", "unnamed"])
@pytest.mark.parametrize("case", EMPTY, ids=str)
def test_empty_tensors(case: Case, dim: Any, tmp_path: Path) -> None:
    _check(case, tmp_path, dim)


def test_requirements_do_not_restrict_more_than_necessary(recwarn: pytest.WarningsRecorder) -> None:
    program = fxonnx.export(Function(lambda x: x.mean(0)).eval(), (torch.ones(5),), dynamic_shapes=({0: "size"},))
    assert program.record.constraints == ()
    assert [str(one.message) for one in recwarn if one.category is UserWarning] == []
    with pytest.raises(
        fxonnx.ArgumentError, match=r"x: the model requires size >= 1, got size = 0: Reduce\w+ does not sup"
    ) as caught:
        program(torch.ones(0))
    assert caught.value.hint == "skip the call for empty inputs"
    program.rename_axes({"size": "length"})
    with pytest.raises(fxonnx.ArgumentError, match="the model requires length >= 1, got length = 0"):
        program(torch.ones(0))


def test_requirements_are_in_the_metadata() -> None:
    program = fxonnx.export(Function(lambda x: x.mean(0)).eval(), (torch.ones(5),), dynamic_shapes=({0: "size"},))
    reason = "ReduceMean does not support empty tensors in ONNX Runtime"
    expected = {"constraint": "size >= 1", "dims": ["size"], "code": None, "reason": reason}
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    assert json.loads(session.get_modelmeta().custom_metadata_map["pkg.fxonnx.constraints"]) == [expected]
    program.rename_axes({"size": "length"})
    found = json.loads(program.model.metadata_props["pkg.fxonnx.constraints"])
    assert found == [{**expected, "constraint": "length >= 1", "dims": ["length"]}]


def test_intermediate_tensors_that_must_not_be_empty(recwarn: pytest.WarningsRecorder) -> None:
    model = Function(lambda x: x[: x.shape[0] // 2].mean(0)).eval()
    program = fxonnx.export(model, (torch.ones(5),), dynamic_shapes=({0: "size"},))
    text = "size >= 2\n    ReduceMean does not support empty tensors in ONNX Runtime"
    assert text in str(recwarn.pop(UserWarning).message)
    with pytest.raises(
        fxonnx.ArgumentError, match="the model requires size >= 2, got size = 1: ReduceMean does"
    ) as caught:
        program(torch.ones(1))
    assert caught.value.hint == "an intermediate tensor is empty at this size"


@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
@pytest.mark.parametrize("case", BROADCAST, ids=str)
def test_sizes_that_a_guard_keeps_at_1_are_broadcast(case: Case, tmp_path: Path) -> None:
    _check(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_small_sizes(case: Case, tmp_path: Path) -> None:
    _check(case, tmp_path)


def _check(case: Case, tmp_path: Path, dim: Any = "size") -> None:
    def example(size: int) -> torch.Tensor:
        shape = [size if axis in case.axes else length for axis, length in enumerate(case.shape)]
        return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape) / 4

    model = Function(case.function).eval()
    path = tmp_path / "model.onnx"
    traced = case.shape[case.axes[0]]
    program = fxonnx.export(
        model, (example(traced),), path, dynamic_shapes=(dict.fromkeys(case.axes, dim),), opset_version=case.opset
    )
    session, recorded = onnxruntime.InferenceSession(path), Recorded(onnx.load(path))
    for size in (traced, *case.sizes):
        x = example(size)
        if size in case.refused:
            with pytest.raises(fxonnx.ArgumentError, match="the model requires"):
                program(x)
            continue
        try:
            expected = torch.utils._pytree.tree_leaves(model(x))
        except (RuntimeError, IndexError):
            # Eager torch fails at this size.
            continue
        found = [torch.from_numpy(value) for value in session.run(None, {"x": x.numpy()})]
        torch.testing.assert_close(found, expected, equal_nan=True, msg=lambda text, size=size: f"size {size}: {text}")
        torch.testing.assert_close(list(program(x)), expected, equal_nan=True)
        assert recorded.differences({"x": x.numpy()}) == []
