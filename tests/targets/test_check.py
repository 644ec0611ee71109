"""``fxonnx check``: findings of nodes, their origin, and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from typer.testing import CliRunner

import fxonnx
from fxonnx._cli.commands import app
from tests.functions import Function

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Selection(nn.Module):
    """Sizes that depend on data, and operators that some targets lack."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.unique(x, return_inverse=True)[1], (x > 0).nonzero()


MODELS = {
    "convolutions": (Convolutions, (2, 3, 8, 8)),
    "transformer": (Transformer, (2, 5, 8)),
    "selection": (Selection, (2, 3)),
}
# Model and target to the operators with findings.
EXPECTED: dict[tuple[str, str], set[tuple[str, str]]] = {
    ("selection", "onnxruntime-cuda"): {("slow", "Unique")},
    ("selection", "onnxruntime-genai-cuda"): {("slow", "Unique")},
    # Opset 22 redefines it.
    ("convolutions", "onnxruntime-genai-cuda"): {("slow", "MaxPool")},
    ("convolutions", "onnxruntime-genai-webgpu"): {("slow", "MaxPool")},
    **{
        ("selection", f"onnxruntime-{each}"): {("slow", name) for name in ("Unique", "NonZero", "Transpose", "Reshape")}
        for each in ("web-webgpu", "genai-webgpu")
    },
    ("selection", "onnxruntime-genai-directml"): {("slow", "Unique")},
    ("selection", "onnxruntime-genai-tensorrt-rtx"): {("fails", "Unique"), ("slow", "NonZero")},
    ("selection", "tensorrt"): {("fails", "Unique"), ("slow", "NonZero")},
}


@pytest.mark.parametrize("target", get_args(fxonnx.Target))
@pytest.mark.parametrize("name", MODELS)
def test_three_models_for_every_target(name: str, target: Any) -> None:
    model, shape = MODELS[name]
    program = fxonnx.export(model().eval(), (torch.rand(shape),), target=target)
    findings = fxonnx.check(program.model, target)
    assert {(one.severity, one.op_type) for one in findings} == EXPECTED.get((name, target), set())
    for one in findings:
        assert one.node
        assert one.remedy
        assert one.location.startswith("tests/targets/test_check.py:")


def test_findings_have_module_and_line() -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.nonzero()

    (found, *_) = fxonnx.check(
        fxonnx.export(nn.Sequential(nn.ReLU(), Inner()).eval(), (torch.rand(2, 3),)).model, "tensorrt"
    )
    assert (found.op_type, found.module) == ("NonZero", "1")
    assert str(found).startswith(f"slow: NonZero {found.node}: the size of its output depends on data")
    assert f"(at 1, {found.location})" in str(found)


def single(op_type: str, *inputs: Any, opset: int = 20, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
    """A model of one node; an input is an element type, a pair of type and shape, a constant array, or None."""
    values, initializers, names = [], [], []
    for index, each in enumerate(inputs):
        name = "" if each is None else f"x{index}"
        names.append(name)
        if isinstance(each, torch.Tensor):
            initializers.append(
                helper.make_tensor(
                    name, FLOAT if each.is_floating_point() else INT64, each.shape, each.flatten().tolist()
                )
            )
        elif each is not None:
            dtype, shape = each if isinstance(each, tuple) else (each, (2, 3))
            values.append(helper.make_tensor_value_info(name, dtype, shape))
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, domain=domain, **attributes)
    graph = helper.make_graph([node], "g", values, [onnx.ValueInfoProto(name=name) for name in results], initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(domain or "com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


AFTER_A_KERNEL = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 20]> g (float[2, 2] x) => (float y) {r = Relu(x) y = Det(r)}'
)
NODES = [
    # Kernels and element types.
    ("onnxruntime", single("Add", FLOAT, FLOAT), None, ""),
    ("onnxruntime", single("Add", TensorProto.BFLOAT16, TensorProto.BFLOAT16), "fails", "no kernel for Add of bfloat16"),
    ("onnxruntime", single("Add", TensorProto.FLOAT16, TensorProto.FLOAT16), "slow", "it is computed in float, between conversions"),
    ("onnxruntime", single("Add", TensorProto.INT8, TensorProto.INT8, opset=14), None, ""),
    ("onnxruntime", single("Mish", TensorProto.DOUBLE, opset=18), "slow", "it is replaced by the operators of its definition"),
    # In the definition of Softplus, an operator has changed since.
    ("onnxruntime", single("Mish", TensorProto.DOUBLE, opset=21), "fails", "no kernel for Mish of opset 21"),
    ("onnxruntime", single("GroupNormalization", (FLOAT, (1, 4, 3)), (FLOAT, (4,)), (FLOAT, (4,)), opset=21, num_groups=2), "slow", "replaced by"),
    ("onnxruntime-cuda", single("Add", TensorProto.BFLOAT16, TensorProto.BFLOAT16), None, ""),
    ("onnxruntime-cuda", single("Elu", FLOAT, opset=22), "slow", "it runs on the CPU, where its inputs are"),
    ("onnxruntime-web-webgpu", AFTER_A_KERNEL, "slow", "it runs on the CPU, with copies between the devices"),
    ("onnxruntime-web-webgpu", single("Add", TensorProto.INT64, TensorProto.INT64), "slow", "no kernel for Add of int64: it runs on the CPU"),
    ("onnxruntime-web-webgpu", single("Add", TensorProto.DOUBLE, TensorProto.DOUBLE), "fails", "no kernel for Add of double"),
    ("onnxruntime-web-webgpu", single("Resize", (FLOAT, (1, 1, 4, 4)), None, torch.ones(4), antialias=1, mode="linear"), "fails", "attribute antialias is 1"),
    ("onnxruntime-web", single("Add", TensorProto.DOUBLE, TensorProto.DOUBLE), "fails", "no kernel for Add of double"),
    ("onnxruntime-web", single("Add", TensorProto.FLOAT16, TensorProto.FLOAT16), "slow", "it is computed in float"),
    ("onnxruntime-web", single("Attention", *[FLOAT] * 3, opset=23), None, ""),
    ("onnxruntime-cuda", single("Elu", FLOAT, opset=21), None, ""),
    ("onnxruntime-cuda", single("Elu", TensorProto.BFLOAT16, opset=22), "fails", "no kernel for Elu of opset 22"),
    # Forms that fail, or have wrong results, in ONNX Runtime 1.31 on a GPU.
    ("onnxruntime-cuda", single("RMSNormalization", FLOAT, (FLOAT, (3,)), opset=23), None, ""),
    ("onnxruntime-cuda", single("RMSNormalization", FLOAT, (FLOAT, (1,)), opset=23), "fails", "its input scale has 1 elements in its last axis"),
    ("onnxruntime-cuda", single("RMSNormalization", (FLOAT, None), (FLOAT, (3,)), opset=23), None, ""),
    ("onnxruntime-cuda", single("RMSNormalization", (FLOAT, (2, "n")), (FLOAT, ("m",)), opset=23), None, ""),
    ("onnxruntime-cuda", single("RMSNormalization", FLOAT, (FLOAT, ()), opset=23), "fails", "is not broadcast: the results are wrong"),
    ("onnxruntime-cuda", single("BatchNormalization", *[FLOAT] * 5, outputs=3, training_mode=1), "fails", "its attribute training_mode is 1, supported: 0"),
    ("onnxruntime-cuda", single("Attention", *[FLOAT] * 3, opset=23, softmax_precision=11), "fails", "its attribute softmax_precision is 11"),
    ("onnxruntime-cuda", single("DequantizeLinear", TensorProto.INT8, FLOAT, opset=21, block_size=16), "fails", "its attribute block_size is 16"),
    ("onnxruntime-cuda", single("DequantizeLinear", TensorProto.INT4, FLOAT, opset=21, block_size=16), None, ""),
    ("tensorrt", single("Det", FLOAT), "fails", "no kernel for Det of opset 20"),
    ("tensorrt", single("Add", TensorProto.DOUBLE, TensorProto.DOUBLE), "slow", "it is computed in float"),
    ("tensorrt", single("Add", TensorProto.UINT8, TensorProto.UINT8), "fails", "no kernel for Add of uint8"),
    ("openvino", single("Det", FLOAT), "fails", "OpenVINO has no kernel for Det of opset 20"),
    ("openvino", single("Relu", FLOAT), None, ""),
    ("openvino", single("Floor", TensorProto.DOUBLE), "slow", "no kernel for Floor of double: it is computed in float"),
    # Opsets and domains.
    ("tensorrt", single("Relu", FLOAT, opset=27), "fails", "TensorRT runs opsets up to 26, the model has opset 27"),
    ("onnxruntime", single("Relu", FLOAT, opset=27), "fails", "runs opsets up to 26, the model has opset 27"),
    ("onnxruntime", single("Gelu", FLOAT, domain="com.microsoft"), None, ""),
    ("onnxruntime", single("Guess", FLOAT, domain="com.microsoft"), "fails", "has no kernel for Guess of opset 1"),
    ("tensorrt", single("Gelu", FLOAT, domain="com.microsoft"), "fails", "does not know the domain 'com.microsoft'"),
    ("onnxruntime", single("Relu", FLOAT, domain="mine"), "fails", "does not know the domain 'mine'"),
    # Forms.
    ("tensorrt", single("ReduceSum", FLOAT, INT64), "fails", "its input axes must be a constant"),
    ("tensorrt", single("ReduceSum", FLOAT, torch.tensor([1])), None, ""),
    ("tensorrt", single("MaxPool", (FLOAT, (1, 2, 4, 4)), kernel_shape=[2, 2]), None, ""),
    ("tensorrt", single("MaxPool", (FLOAT, (1, 2, 4, 4)), outputs=2, kernel_shape=[2, 2]), "fails", "only its first output is supported"),
    ("tensorrt", single("MaxPool", (FLOAT, (1, 2, 4, 4, 4, 4)), kernel_shape=[2] * 4), "fails", "its first input has 6 axes, supported are 3 or 4 or 5"),
    ("tensorrt", single("MaxPool", (FLOAT, (1, 2, 4, 4)), kernel_shape=[2, 2], dilations=[2, 1]), "fails", "its attribute dilations is"),
    ("tensorrt", single("EyeLike", (FLOAT, ("n", 3))), "fails", "its first input must have a static shape"),
    ("tensorrt", single("Attention", *[(FLOAT, (1, 2, 3, 4))] * 3, None, (FLOAT, (1, 2, 3, 4)), opset=23), "fails", "its input past_key is not supported"),
    ("tensorrt", single("Attention", *[(TensorProto.FLOAT16, (1, 2, 3, 16))] * 3, opset=23), None, ""),
    ("tensorrt", single("Attention", *[(FLOAT, (1, 2, 3, 16))] * 3, opset=23), "fails", "no kernel for Attention of float"),
    ("tensorrt", single("Attention", *[(TensorProto.FLOAT16, (1, 2, 3, 16))] * 3, opset=23, softmax_precision=1), "fails", "its attribute softmax_precision is 1, supported: none"),
    ("tensorrt", single("BatchNormalization", *[FLOAT] * 5, outputs=3, training_mode=1), "fails", "its attribute training_mode is 1, supported: 0"),
    ("tensorrt", single("Softmax", (FLOAT, (3,))), "fails", "its first input has 1 axes"),
    ("tensorrt", single("MaxPool", (FLOAT, (1, 2, 4)), kernel_shape=[2]), None, ""),
    ("tensorrt", single("HardSwish", TensorProto.BFLOAT16), "fails", "no kernel for HardSwish of bfloat16"),
    ("tensorrt", single("Clip", INT64, INT64, INT64), None, ""),
    ("tensorrt", single("ScatterND", FLOAT, INT64, FLOAT, reduction="add"), "fails", "its attribute reduction is add, supported: none"),
    # Quantization.
    ("tensorrt", single("QuantizeLinear", FLOAT, (FLOAT, ()), (TensorProto.INT8, ())), "fails", "TensorRT requires zero points of 0"),
    ("tensorrt", single("QuantizeLinear", FLOAT, (FLOAT, ())), "slow", "activations of uint8 are not fused"),
    ("onnxruntime", single("QuantizeLinear", FLOAT, (FLOAT, ()), (TensorProto.INT8, ())), "slow", "activations of int8 are not fused"),
    ("onnxruntime", single("QuantizeLinear", FLOAT, (FLOAT, ())), None, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "model", "severity", "problem"), NODES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_nodes(target: Any, model: onnx.ModelProto, severity: str | None, problem: str) -> None:
    found = {(one.severity, one.problem) for one in fxonnx.check(model, target)}
    if severity is None:
        assert not found
    else:
        assert any(each == severity and problem in text for each, text in found), found


@pytest.mark.parametrize(
    ("target", "model", "remedy"),
    [
        ("onnxruntime-cuda", single("Elu", FLOAT, opset=22), "export with opset_version=21"),
        ("onnxruntime", single("Attention", *[FLOAT] * 3, opset=25), "export with opset_version=24"),
        (
            "onnxruntime-web-webgpu",
            single("MaxPool", (FLOAT, (1, 1, 4)), kernel_shape=[2], opset=22),
            "export with opset_version=21",
        ),
        ("tensorrt", single("Relu", FLOAT, opset=27), "export with opset_version=26"),
        ("tensorrt", single("NonZero", TensorProto.BOOL), "compute it in float or float16"),
        ("tensorrt", single("Det", FLOAT), "replace the operator in the model"),
        ("tensorrt", single("NonZero", TensorProto.DOUBLE), "compute it in float"),
        ("onnxruntime-cuda", single("MatMulInteger", *[TensorProto.UINT8] * 2), "compute it in int8"),
        (
            "onnxruntime-cuda",
            single("DequantizeLinear", TensorProto.INT32, (FLOAT, ())),
            "replace the operator in the model",
        ),
        ("onnxruntime", single("Guess", FLOAT, domain="com.microsoft"), "use ONNX operators"),
    ],
)
def test_remedies(target: Any, model: onnx.ModelProto, remedy: str) -> None:
    assert remedy in {one.remedy for one in fxonnx.check(model, target)}


def test_a_weight_that_is_transposed_after_its_dequantization() -> None:
    weight = helper.make_tensor("w", TensorProto.INT8, (2, 3), [1] * 6)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["d"]),
        helper.make_node("Transpose", ["d"], ["t"]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    scale = helper.make_tensor("scale", FLOAT, (), [0.5])
    x = helper.make_tensor_value_info("x", FLOAT, (1, 3))
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], [weight, scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (found,) = fxonnx.check(model, "onnxruntime")
    assert found.problem == "it rearranges the weight w after DequantizeLinear in every call"
    assert not fxonnx.check(model, "openvino")


def test_subgraphs_and_functions() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: torch.special.bessel_j0(x), lambda x: x.nonzero().sum() + x, (x,))

    model = fxonnx.export(Branches().eval(), (torch.rand(2, 3),)).model
    assert "NonZero" not in {node.op_type for node in model.graph}
    assert "NonZero" in {one.op_type for one in fxonnx.check(model, "tensorrt")}
    node = helper.make_node("NonZero", ["a"], ["b"])
    function = helper.make_function("local", "Find", ["a"], ["b"], [node], [helper.make_opsetid("", 20)])
    proto = single("Find", FLOAT, domain="local")
    proto.functions.append(function)
    assert {one.op_type for one in fxonnx.check(proto, "tensorrt")} == {"NonZero"}


def test_a_model_without_types_and_metadata(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=TensorProto.BFLOAT16), helper.make_node("Sin", ["c"], ["y"])]
    x = helper.make_tensor_value_info("x", FLOAT, (2,))
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, (2,))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    loaded = ir.load(tmp_path / "m.onnx")
    (found,) = fxonnx.check(loaded, "onnxruntime")
    assert (found.op_type, found.module, found.location) == ("Sin", "", "")
    assert loaded.graph.node(0).outputs[0].dtype is None


def test_external_data_need_not_exist(tmp_path: Path) -> None:
    program = fxonnx.export(nn.Linear(64, 64).eval(), (torch.rand(2, 64),))
    program.save(tmp_path / "m.onnx", external_data=True)
    (tmp_path / "m.onnx.data").unlink()
    assert fxonnx.check(tmp_path / "m.onnx", "openvino") == []


def test_metadata_of_other_exporters() -> None:
    model = single("Det", FLOAT)
    for key, value in (("name_scopes", "not a list"), ("stack_trace", "no frames")):
        entry = model.graph.node[0].metadata_props.add()
        entry.key, entry.value = f"pkg.torch.onnx.{key}", value
    (found,) = fxonnx.check(model, "tensorrt")
    assert (found.module, found.location) == ("", "")


@pytest.mark.parametrize(
    ("model", "target", "message"),
    [
        ("missing.onnx", "tensorrt", r"model: file .*missing\.onnx does not exist"),
        ("mod.onnx", "tensorrt", r"hint: did you mean 'm\.onnx'\?"),
        ("text.onnx", "tensorrt", r"model: .*text\.onnx cannot be loaded as an ONNX model: "),
        ("empty.onnx", "tensorrt", r"model: .*empty\.onnx is not an ONNX model: it imports no opset"),
        ("m.onnx", "tensort", r"target: expected one of 'onnxruntime', .*got 'tensort'\nhint: did you mean 'tensorrt'\?"),
        (3, "tensorrt", r"model: expected a path or an ONNX model, got int\nhint: pass a path, an onnx_ir.Model or a ModelProto"),
    ],
)  # fmt: skip
def test_errors(tmp_path: Path, model: Any, target: Any, message: str) -> None:
    onnx.save(single("Relu", FLOAT), tmp_path / "m.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(fxonnx.ArgumentError, match=message):
        fxonnx.check(tmp_path / model if isinstance(model, str) else model, target)


@pytest.mark.parametrize("dynamo", [True, False])
def test_files_of_torch_onnx(dynamo: bool, tmp_path: Path) -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x > 0).nonzero()

    path = tmp_path / "m.onnx"
    model = nn.Sequential(nn.ReLU(), Inner()).eval()
    torch.onnx.export(model, (torch.rand(2, 3),), str(path), dynamo=dynamo, opset_version=18, verbose=False)
    found = [one for one in fxonnx.check(path, "tensorrt") if one.severity == "slow"]
    assert [one.op_type for one in found] == ["NonZero"]
    if dynamo:
        assert found[0].module == "1"
        assert "test_check.py:" in found[0].location


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["check", *arguments])


def test_command_line(tmp_path: Path) -> None:
    path = str(tmp_path / "m.onnx")
    fxonnx.export(nn.Sequential(nn.ReLU(), Selection()).eval(), (torch.rand(2, 3),), path)
    result = invoke(path, "--target", "tensorrt")
    assert result.exit_code == 1, result.output
    assert "fails: Unique: TensorRT has no kernel for Unique of opset 20\n  at: node_" in result.stdout
    assert "(1, tests/targets/test_check.py:" in result.stdout
    assert "\n  do: " in result.stdout
    assert "m.onnx: tensorrt cannot run 2 nodes; table: TensorRT for RTX" in result.stdout
    listed = json.loads(invoke(path, "--target", "tensorrt", "--json").stdout)
    assert listed["nodes"] == len(onnx.load(path).graph.node)
    assert {one["op_type"] for one in listed["findings"]} == {"Unique", "NonZero"}
    good = invoke(path)
    assert good.exit_code == 0
    assert "m.onnx: onnxruntime runs all nodes" in good.stdout


def test_equal_findings_are_listed_once(tmp_path: Path) -> None:
    class Half(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() + x.cos() * x.sin().abs() - x.cos().abs()

    fxonnx.export(Half().eval(), (torch.rand(3).half(),), str(tmp_path / "m.onnx"))
    text = invoke(str(tmp_path / "m.onnx")).stdout
    assert text.count("no kernel for Abs of float16") == 1
    assert "slow: Abs (2 nodes): " in text
    assert "m.onnx: onnxruntime runs 7 nodes slowly; table: ONNX Runtime" in text


@pytest.mark.parametrize("arguments", [("missing.onnx",), ("missing.onnx", "--target", "tensort"), ()])
def test_wrong_arguments_exit_with_2(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_bfloat16_is_cast_for_the_cpu_only() -> None:
    x = torch.rand(2, 3, dtype=torch.bfloat16)

    def casts(target: Any) -> int:
        program = fxonnx.export(Function(lambda x: torch.exp(x) + x).eval(), (x,), target=target)
        return sum(node.op_type == "Cast" for node in program.model.graph)

    assert {target: casts(target) > 0 for target in (None, *get_args(fxonnx.Target))} == {
        **{None: True, "onnxruntime": True},
        **{"onnxruntime-genai": True, "onnxruntime-genai-cuda": False},
        **{"onnxruntime-genai-webgpu": True, "onnxruntime-genai-directml": True},
        **{"onnxruntime-genai-tensorrt-rtx": False},
        **{"onnxruntime-web": True, "onnxruntime-web-webgpu": True},
        **{"onnxruntime-cuda": False, "tensorrt": False, "openvino": False},
    }


class Decoding(nn.Module):
    """Attention with a cache, on projections that are split into heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = (each(x).unflatten(-1, (2, 4)).transpose(1, 2) for each in (self.q, self.k, self.v))
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        attended = nn.functional.scaled_dot_product_attention(q, keys, values)
        return self.o(attended.transpose(1, 2).flatten(2)), keys, values


@pytest.mark.parametrize(("target", "count"), [("onnxruntime", 1), ("tensorrt", 0)])
def test_attention_with_a_cache(target: Any, count: int) -> None:
    past = torch.rand(2, 2, 5, 4)
    program = fxonnx.export(Decoding().eval(), (torch.rand(2, 3, 8), past, past), target=target, opset_version=23)
    attentions = [node for node in program.model.graph if node.op_type == "Attention"]
    assert len(attentions) == count
    assert all(len(attention.inputs) > 4 for attention in attentions)
    assert fxonnx.check(program.model, target) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_cuda_gets_casts_where_no_provider_has_a_kernel(dtype: torch.dtype) -> None:
    model = Function(lambda x: torch.sin(x) * torch.erf(x)).eval()
    # Sin has a kernel for bfloat16 from opset 22 on.
    program = fxonnx.export(model, (torch.rand(3, dtype=dtype),), target="onnxruntime-cuda", opset_version=20)
    expected = {torch.bfloat16: ["Cast", "Sin", "Cast", "Erf", "Mul"], torch.float64: ["Sin", "Erf", "Mul"]}
    assert [node.op_type for node in program.model.graph] == expected[dtype]
    assert fxonnx.check(program.model, "onnxruntime-cuda") == []
