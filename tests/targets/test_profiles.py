"""Profiles of the targets: their tables of kernels, and the exports that read them."""

from __future__ import annotations

import json
from typing import Any, get_args

import onnx.defs
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import fxonnx
from benchmarks.target_kernels import EXECUTION_PROVIDERS, FOLDER, content, onnxruntime_kernels
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


@pytest.mark.parametrize("target", EXECUTION_PROVIDERS)
def test_the_tables_are_those_of_the_installed_runtime(target: str) -> None:
    device = EXECUTION_PROVIDERS[target]
    if f"{device}ExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this build of ONNX Runtime has no such execution provider")
    stored = json.loads((FOLDER / f"{target}.json").read_text())
    if f" {onnxruntime.__version__}," not in stored["source"]:
        pytest.skip(f"the table is of {stored['source']}, installed is {onnxruntime.__version__}")
    assert stored == content(*onnxruntime_kernels(device)), f"run python -m benchmarks.target_kernels {target}"


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
    if target in (
        "tensorrt",
        "onnxruntime-genai-tensorrt-rtx",
        "openvino",
        "onnxruntime-web",
        "onnxruntime-web-webgpu",
    ):
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


@pytest.mark.parametrize(
    ("model", "shape", "opset", "options"),
    [
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 3, 8), 23, {}),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.AvgPool2d(2), nn.ConvTranspose2d(4, 2, 2)), (1, 2, 8, 8), 23, {}),
        (nn.MaxPool2d(2), (1, 2, 4, 4), 20, {}),
        (nn.Sequential(nn.Conv1d(2, 4, 3), nn.AdaptiveMaxPool1d(2)), (1, 2, 8), 20, {}),
        (nn.GroupNorm(2, 4), (1, 4, 3, 3), 20, {}),
        (nn.InstanceNorm1d(4), (1, 4, 3), 20, {}),
        (nn.Sequential(nn.Linear(3, 4), nn.ELU(), nn.SELU()), (2, 3), 20, {}),
        (Function(lambda x: torch.cond(x.sum() > 0, nn.functional.elu, torch.relu, (x,))), (2, 3), 20, {}),
        (nn.MaxPool2d(2), (1, 2, 4, 4), 23, {"opset_version": 23}),
        # 4-bit weights require opset 21.
        (nn.Sequential(nn.Linear(64, 64), nn.ELU()), (2, 64), 21, {"quantize": "int4"}),
        (nn.Sequential(nn.Linear(64, 64), nn.ELU()), (2, 64), 20, {"quantize": "int8"}),
        (nn.Linear(64, 64), (2, 64), 23, {"quantize": "int8"}),
    ],
)
def test_cuda_has_kernels_for_all_nodes(
    model: nn.Module, shape: tuple[int, ...], opset: int, options: dict[str, Any]
) -> None:
    """Where operators have no kernel at the default opset, an older one is used, and 8-bit weights have no blocks."""
    program = fxonnx.export(model.eval(), (torch.rand(shape),), target="onnxruntime-cuda", **options)
    assert program.model.opset_imports[""] == opset
    slow = ["slow"] if "opset_version" in options else []
    assert [finding.severity for finding in fxonnx.check(program.model, "onnxruntime-cuda")] == slow
    (found,) = program(x := torch.rand(shape))
    torch.testing.assert_close(found, model(x), atol=0.1 if "quantize" in options else 1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("target", "dtype", "expected"),
    [
        (None, torch.float32, "GroupNormalization"),
        ("onnxruntime", torch.float32, "InstanceNormalization"),
        ("onnxruntime-genai", torch.float16, "InstanceNormalization"),
        ("onnxruntime-web", torch.bfloat16, "InstanceNormalization"),
        ("onnxruntime", torch.float64, "GroupNormalization"),
        ("tensorrt", torch.float32, "GroupNormalization"),
    ],
)
def test_group_norms_for_onnxruntime_have_a_kernel(target: Any, dtype: torch.dtype, expected: str) -> None:
    """It replaces GroupNormalization by a function, which takes twice the time and is slow to load."""
    model = nn.GroupNorm(2, 8, dtype=dtype).eval()
    nn.init.uniform_(model.weight)
    program = fxonnx.export(
        model, (torch.rand(1, 8, 4, dtype=dtype),), target=target, opset_version=23, dynamic_shapes=({0: "n", 2: "m"},)
    )
    assert expected in {node.op_type for node in program.model.graph}
    (found,) = program(x := torch.rand(3, 8, 5, dtype=dtype))
    torch.testing.assert_close(found, model(x))


def test_scales_of_norms_are_not_broadcast() -> None:
    """The CUDA kernel of RMSNormalization reads a scale of one element as if it had all."""
    program = fxonnx.export(nn.RMSNorm(4, elementwise_affine=False).eval(), (torch.rand(2, 4),), target="onnxruntime")
    (node,) = program.model.graph
    assert node.op_type == "RMSNormalization"
    assert node.inputs[1].const_value.shape == [4]


def test_scales_of_norms_of_a_dynamic_size_are_not_broadcast() -> None:
    model = Function(lambda x: nn.functional.rms_norm(x, x.shape[-1:])).eval()
    program = fxonnx.export(
        model, (torch.rand(2, 4),), dynamic_shapes=({0: "batch", 1: "size"},), target="onnxruntime-cuda"
    )
    scale = program.model.graph[-1].inputs[1]
    assert program.model.graph[-1].op_type == "RMSNormalization"
    assert scale.producer().op_type == "Expand"
    for shape in ((2, 4), (3, 7), (1, 1)):
        x = torch.rand(shape)
        torch.testing.assert_close(program(x)[0], model(x))


def test_the_target_determines_opset_and_patterns() -> None:
    assert DEFAULT_PROFILE.missing_kernels(20) is MISSING_KERNELS
    program = fxonnx.export(Function(torch.relu).eval(), (torch.ones(2, 3),), target="onnxruntime")
    assert program.record.options.profile is PROFILES["onnxruntime"]
    assert program.record.options.opset == PROFILES["onnxruntime"].default_opset
    assert "flat_tokens" in program.record.patterns
    assert "flat_tokens" not in fxonnx.export(Function(torch.relu).eval(), (torch.ones(2, 3),)).record.patterns
