"""Invalid specs by name and by example, and the precedence of specs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import fxonnx
from fxonnx import ArgumentError

R = torch.rand


class Two(nn.Module):
    def forward(self, x: torch.Tensor, y: Any) -> Any:
        return [x * 2, *(value + 1 for value in torch.utils._pytree.tree_leaves(y))]


PAIR = (R(2, 3), [R(4, 3), R(4)])
NAMED = ["a", "b", "c"]

WRONG = [
    pytest.param({"dynamic_shapes": {"z": {0: "n"}}}, r"dynamic_shapes: 'z' is not a parameter of forward and matches no graph input\nhint: .*: x, y; the example has: x, y; the graph inputs are: x, y_0, y_1", id="unknown-key"),
    pytest.param({"dynamic_shapes": {"z.*": {0: "n"}, "x": {0: "n"}}}, r"dynamic_shapes: 'z\.\*' is not a parameter", id="pattern-of-nothing"),
    pytest.param({"dynamic_shapes": {7: {0: "n"}}}, r"dynamic_shapes: 7 is not a parameter", id="key-of-another-type"),
    pytest.param({"dynamic_shapes": {"d": {0: "n"}}, "input_names": NAMED}, r"dynamic_shapes: 'd' is not .*\nhint: .*the graph inputs are: a, b, c", id="user-names-are-listed"),
    pytest.param({"dynamic_shapes": {"y_1": {1: "n"}}}, r"dynamic_shapes: y\[1\] has shape \(4,\), so it has no axis 1\nhint: its axes are 0 to 0", id="axis-of-a-name"),
    pytest.param({"dynamic_shapes": {"*": {1: "n"}}}, r"dynamic_shapes: y\[1\] has shape \(4,\), so it has no axis 1", id="axis-of-a-pattern"),
    pytest.param({"dynamic_shapes": {"x": {0: "n"}}, "dynamic_axes": {"x": {0: "n"}}}, r"dynamic_axes: dynamic_shapes is also given\nhint: specify all dynamic dims in one of them", id="both"),
    pytest.param({"dynamic_axes": [{0: "n"}]}, r"dynamic_axes: expected a dict by names of inputs and outputs, got \[\{0: 'n'\}\]", id="axes-no-dict"),
    pytest.param({"dynamic_axes": {0: {0: "n"}}}, r"dynamic_axes: the key 0 is not the name of an input or output", id="axes-key"),
    pytest.param({"dynamic_axes": {"z": {0: "n"}}, "strict_shapes": True}, r"dynamic_axes: 'z' is neither an input nor an output\nhint: the inputs are: x, y_0, y_1; the outputs are: mul, add, add_1", id="axes-unknown"),
    pytest.param({"dynamic_axes": {"z": {0: "n"}}, "input_names": ["a"], "output_names": ["b"], "strict_shapes": True}, r"hint: the inputs are: a, y_0, y_1; the outputs are: b, add, add_1", id="axes-unknown-with-names"),
    pytest.param({"dynamic_axes": {"x": {2: "n"}}}, r"dynamic_axes: 'x' has shape \(2, 3\), so it has no axis 2", id="axes-axis"),
    pytest.param({"dynamic_axes": {"mul": {2: "n"}}}, r"dynamic_axes: 'mul' has shape \(2, 3\), so it has no axis 2", id="axes-axis-of-output"),
    pytest.param({"dynamic_axes": {"x": "n"}}, r"dynamic_axes: the spec of 'x' is 'n'\nhint: pass \{axis: name\} or \[axis, ...\]", id="axes-value"),
    pytest.param({"dynamic_axes": {"x": {"n": 0}}}, r"dynamic_axes: the spec of 'x' has the axis 'n'\nhint: pass \{axis: name\}", id="axes-reversed"),
    pytest.param({"dynamic_axes": {"x": {0: 7}}}, r"dynamic_axes: the name of axis 0 of 'x' is 7\nhint: pass a non-empty string", id="axes-name"),
    pytest.param({"more_inputs": [(R(3, 3), R(4))]}, r"more_inputs: expected pairs of a tuple and a dict, got a tuple and a Tensor\nhint: write \[\(\(x, y\), \{\}\), ...\]", id="more-no-kwargs"),
    pytest.param({"more_inputs": [R(3, 3)]}, r"more_inputs: expected pairs of args and kwargs, got a Tensor\nhint: write", id="more-no-pair"),
    pytest.param({"more_inputs": [((R(3, 3), [R(4, 3), R(4, 1)]), {})]}, r"more_inputs: y\[1\] is torch.float32 of shape \(4,\) in one call and torch.float32 of shape \(4, 1\) in another", id="more-rank"),
    pytest.param({"more_inputs": [((R(3, 3), [R(4, 3)]), {})]}, r"more_inputs: Positional argument 1 has 1 tensors in one call and 2 in another", id="more-structure"),
    pytest.param({"more_inputs": [((), {"q": R(3)})]}, r"more_inputs: a call does not match the signature \(x: .*unexpected keyword argument 'q'", id="more-keyword"),
    pytest.param({"more_inputs": [((R(5, 3), PAIR[1]), {})], "dynamic_shapes": {"x": {0: 2}}}, r"more_inputs: axis 0 of x is static in dynamic_shapes, but the examples have 2, 5\nhint: name it in dynamic_shapes", id="more-contradicts-int"),
    pytest.param({"more_inputs": [((R(5, 3), PAIR[1]), {})], "dynamic_shapes": {"x": {0: Dim.STATIC}}}, r"more_inputs: axis 0 of x is static in dynamic_shapes", id="more-contradicts-static"),
    pytest.param({"more_inputs": [((R(9, 3), PAIR[1]), {})], "dynamic_shapes": {"x": {0: Dim("n", max=8)}}}, r"the spec of axis 0 of x is Dim\('n', min=0, max=8\), but the example has 9", id="more-out-of-range"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "match"), WRONG)
def test_invalid_specs(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        fxonnx.torch_onnx_export(Two().eval(), PAIR, **options)


def dims(program: fxonnx.ONNXProgram) -> dict[str, list[str]]:
    graph = program.model.graph
    return {str(value.name): [str(dim) for dim in value.shape or ()] for value in [*graph.inputs, *graph.outputs]}


def test_parameters_take_precedence_over_names_and_names_over_patterns() -> None:
    shapes = {"*": {0: "third", 1: "last"}, "y_0": {0: "second"}, "x": {0: "first", 1: Dim.STATIC}}
    program = fxonnx.export(Two().eval(), (R(2, 3), [R(4, 3), R(4, 5)]), dynamic_shapes=shapes)
    found = dims(program)
    assert (found["x"], found["y_0"], found["y_1"]) == (["first", "3"], ["second", "last"], ["third", "last_1"])


class Found(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[x > 0], torch.cat([x, x])


@pytest.mark.parametrize("as_program", [False, True], ids=["module", "ExportedProgram"])
def test_dynamic_axes_name_dims_of_outputs(as_program: bool) -> None:
    axes = {"x": {0: "n"}, "found": {0: "count"}, "both": {0: "twice"}}
    x = torch.randn(6)
    model: Any = Found().eval()
    if as_program:
        model = torch.export.export(model, (x,), dynamic_shapes=({0: Dim.DYNAMIC},))
    program = fxonnx.torch_onnx_export(model, (x,), dynamic_axes=axes, output_names=["found", "both"])
    assert dims(program) == {"x": ["n"], "found": ["count"], "both": ["twice"]}


def test_an_exported_program_accepts_names_but_not_more_inputs() -> None:
    exported = torch.export.export(Two().eval(), PAIR, dynamic_shapes=({0: Dim.DYNAMIC}, [None, None]))
    program = fxonnx.export(exported, dynamic_shapes={"a": {0: "n"}}, input_names=NAMED)
    assert dims(program)["a"] == ["n", "3"]
    with pytest.raises(
        ArgumentError, match=r"more_inputs: the dims of an ExportedProgram are already fixed or dynamic\nhint: pass"
    ):
        fxonnx.export(exported, more_inputs=[(PAIR, {})])


def test_all_examples_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    verify = fxonnx.ONNXProgram.verify
    monkeypatch.setattr(
        fxonnx.ONNXProgram, "verify", lambda self, *args, **kwargs: calls.append(args) or verify(self, *args, **kwargs)
    )
    fxonnx.export(Two().eval(), PAIR, more_inputs=[((R(7, 3), PAIR[1]), {})], verify=True)
    assert len(calls) == 2
    assert calls[1][0][0].shape == (7, 3)
