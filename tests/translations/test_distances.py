"""Distances of pairs of rows, by differences and by products: torch decides by the number of rows."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch

import fxonnx

from ..functions import VariadicFunction

MODES = ("use_mm_for_euclid_dist_if_necessary", "donot_use_mm_for_euclid_dist", "use_mm_for_euclid_dist")


@pytest.mark.parametrize("rows", [(5, 25), (5, 26), (40, 7), (30, 40)])
@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_distances_to_itself_are_those_of_torch(rows: tuple[int, int], is_dynamic: bool, tmp_path: Path) -> None:
    """Where torch multiplies, the distance of a row to itself is not 0; with few rows it is."""
    model = VariadicFunction(torch.cdist).eval()
    x = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
    examples = (x[:30], x) if is_dynamic else (x[: rows[0]], x[: rows[1]])
    dims = (({0: "n"}, {0: "m"}),) if is_dynamic else None
    fxonnx.export(model, examples, tmp_path / "m.onnx", dynamic_shapes=dims)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    call = [x[: rows[0]], x[: rows[1]]]
    feeds = {node.name: value.numpy() for node, value in zip(session.get_inputs(), call, strict=True)}
    # The root of the rounding error of a product of numbers up to 3.
    noise = 1e-3 if max(rows) > 25 else 1e-6
    torch.testing.assert_close(torch.from_numpy(session.run(None, feeds)[0]), torch.cdist(*call), rtol=1e-4, atol=noise)


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str) -> None:
    x, y = torch.randn(2, 30, 4), torch.randn(2, 6, 4)
    program = fxonnx.export(VariadicFunction(lambda x, y: torch.cdist(x, y, compute_mode=mode)).eval(), (x, y))
    torch.testing.assert_close(program(x, y)[0], torch.cdist(x, y, compute_mode=mode), rtol=1e-4, atol=1e-5)
    products = [node for node in program.model.graph if node.op_type == "MatMul"]
    assert len(products) == (mode != MODES[1])


def test_no_tensor_of_all_differences() -> None:
    """A codebook of a quantizer: the differences would take 4 GiB."""
    program = fxonnx.export(VariadicFunction(torch.cdist).eval(), (torch.zeros(4096, 256), torch.zeros(1024, 256)))
    shapes = [value.shape.numpy() for node in program.model.graph for value in node.outputs if value.shape is not None]
    assert max(torch.Size(shape).numel() for shape in shapes) == 4096 * 1024
