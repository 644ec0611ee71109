"""Every model of the zoo through the whole path: torch.export, fxonnx, the ONNX checker, ONNX Runtime against eager."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import fxonnx

from .zoo import CASES, Case

METADATA = (
    "namespace",
    "pkg.torch.onnx.class_hierarchy",
    "pkg.torch.onnx.fx_node",
    "pkg.torch.onnx.name_scopes",
    "pkg.torch.onnx.stack_trace",
)
DETERMINISM = ("mlp", "word_language_model_lstm", "word_language_model_transformer", "swin_t")


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


# One group per case: under xdist, the tests of a case share one worker and so one model and its two exports.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(case, id=case.name, marks=(pytest.mark.xdist_group(case.name), *case.marks)) for case in CASES
    ],
)
def example(request: pytest.FixtureRequest) -> Example:
    case: Case = request.param
    return Example(case, *case.example())


@pytest.fixture(scope="module")
def static(example: Example) -> Iterator[fxonnx.ONNXProgram]:
    program = example.export(dynamic=False)
    yield program
    program.release()


@pytest.fixture(scope="module")
def dynamic(example: Example) -> Iterator[fxonnx.ONNXProgram]:
    program = example.export(dynamic=True)
    yield program
    program.release()


def _check_file(program: fxonnx.ONNXProgram, path: Path) -> None:
    try:
        program.save(path)
        onnx.checker.check_model(path, full_check=True)
    finally:
        # The larger models take half a gigabyte each.
        path.unlink(missing_ok=True)


def _compare(example: Example, program: fxonnx.ONNXProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with torch.no_grad():
        expected = [leaf for leaf in pytree.tree_leaves(example.model(*args, **kwargs)) if leaf is not None]
    found = program(*args, **kwargs)
    assert len(found) == len(expected)
    for index, (ours, reference) in enumerate(zip(found, expected, strict=True)):
        assert ours.dtype == reference.dtype, f"output {index}"
        assert ours.shape == reference.shape, f"output {index}"
        scale = reference.abs().max().item()
        error = (ours - reference).abs().max().item()
        # Written so that NaN fails.
        assert 0 < scale < float("inf"), f"output {index}: the reference is useless, its scale is {scale}"
        assert error <= example.case.tolerance * scale, f"output {index}: error {error:.3g} at scale {scale:.3g}"


def _values(program: fxonnx.ONNXProgram) -> Iterator[ir.Value]:
    yield from program.model.graph.inputs
    yield from program.model.graph.initializers.values()
    for node in program.model.graph.all_nodes():
        yield from (output for output in node.outputs if output.name)


def test_static(example: Example, static: fxonnx.ONNXProgram, tmp_path: Path) -> None:
    _check_file(static, tmp_path / "model.onnx")
    _compare(example, static, example.args, example.kwargs)


def test_dynamic(example: Example, dynamic: fxonnx.ONNXProgram, tmp_path: Path) -> None:
    _check_file(dynamic, tmp_path / "model.onnx")
    _compare(example, dynamic, example.args, example.kwargs)
    _compare(example, dynamic, *example.case.second_inputs())


def test_dynamic_dims_have_the_users_names(example: Example, dynamic: fxonnx.ONNXProgram) -> None:
    specs = pytree.tree_leaves(
        example.case.dynamic_shapes,
        is_leaf=lambda spec: isinstance(spec, dict) and all(type(key) is int for key in spec),
    )
    inputs = dynamic.model.graph.inputs
    for spec, value in zip(specs, inputs, strict=True):
        for axis, dim in enumerate(value.shape):
            wanted = (spec or {}).get(axis)
            if wanted is None:
                assert isinstance(dim, int), f"{value.name}, axis {axis}: {dim}"
            else:
                # Two dims of one name that nothing proves equal are numbered.
                assert re.fullmatch(rf"{wanted}(_\d+)?", str(dim)), f"{value.name}, axis {axis}: {dim}"


def test_inputs_and_outputs_have_the_names_of_torch_or_of_the_user(
    example: Example, static: fxonnx.ONNXProgram
) -> None:
    signature = static.exported_program.graph_signature
    inputs = example.case.input_names or signature.user_inputs
    outputs = example.case.output_names or signature.user_outputs
    assert [value.name for value in static.model.graph.inputs] == list(inputs)
    assert [value.name for value in static.model.graph.outputs] == [name for name in outputs if name is not None]


def test_initializers_are_named_after_the_state_dict(example: Example, static: fxonnx.ONNXProgram) -> None:
    weights = {*example.model.state_dict(), *dict(example.model.named_buffers()), *static.exported_program.constants}
    for name in static.model.graph.initializers:
        source, _, derivation = name.partition("::")
        is_weight = source in weights and (derivation != "" or "::" not in name)
        assert is_weight or re.fullmatch(r"const_\d+", name), name


def test_every_value_has_a_type_and_a_shape(static: fxonnx.ONNXProgram) -> None:
    untyped = [value.name for value in _values(static) if value.type is None or value.shape is None]
    assert untyped == []


def test_every_node_tells_where_it_comes_from(example: Example, static: fxonnx.ONNXProgram) -> None:
    root = f"{type(example.model).__module__}.{type(example.model).__qualname__}"
    for node in static.model.graph.all_nodes():
        metadata = node.metadata_props
        missing = [key for key in METADATA if key not in metadata]
        assert missing == [], node
        assert metadata["namespace"].startswith(f": {root}"), node
        assert metadata["pkg.torch.onnx.class_hierarchy"].startswith(f"['{root}'"), node
        assert metadata["pkg.torch.onnx.name_scopes"].startswith("[''"), node
        assert metadata["pkg.torch.onnx.fx_node"].startswith("%"), node
        assert "File " in metadata["pkg.torch.onnx.stack_trace"], node


_DIGESTS = """
import hashlib, json, sys, tempfile
from pathlib import Path
from tests.models.test_models import DETERMINISM, Example
from tests.models.zoo import CASES

digests = []
with tempfile.TemporaryDirectory() as folder:
    for _ in range(2):
        for case in CASES:
            if case.name in DETERMINISM:
                path = Path(folder, "model.onnx")
                Example(case, *case.example()).export(dynamic=True).save(path)
                digests.append((case.name, hashlib.sha256(path.read_bytes()).hexdigest()))
json.dump(digests, sys.stdout)
"""


def test_files_are_the_same_bytes_in_every_export_and_process() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    results = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    digests = {tuple(entry) for result in results for entry in result}
    assert {name for name, _ in digests} == set(DETERMINISM)
    assert len(digests) == len(DETERMINISM), sorted(digests)
