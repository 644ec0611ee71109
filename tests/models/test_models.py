"""Every model of the zoo through all stages: torch.export, fxonnx, the ONNX checker, and ONNX Runtime against eager."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import fxonnx

from ..hygiene import check_graph
from .zoo import CASES, Case

METADATA = (
    "namespace",
    "pkg.torch.onnx.class_hierarchy",
    "pkg.torch.onnx.fx_node",
    "pkg.torch.onnx.name_scopes",
    "pkg.torch.onnx.stack_trace",
)


@dataclass(frozen=True)
class Example:
    """A built model and its example inputs, shared by all tests of its case."""

    case: Case
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def export(self, *, dynamic: bool) -> fxonnx.ONNXProgram:
        return fxonnx.export(
            self.model,
            self.args,
            kwargs=self.kwargs,
            dynamic_shapes=self.case.dynamic_shapes if dynamic else None,
            input_names=self.case.input_names,
            output_names=self.case.output_names,
        )


@pytest.fixture(scope="module", params=[pytest.param(case, id=case.name, marks=case.marks) for case in CASES])
def example(request: pytest.FixtureRequest) -> Example:
    case: Case = request.param
    return Example(case, *case.example())


def _check_file(program: fxonnx.ONNXProgram, path: Path) -> None:
    try:
        program.save(path)
        check_graph(onnx.load(path))
    finally:
        # The larger models take half a gigabyte each.
        path.unlink(missing_ok=True)


def compare(example: Example, program: fxonnx.ONNXProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with torch.no_grad():
        expected = [leaf for leaf in pytree.tree_leaves(example.model(*args, **kwargs)) if leaf is not None]
    found = program(*args, **kwargs)
    assert len(found) == len(expected)
    for index, (ours, reference) in enumerate(zip(found, expected, strict=True)):
        assert ours.dtype == reference.dtype, f"output {index}"
        assert ours.shape == reference.shape, f"output {index}"
        scale = reference.abs().max().item()
        error = (ours - reference).abs().max().item()
        # A comparison that fails for NaN.
        assert 0 < scale < float("inf"), f"output {index}: the reference is useless, its scale is {scale}"
        assert error <= example.case.tolerance * scale, f"output {index}: error {error:.3g} at scale {scale:.3g}"


def _check_names(example: Example, program: fxonnx.ONNXProgram) -> None:
    """Check names: inputs and outputs by torch, the user or result fields, initializers by the state_dict."""
    signature = program.exported_program.graph_signature
    inputs = example.case.input_names or signature.user_inputs
    # The keys of a dict or of a ModelOutput of transformers; None for a tuple.
    fields = program.exported_program.call_spec.out_spec.context
    outputs = example.case.output_names or fields or signature.user_outputs
    assert [value.name for value in program.model.graph.inputs] == list(inputs)
    assert [value.name for value in program.model.graph.outputs] == [name for name in outputs if name is not None]
    weights = {*example.model.state_dict(), *dict(example.model.named_buffers()), *program.exported_program.constants}
    for name in program.model.graph.initializers:
        source, separator, derivation = name.partition("::")
        is_weight = source in weights and bool(separator) == bool(derivation)
        assert is_weight or re.fullmatch(r"const_\d+", name), name


def _check_types(program: fxonnx.ONNXProgram) -> None:
    """Check that every value has a type and a shape."""
    graph = program.model.graph
    values = [*graph.inputs, *graph.initializers.values()]
    for node in graph.all_nodes():
        values += [output for output in node.outputs if output.name]
    untyped = [value.name for value in values if value.type is None or value.shape is None]
    assert untyped == []


def _check_metadata(example: Example, program: fxonnx.ONNXProgram) -> None:
    """Check that every node has the module scope and source location it comes from."""
    root = f"{type(example.model).__module__}.{type(example.model).__qualname__}"
    for node in program.model.graph.all_nodes():
        metadata = node.metadata_props
        assert [key for key in METADATA if key not in metadata] == [], node
        assert metadata["namespace"].startswith(f": {root}"), node
        assert metadata["pkg.torch.onnx.class_hierarchy"].startswith(f"['{root}'"), node
        assert metadata["pkg.torch.onnx.name_scopes"].startswith("[''"), node
        assert metadata["pkg.torch.onnx.fx_node"].startswith("%"), node
        assert "File " in metadata["pkg.torch.onnx.stack_trace"], node


def _check_dynamic_dims(example: Example, program: fxonnx.ONNXProgram) -> None:
    """Check that dynamic dims of the inputs have the user's names and all others are static."""
    specs = pytree.tree_leaves(
        example.case.dynamic_shapes,
        is_leaf=lambda spec: isinstance(spec, dict) and all(type(key) is int for key in spec),
    )
    for spec, value in zip(specs, program.model.graph.inputs, strict=True):
        for axis, dim in enumerate(value.shape):
            wanted = (spec or {}).get(axis)
            if wanted is None:
                assert isinstance(dim, int), f"{value.name}, axis {axis}: {dim}"
            else:
                # Two dims of one name that are not provably equal are numbered.
                assert re.fullmatch(rf"{wanted}(_\d+)?", str(dim)), f"{value.name}, axis {axis}: {dim}"


def test_static(example: Example, tmp_path: Path) -> None:
    program = example.export(dynamic=False)
    _check_file(program, tmp_path / "model.onnx")
    compare(example, program, example.args, example.kwargs)
    _check_names(example, program)
    _check_types(program)
    _check_metadata(example, program)


def test_dynamic(example: Example, tmp_path: Path) -> None:
    program = example.export(dynamic=True)
    _check_file(program, tmp_path / "model.onnx")
    compare(example, program, example.args, example.kwargs)
    compare(example, program, *example.case.second_inputs())
    _check_names(example, program)
    _check_types(program)
    _check_metadata(example, program)
    _check_dynamic_dims(example, program)
