"""Profiles of the targets: their tables of kernels, and the exports that read them."""

from __future__ import annotations

import json
from typing import get_args

import onnx.defs
import onnx_ir as ir
import onnxruntime
import pytest
import torch

import fxonnx
from benchmarks.target_kernels import FOLDER, content, onnxruntime_kernels
from fxonnx._prepare import PATTERNS
from fxonnx._targets import DEFAULT_PROFILE, PROFILES, Target
from fxonnx_translations._opsets.ort_kernels import MISSING_KERNELS
from tests.functions import Function

ONNX_OPERATORS = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas_with_history()}
# Operators that older versions of ONNX had as experiments.
EXPERIMENTAL = {"Affine", "Crop", "DynamicSlice", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh"}
# Operators that ONNX Runtime registers under the domain of ONNX.
EXPERIMENTAL |= {"SimplifiedLayerNormalization"}


def test_every_target_has_a_profile() -> None:
    assert tuple(PROFILES) == get_args(Target)
    assert all(name == profile.name for name, profile in PROFILES.items())


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_profiles_name_what_exists(profile: fxonnx._targets.TargetProfile) -> None:
    assert set(profile.patterns) <= set(PATTERNS)
    assert 7 <= profile.default_opset <= profile.newest_opset
    assert profile.kernels.source
    for domain, op_type in profile.kernels.kernels:
        assert domain in {"", *profile.domains}
        assert domain not in ("", "ai.onnx.ml") or (domain, op_type) in ONNX_OPERATORS or op_type in EXPERIMENTAL
    for name, kernels in profile.kernels.kernels.items():
        for kernel in kernels:
            assert kernel.until is None or kernel.since <= kernel.until, name


def test_the_table_of_onnxruntime_is_that_of_the_installed_runtime() -> None:
    stored = json.loads((FOLDER / "onnxruntime.json").read_text())
    if f" {onnxruntime.__version__}," not in stored["source"]:
        pytest.skip(f"the table is of {stored['source']}, installed is {onnxruntime.__version__}")
    assert stored == content(*onnxruntime_kernels()), "run python -m benchmarks.target_kernels onnxruntime"


@pytest.mark.parametrize(
    ("op_type", "dtype", "opset", "expected"),
    [
        ("Add", "FLOAT", 20, True),
        ("Add", "BFLOAT16", 20, False),
        ("Add", "INT8", 13, False),
        ("Add", "INT8", 14, True),
        ("Attention", "FLOAT16", 23, True),
        ("Attention", "FLOAT16", 22, False),
        ("NoSuchOperator", "FLOAT", 20, False),
    ],
)
def test_has_kernel(op_type: str, dtype: str, opset: int, expected: bool) -> None:
    assert PROFILES["onnxruntime"].has_kernel(op_type, ir.DataType[dtype], opset) is expected


@pytest.mark.parametrize("target", [None, *PROFILES])
def test_quotients_in_float64_where_the_target_computes_it(target: Target | None) -> None:
    """In float32, in which some targets compute float64, the floor of 1.0 / 0.1 would be 10; some have no float64."""
    x = torch.tensor([1.0, 7.0])
    program = fxonnx.export(Function(lambda x: x // 0.1).eval(), (x,), target=target)
    operators = [node.op_type for node in program.model.graph]
    if target in ("tensorrt", "openvino", "onnxruntime-web", "onnxruntime-web-webgpu"):
        assert operators == ["Mod", "Sub", "Div", "Less", "Sub", "Where", "Round"]
    else:
        assert operators == ["Cast", "Div", "Floor", "Cast"]
    assert program(x)[0].tolist() == [9, 69]


def test_casts_of_the_export_follow_the_table() -> None:
    table = PROFILES["onnxruntime"].kernels
    wrong = [
        f"{op_type} {dtype.name}"
        for op_type, missing in MISSING_KERNELS.items()
        for dtype in missing
        if all(table.has_kernel(op_type, dtype, opset) for opset in range(13, 24))
    ]
    # The values of OneHot have another type than its indices, the first input.
    assert wrong == ["OneHot INT32"]


@pytest.mark.parametrize("target", ["onnxruntime-web", "onnxruntime-web-webgpu"])
def test_casts_where_webassembly_has_fewer_types(target: Target) -> None:
    """The build for WebAssembly has no Where of int8, which the usual one has."""
    x = torch.tensor([127, -5, -128], dtype=torch.int8)
    program = fxonnx.export(Function(lambda x: torch.where(x > 0, x, 1 - x)).eval(), (x,), target=target)
    operators = [node.op_type for node in program.model.graph]
    assert operators[operators.index("Where") + 1] == "Cast"
    assert program(x)[0].tolist() == [127, 6, -127]
    assert all(finding.severity == "slow" for finding in fxonnx.check(program.model, target))


def test_operators_without_kernels_run_as_defined() -> None:
    profile = PROFILES["onnxruntime-cuda"]
    for (op_type, dtype), since in profile.definitions.items():
        assert dtype not in profile.missing_kernels(since)[op_type]
        model = Function(lambda x: torch.nn.functional.group_norm(x, 2)).eval()
        program = fxonnx.export(
            model, (torch.ones(2, 4, 3).bfloat16(),), target="onnxruntime-cuda", opset_version=since
        )
        assert [node.op_type for node in program.model.graph] == [op_type]
        assert [finding.severity for finding in fxonnx.check(program.model, "onnxruntime-cuda")] == ["slow"]


def test_the_target_determines_opset_and_patterns() -> None:
    assert DEFAULT_PROFILE.missing_kernels(20) is MISSING_KERNELS
    program = fxonnx.export(Function(torch.relu).eval(), (torch.ones(2, 3),), target="onnxruntime")
    assert program.record.options.profile is PROFILES["onnxruntime"]
    assert program.record.options.opset == PROFILES["onnxruntime"].default_opset
    assert "flat_tokens" in program.record.patterns
    assert "flat_tokens" not in fxonnx.export(Function(torch.relu).eval(), (torch.ones(2, 3),)).record.patterns
