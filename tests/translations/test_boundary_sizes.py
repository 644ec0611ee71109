"""Dynamic models at every small size: where slices get empty, limits negative and divisors 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnxruntime
import pytest
import torch

import fxonnx
from tests.functions import Function

SMALL = range(1, 9)


@dataclass(frozen=True)
class Case:
    """One model of one tensor.

    Attributes:
        name: What it does.
        function: The model.
        shape: Sizes of its input at export; axis 0 is dynamic.
        sizes: Sizes of axis 0 that the program is run at.
        refused: Those of them at which a call has to be refused.
        axes: The dynamic axes.
    """

    name: str
    function: Callable[[torch.Tensor], Any]
    shape: tuple[int, ...] = (5,)
    sizes: tuple[int, ...] = tuple(SMALL)
    refused: tuple[int, ...] = ()
    axes: tuple[int, ...] = (0,)

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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_small_sizes(case: Case, tmp_path: Any) -> None:
    def example(size: int) -> torch.Tensor:
        shape = [size if axis in case.axes else length for axis, length in enumerate(case.shape)]
        return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape) / 4

    model = Function(case.function).eval()
    path = tmp_path / "model.onnx"
    traced = case.shape[case.axes[0]]
    program = fxonnx.export(model, (example(traced),), path, dynamic_shapes=(dict.fromkeys(case.axes, "size"),))
    session = onnxruntime.InferenceSession(path)
    for size in (traced, *case.sizes):
        x = example(size)
        if size in case.refused:
            with pytest.raises(fxonnx.ArgumentError, match="the model was exported for"):
                program(x)
            continue
        try:
            expected = torch.utils._pytree.tree_leaves(model(x))
        except (RuntimeError, IndexError):
            # The model itself does not run at this size.
            continue
        found = [torch.from_numpy(value) for value in session.run(None, {"x": x.numpy()})]
        torch.testing.assert_close(found, expected, equal_nan=True, msg=lambda text, size=size: f"size {size}: {text}")
        torch.testing.assert_close(list(program(x)), expected, equal_nan=True)
