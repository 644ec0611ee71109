"""Findings for ONNX Runtime on the CPU agree with the installed version: it refuses what ``check`` calls failing."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.defs
import onnxruntime
import pytest
import torch
from torch import nn

import fxonnx
from benchmarks.kernel_probe import TYPES, UNSIGNED, loads, model_of, versions
from fxonnx._targets import PROFILES

if f" {onnxruntime.__version__}," not in PROFILES["onnxruntime"].kernels.source:
    pytest.skip("the table is of another version of ONNX Runtime", allow_module_level=True)

# Constants have no kernel. Operators with several types that the schema does not relate, and of which the kernels
# support some combinations only.
SKIPPED = {"BitCast", "CenterCropPad", "Constant", "OneHot"}
NAMES = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""} - SKIPPED)


@pytest.mark.parametrize("letters", ["ABC", "DEFGH", "IJKLMNOP", "QRS", "TUVWXYZ"])
def test_every_operator_in_every_type(letters: str) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    wrong, count = [], 0
    for schema, opset, types in combinations(letters):
        try:
            model = model_of(schema, opset, types)
        except KeyError:  # a subgraph
            continue
        count += 1
        fails = any(found.severity == "fails" for found in fxonnx.check(onnx.load_from_string(model), "onnxruntime"))
        if fails == loads(model, options):
            wrong.append((schema.name, opset, types, "loads" if fails else "is refused"))
    assert not wrong
    assert count > 100


def test_files_that_onnxruntime_has_optimized(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 4), nn.GELU())
    fxonnx.export(model.eval(), (torch.rand(1, 16, 8, 8),), tmp_path / "m.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), options, providers=["CPUExecutionProvider"])
    assert fxonnx.check(tmp_path / "optimized.onnx", "onnxruntime") == []
    if any(node.domain for node in onnx.load(tmp_path / "optimized.onnx").graph.node):  # depends on the processor
        (found, *_) = fxonnx.check(tmp_path / "optimized.onnx", "tensorrt")
        assert found.problem.startswith("TensorRT does not know the domain 'com.microsoft")


def combinations(letters: str) -> list[tuple[onnx.defs.OpSchema, int, dict[str, str]]]:
    """Each form of the operators with these initials, in each type of each of its type variables."""
    found = []
    for name in NAMES:
        for opset, schema in versions(name) if name[0] in letters else ():
            allowed = {
                constraint.type_param_str: [
                    text for text in (*TYPES, *UNSIGNED) if f"tensor({text})" in constraint.allowed_type_strs
                ]
                for constraint in schema.type_constraints
            }
            if not all(allowed.values()):
                continue
            for texts in allowed.values():
                for text in texts:
                    # Some kernels support a type only if all inputs have it.
                    types = {name: text if text in others else others[0] for name, others in allowed.items()}
                    found.append((schema, opset, types))
    return found
