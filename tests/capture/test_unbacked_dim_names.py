"""Names and source lines of dims that depend on the values of inputs."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxonnx
from tests.functions import Function

X = torch.rand(2, 10, 5)


class Detector(nn.Module):
    """The boxes above a score, for each of two images."""

    def forward(self, images: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        found = []
        for image in images:
            keep = (image[:, 4] > 0.5).nonzero().squeeze(1)
            found.append({"boxes": image[keep, :4], "scores": image[keep, 4], "labels": keep})
        return found


class Selected(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"boxes": x[x > 0.5]}


def shapes(program: fxonnx.ONNXProgram) -> dict[str, list[Any]]:
    return {
        str(output.name): [dim if isinstance(dim, int) else dim.value for dim in output.shape or ()]
        for output in program.model.graph.outputs
    }


@pytest.mark.parametrize(("name", "first", "second"), [("anchors", "", "_1"), ("num_detections", "_1", "_2")])
def test_the_number_of_detections(name: str, first: str, second: str) -> None:
    program = fxonnx.export(Detector().eval(), (X,), dynamic_shapes={"images": {1: name}}, verify="auto")
    expected = {}
    for image, number in enumerate((first, second)):
        dim = f"num_detections{number}"
        expected |= {f"{image}.boxes": [dim, 4], f"{image}.scores": [dim], f"{image}.labels": [dim]}
    assert shapes(program) == expected
    other = torch.rand(2, 7, 5)
    for result, value in zip(program(other), [one for part in Detector()(other) for one in part.values()], strict=True):
        torch.testing.assert_close(result, value)


def test_names_of_the_user_come_first() -> None:
    axes = {"images": {1: "anchors"}, "boxes": {0: "found"}}
    program = fxonnx.torch_onnx_export(Detector().eval(), (X,), output_names=["boxes"], dynamic_axes=axes, dynamo=True)
    assert shapes(program)["boxes"] == ["found", 4]


def test_other_dims_have_a_line(tmp_path: Path) -> None:
    program = fxonnx.export(
        Selected().eval(), (X,), diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path)
    )
    assert shapes(program) == {"boxes": ["u0"]}
    (page,) = tmp_path.glob("*.md")
    for text in (page.read_text(), program._repr_html_()):
        assert "u0: aten.index.Tensor at " in text or "u0: aten.nonzero at " in text
        assert f"{Path(__file__).name}:" in text


@pytest.mark.parametrize(
    ("function", "dims"),
    [
        (lambda x: x[0, 0].nonzero().squeeze(), ["u0"]),
        (lambda x: x[0, 0].nonzero().squeeze(0), ["u0"]),
        (lambda x: torch.bincount(x[0, 0].long()).squeeze(-1), ["u0"]),
        (lambda x: x[0, 0].nonzero().squeeze(1), []),
        (lambda x: torch.cat([x[0, 0].nonzero(), x[0].long()[:2, :1]]).squeeze(), []),
        (lambda x: x[:1].squeeze(), []),
    ],
    ids=["all", "axis", "bincount", "other axis", "at least 2", "size of an input"],
)
def test_squeezes_of_data_dependent_dims_are_warned_about(function: Any, dims: list[str]) -> None:
    """torch.export keeps these dims, which eager torch removes at size 1."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        fxonnx.export(Function(function).eval(), (torch.rand(2, 10, 5) + 1,), dynamic_shapes=({2: "n"},))
    found = [str(one.message) for one in caught if "squeezes dims whose sizes depend on values" in str(one.message)]
    assert [line.split()[0] for message in found for line in message.splitlines()[1:-1]] == dims
    assert all(re.search(r" at \S+\.py:\d+\nhint: name the axis", one) for one in found)
