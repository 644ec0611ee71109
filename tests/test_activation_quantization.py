"""8-bit activations: static quantization with calibration, and dynamic quantization."""

from __future__ import annotations

import collections
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn
from torch.nn import functional as F

import fxonnx
from fxonnx import ArgumentError, QuantizeConfig, VerificationError

IMAGES = [torch.arange(4 * 3 * 12 * 12.0).add(31 * index).sin().reshape(4, 3, 12, 12) for index in range(3)]
ROWS = [torch.arange(2 * 5 * 32.0).add(17 * index).sin().reshape(2, 5, 32) for index in range(2)]


class Residual(nn.Module):
    """A small residual network; one channel of a batch norm is zero, with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.Conv2d(16, 16, 3, padding=1)
        self.norms, self.pool = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(2)), nn.MaxPool2d(2)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.norms[0](self.first(x)).relu())
        x = (self.norms[1](self.second(x)) + x).relu()
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Attention(nn.Module):
    """Embeddings, masked attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.head = nn.Linear(32, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        batch, length = ids.shape
        heads = [part(x).view(batch, length, 4, 8).transpose(1, 2) for part in (self.query, self.key, self.value)]
        bias = torch.zeros(mask.shape).masked_fill(mask == 0, float("-inf"))[:, None, None, :]
        scores = (heads[0] @ heads[1].transpose(2, 3) / 8**0.5 + bias).softmax(-1)
        x = self.norm(x + self.out((scores @ heads[2]).transpose(1, 2).reshape(batch, length, 32)))
        return self.head(x)


TOKENS = {
    "ids": torch.arange(2 * 7).reshape(2, 7) * 3 % 50,
    "mask": torch.tensor([[1] * 7, [1] * 5 + [0] * 2]),
}


@pytest.fixture(scope="module")
def residual() -> nn.Module:
    torch.manual_seed(0)
    model = Residual()
    for _ in range(5):
        model(torch.cat(IMAGES))
    with torch.no_grad():
        model.norms[1].weight[3], model.norms[1].bias[3] = 0.0, 1.5
    return model.eval()


def export(model: nn.Module, batches: Any = None, **options: Any) -> fxonnx.ONNXProgram:
    batches = IMAGES if batches is None else batches
    options = {"target": "onnxruntime", "dynamic_shapes": ({0: "batch"},), **options}
    return fxonnx.export(model, (IMAGES[0],), quantize=QuantizeConfig("int8", calibration=batches), **options)


def content(program: fxonnx.ONNXProgram) -> bytes:
    buffer = io.BytesIO()
    program.save(buffer)
    return buffer.getvalue()


def fused(model: bytes, tmp_path: Path) -> collections.Counter[str]:
    """Count the operators that ONNX Runtime runs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.optimized_model_filepath = 3, str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return collections.Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual - expected).norm() / expected.norm()).item()


@pytest.mark.exact_products
def test_convolutions_compute_with_integers(residual: nn.Module, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in residual.state_dict().items()}
    program = export(residual, verify="auto")
    assert all(torch.equal(tensor, before[name]) for name, tensor in residual.state_dict().items())
    operators = fused(content(program), tmp_path)
    assert operators["QLinearConv"] == 2
    assert operators["QLinearAdd"] == operators["QGemm"] == operators["QLinearGlobalAveragePool"] == 1
    assert not {"Conv", "FusedConv", "Gemm", "Relu", "DequantizeLinear"} & operators.keys()
    # Another batch size.
    images = torch.cat(IMAGES)
    assert relative_error(program(images)[0], residual(images)) < 0.02
    graph = program.model.graph
    assert [str(dim) for dim in graph.inputs[0].shape or ()] == ["batch", "3", "12", "12"]
    assert {"first.weight::folded::int8", "head.weight::int8", "head.bias::int32"} <= graph.initializers.keys()
    modules = {node.metadata_props["pkg.torch.onnx.name_scopes"] for node in graph if node.op_type == "QuantizeLinear"}
    assert any("'second'" in module for module in modules)
    assert program.record.options.quantize == QuantizeConfig("int8", activations="static")
    assert program.record.options.quantize.calibration is None
    # The largest zero points and least scales of the batches, not of the example alone.
    assert content(program) == content(export(residual, iter(IMAGES)))
    assert content(program) != content(export(residual, IMAGES[:1]))


@pytest.mark.exact_products
def test_the_plain_form_is_symmetric(residual: nn.Module) -> None:
    program = export(residual, target="tensorrt")
    rounding = [node for node in program.model.graph if node.op_type == "QuantizeLinear"]
    points = [node.inputs[2].const_value.numpy() for node in rounding]
    assert {point.dtype.name for point in points} == {"int8"}
    assert not np.any(points)
    assert not [finding for finding in fxonnx.check(program.model, "tensorrt") if "Linear" in finding.op_type]
    assert relative_error(program(IMAGES[1])[0], residual(IMAGES[1])) < 0.02
    plain = export(residual, target=None, opset_version=13)
    assert {
        node.inputs[2].const_value.dtype.name for node in plain.model.graph if node.op_type == "QuantizeLinear"
    } == {"INT8"}
    assert relative_error(plain(IMAGES[1])[0], residual(IMAGES[1])) < 0.02


@pytest.mark.exact_products
def test_masks_and_products_of_activations_stay_floating_point_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Attention().eval()
    shapes = {name: {0: "batch", 1: "length"} for name in TOKENS}
    longer = {name: torch.cat([tensor, tensor], 1) for name, tensor in TOKENS.items()}
    config = QuantizeConfig("int8", calibration=[TOKENS, longer], embeddings="int8")
    program = fxonnx.export(
        model, kwargs=TOKENS, dynamic_shapes=shapes, quantize=config, target="onnxruntime", verify="auto"
    )
    rounded = [node.inputs[0].name for node in program.model.graph if node.op_type == "QuantizeLinear"]
    # The embedding for three layers, the result of attention, and the norm.
    assert len(rounded) == 3
    operators = fused(content(program), tmp_path)
    assert operators["QGemm"] == 5
    assert operators["Softmax"] == 1
    for inputs in (TOKENS, longer):
        assert relative_error(program(**inputs)[0], model(**inputs)) < 0.03


@pytest.mark.exact_products
def test_dynamic(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Attention().eval()
    shapes = {name: {0: "batch", 1: "length"} for name in TOKENS}
    config = QuantizeConfig("int8", activations="dynamic", embeddings="int8", exclude=["head"])
    program = fxonnx.export(model, kwargs=TOKENS, dynamic_shapes=shapes, quantize=config, verify="auto")
    operators = fused(content(program), tmp_path)
    assert operators["MatMulInteger"] == 4
    # The inputs of query, key and value are rounded once.
    assert operators["QuantizeLinear"] == 2
    assert relative_error(program(**TOKENS)[0], model(**TOKENS)) < 0.03
    report = program.quantization.report()
    assert {layer.name for layer in report.layers} == {"table", "query", "key", "value", "out"}
    assert report.quantized_bytes < 0.4 * report.float_bytes


@pytest.mark.exact_products
@pytest.mark.parametrize("target", [None, "onnxruntime-genai"])
@pytest.mark.parametrize("bias", [True, False])
def test_rows_of_dynamic_activations_have_their_own_scale(target: Any, bias: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48, bias=bias), nn.GELU(), nn.Linear(48, 32, bias=bias)).eval()
    config = QuantizeConfig("int8", activations="dynamic")
    path = tmp_path / "model.onnx"
    example, shapes = torch.randn(2, 5, 64), ({0: "batch", 1: "length"},)
    fxonnx.export(model, (example,), path, dynamic_shapes=shapes, quantize=config, target=target)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(rows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: rows.numpy()})[0])

    rows = torch.randn(3, 7, 64)
    # A token with massive values, one of equal ones, one of zeros, and one that is not a number.
    rows[0, 0, 5], rows[0, 1], rows[0, 2], rows[1, 3, 0] = 3e4, 2.5, 0.0, float("nan")
    found, expected = run(rows), model(rows).detach()
    assert bool(found[1, 3].isnan().all())
    is_close = (found - expected).norm(dim=-1) <= 0.04 * expected.norm(dim=-1)
    is_close[1, 3] = True
    assert bool(is_close.all())
    # The other rows of a batch change nothing.
    assert torch.equal(run(rows[2:, 4:])[0], found[2, 4:])


@pytest.mark.exact_products
@pytest.mark.parametrize("target", ["onnxruntime", "onnxruntime-genai", "onnxruntime-web"])
@pytest.mark.parametrize(("features", "parts"), [(1024, 2), (1000, 2), (1536, 3)])
def test_parts_of_long_rows_have_their_own_scale(features: int, parts: int, target: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, features), nn.Linear(features, 16)).eval()
    with torch.no_grad():
        # One massive feature, and no weights for those that share its scale.
        model[0].bias[3] = 3e3
        model[1].weight[:, : features // parts] = 0
    path, example, shapes = tmp_path / "model.onnx", torch.randn(2, 5, 24), ({0: "batch", 1: "length"},)
    config = QuantizeConfig("int8", activations="dynamic")
    fxonnx.export(model, (example,), path, dynamic_shapes=shapes, quantize=config, target=target)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for shape in ((1, 1, 24), (3, 7, 24)):
        rows = torch.randn(shape)
        (found,) = session.run(None, {session.get_inputs()[0].name: rows.numpy()})
        assert relative_error(torch.from_numpy(found), model(rows).detach()) < 0.03


@pytest.mark.exact_products
@pytest.mark.parametrize("target", [None, "onnxruntime-genai"])
def test_layers_of_which_only_weights_are_quantized(target: Any) -> None:
    torch.manual_seed(0)
    model = Attention().eval()
    config = QuantizeConfig("int8", activations="dynamic", weights_only=["query", "he*"], block_size=32)
    shapes = {name: {0: "batch", 1: "length"} for name in TOKENS}
    program = fxonnx.export(model, kwargs=TOKENS, dynamic_shapes=shapes, quantize=config, target=target, verify="auto")
    operators = collections.Counter(node.op_type for node in program.model.graph)
    assert operators["DequantizeLinear" if target is None else "MatMulNBits"] == 2
    assert operators["MatMulInteger" if target is None else "MatMulIntegerToFloat"] == 3
    assert relative_error(program(**TOKENS)[0], model(**TOKENS)) < 0.03


def test_recurrent_layers_and_bodies_stay_floating_point_numbers() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(32, 16, batch_first=True)
            self.head, self.inner = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.head(self.layer(x)[0])
            return torch.cond(x.sum() > 0, lambda y: self.inner(y) + 1, lambda y: y - 1, (x,))

    program = fxonnx.export(
        Recurrent().eval(), (ROWS[0],), quantize=QuantizeConfig("int8", calibration=ROWS), verify=True
    )
    operators = collections.Counter(node.op_type for node in program.model.graph.all_nodes())
    assert (operators["QuantizeLinear"], operators["LSTM"], operators["If"]) == (1, 1, 1)


def test_sigmoids_between_convolutions(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 1), nn.LeakyReLU(), nn.Conv2d(8, 4, 1)).eval()
    program = export(model)
    operators = fused(content(program), tmp_path)
    assert operators["QLinearSigmoid"] == operators["QLinearMul"] == operators["QLinearLeakyRelu"] == 1
    assert (operators["QuantizeLinear"], operators["DequantizeLinear"]) == (1, 1)
    assert relative_error(program(IMAGES[1])[0], model(IMAGES[1])) < 0.03
    plain = collections.Counter(node.op_type for node in export(model, target=None).model.graph)
    assert plain["QuantizeLinear"] == 6


@pytest.mark.exact_products
def test_values_with_other_uses_and_outputs() -> None:
    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.first(x)
            z = self.second(torch.cat([y[:, :4].relu(), y[:, 4:].sigmoid()], 1))
            return y, F.interpolate(z, scale_factor=2.0) * 2, x + 1, z

    torch.manual_seed(0)
    model = Uses().eval()
    program = export(model, verify=True, output_names=["y", "z2", "x1", "z"])
    assert [value.name for value in program.model.graph.outputs] == ["y", "z2", "x1", "z"]
    for actual, expected in zip(program(IMAGES[1]), model(IMAGES[1]), strict=True):
        assert relative_error(actual, expected) < 0.02
    # A float use of an input reads the input itself.
    assert torch.equal(program(IMAGES[1])[2], IMAGES[1] + 1)


def test_as_accurate_as_onnxruntimes_own_quantization(residual: nn.Module, tmp_path: Path) -> None:
    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._batches = iter({"x": batch.numpy()} for batch in IMAGES)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._batches, None)

    fxonnx.export(residual, (IMAGES[0],), tmp_path / "float.onnx")
    quant_pre_process(str(tmp_path / "float.onnx"), str(tmp_path / "prepared.onnx"))
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
    quantize_static(str(tmp_path / "prepared.onnx"), str(tmp_path / "theirs.onnx"), Reader(), **types)
    session = onnxruntime.InferenceSession(tmp_path / "theirs.onnx", providers=["CPUExecutionProvider"])
    ours = export(residual)
    theirs = torch.cat([torch.from_numpy(session.run(None, {"x": batch.numpy()})[0]) for batch in IMAGES])
    expected = residual(torch.cat(IMAGES))
    assert relative_error(ours(torch.cat(IMAGES))[0], expected) <= 1.02 * relative_error(theirs, expected)


@pytest.mark.parametrize(
    "batches",
    [
        [(image,) for image in IMAGES],
        [[image] for image in IMAGES],
        [{"x": image} for image in IMAGES],
        [(image, torch.tensor([1, 2, 3, 4])) for image in IMAGES],
        [({"x": image}, "label") for image in IMAGES],
        [((image,), None) for image in IMAGES],
        [image.numpy() for image in IMAGES],
        torch.utils.data.DataLoader([(image, index) for index, image in enumerate(torch.cat(IMAGES))], batch_size=5),
    ],
    ids=["tuple", "list", "dict", "pair", "pair_of_dict", "pair_of_tuple", "numpy", "loader"],
)
def test_forms_of_batches(batches: Any, residual: nn.Module) -> None:
    assert content(export(residual, batches)) == content(export(residual))


@pytest.mark.parametrize("nested", [False, True])
def test_batches_of_two_arguments(nested: bool) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(32, 8)

        def forward(self, x: Any, y: torch.Tensor) -> torch.Tensor:
            return self.head((x[0] if nested else x) + y)

    x, y = ROWS
    arguments = ((x,), y) if nested else (x, y)
    forms: list[Any] = [[arguments], [{"x": arguments[0], "y": y}], [[*arguments]]]
    if not nested:
        forms += [[((x, y), 3)], [([x, y], None)], [({"x": x, "y": y}, 3)]]
    torch.manual_seed(0)
    model = Two().eval()
    contents = {
        content(fxonnx.export(model, arguments, quantize=QuantizeConfig("int8", calibration=form))) for form in forms
    }
    assert len(contents) == 1


@pytest.mark.exact_products
def test_save_forms_and_new_weights(residual: nn.Module, tmp_path: Path) -> None:
    program = export(residual)
    expected = program(IMAGES[0])[0]
    program.save(tmp_path / "external.onnx", external_data=True)
    program.save(tmp_path / "safetensors.onnx", external_data="safetensors")
    program.save(tmp_path / "weights.onnx", weights=residual.state_dict())
    for name in ("external", "safetensors", "weights"):
        session = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"])
        (actual,) = session.run(None, {"x": IMAGES[0].numpy()})
        assert np.array_equal(actual, expected.numpy())
    program.apply_weights({name: 2 * tensor for name, tensor in residual.state_dict().items() if "head" in name})
    program.verify()
    assert relative_error(program(IMAGES[0])[0], 2 * residual(IMAGES[0])) < 0.02


@pytest.mark.exact_products
def test_functions_of_repeated_layers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(3)]
    model = nn.Sequential(*layers).eval()
    for config in (QuantizeConfig("int8", calibration=ROWS), QuantizeConfig("int8", activations="dynamic")):
        program = fxonnx.export(
            model, (ROWS[0],), options=fxonnx.ExportOptions(functions="repeated"), quantize=config, verify=True
        )
        assert program.model.functions
        assert relative_error(program(ROWS[1])[0], model(ROWS[1])) < 0.03
        errors = [layer.relative_error for layer in program.quantization.report().layers]
        assert len(errors) == 3
        assert all(error is not None and 0 < error < 0.03 for error in errors)


def test_the_report(residual: nn.Module, tmp_path: Path) -> None:
    program = export(residual, diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path))
    report = program.quantization.report()
    errors = [layer.relative_error or 0.0 for layer in report.layers]
    assert errors == sorted(errors, reverse=True)
    assert 0 < errors[-1] <= errors[0] < 0.05
    head = next(layer for layer in report.layers if layer.name == "head")
    assert (head.op_type, head.dtype, head.float_bytes, head.quantized_bytes) == ("Gemm", "int8", 640, 160 + 40)
    assert head.snr is not None
    assert 30 < head.snr < 70
    assert str(report).splitlines()[-1].split() == [
        "all",
        "tensors",
        str(report.float_bytes),
        str(report.quantized_bytes),
    ]
    (page,) = tmp_path.glob("*.md")
    assert "| head | Gemm | int8 | 640 | 200 |" in page.read_text()
    other = program.quantization.report((IMAGES[1],))
    assert [layer.relative_error for layer in other.layers] != errors
    with pytest.raises(ArgumentError, match="exported without quantization"):
        fxonnx.export(residual, (IMAGES[0],)).quantization.report()


@pytest.mark.parametrize("options", [{"quantize": "int4"}, {"quantize": "int8", "target": "onnxruntime-genai"}])
def test_the_report_of_weight_only_quantization(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).eval()
    report = fxonnx.export(model, (ROWS[0],), **options).quantization.report()
    assert {layer.name for layer in report.layers} == {"0", "2"}
    assert all(0 < (layer.relative_error or 0) < 0.2 for layer in report.layers)
    assert report.quantized_bytes < 0.4 * report.float_bytes


def test_verification_finds_outputs_that_are_not_finite(residual: nn.Module) -> None:
    program = export(residual)
    program.model.graph.initializers["head.weight::scales"].const_value = ir.tensor([float("nan")] * 10)
    with pytest.raises(VerificationError, match="the quantization is wrong"):
        program.verify()


def nan_batch(index: int = 1) -> list[torch.Tensor]:
    batches = [image.clone() for image in IMAGES]
    batches[index][0, 0, 0, 0] = float("nan")
    return batches


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "int4": ({"dtype": "int4", "calibration": IMAGES}, {}, 'calibration requires 8-bit weights, got dtype="int4"'),
    "dynamic_int4": ({"dtype": "int4", "activations": "dynamic"}, {}, r'activations="dynamic" requires 8-bit weights'),
    "embeddings": ({"calibration": IMAGES, "embeddings": "int4"}, {}, 'got embeddings="int4"'),
    "blocks": ({"calibration": IMAGES, "block_size": 32}, {}, "block_size=32: with 8-bit activations"),
    "some_blocks": ({"calibration": IMAGES, "block_sizes": {"0": 32}}, {}, "block_sizes: with 8-bit activations"),
    "some_bits": ({"calibration": IMAGES, "bits": {"0": 8}}, {}, "bits: with 8-bit activations"),
    "weights_only": ({"calibration": IMAGES, "weights_only": ["0"]}, {}, "weights_only: constant scales do not use"),
    "asymmetric": ({"calibration": IMAGES, "symmetric": False}, {}, "symmetric=False: with 8-bit activations"),
    "no_calibration": ({"activations": "static"}, {}, 'activations="static" requires calibration'),
    "unused": ({"activations": "dynamic", "calibration": IMAGES}, {}, "activations='dynamic' does not use it"),
    "unknown": ({"activations": "statik"}, {}, "(?s)activations: expected one of .*did you mean 'static'"),
    "tensor": ({"calibration": IMAGES[0]}, {}, "expected an iterable of batches, got a Tensor"),
    "opset": ({"calibration": IMAGES}, {"opset_version": 12}, "8-bit weights require opset 13, got opset_version=12"),
    "empty": ({"calibration": []}, {}, "calibration: it yields no batches"),
    "keys": ({"calibration": [{"y": IMAGES[0]}]}, {}, "batch 0 does not fit the model: .*y"),
    "shape": ({"calibration": [IMAGES[0], IMAGES[0][:, :2]]}, {}, "batch 1 does not fit the model: .*x"),
    "text": ({"calibration": ["a"]}, {}, "batch 0 does not fit the model: .*x"),
    "count": ({"calibration": [(IMAGES[0],) * 3]}, {}, "batch 0 does not fit the model"),
    "nan": ({"calibration": nan_batch()}, {}, "batch 1 makes 'x' infinite or not a number"),
    "pattern": (
        {"calibration": IMAGES, "exclude": ["frist"]},
        {},
        "(?s)'frist' matches no .*layer.*did you mean 'first",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str, residual: nn.Module) -> None:
    config, options, match = WRONG[name]
    with pytest.raises(ArgumentError, match=match):
        fxonnx.export(residual, (IMAGES[0],), quantize=QuantizeConfig(**{"dtype": "int8", **config}), **options)


def test_models_without_a_layer() -> None:
    with pytest.raises(ArgumentError, match="the model has no convolution or linear layer of float32"):
        fxonnx.export(nn.ReLU().eval(), (IMAGES[0],), quantize=QuantizeConfig("int8", calibration=IMAGES))
    with pytest.raises(ArgumentError, match="the model has no linear layer of float32"):
        fxonnx.export(nn.Conv2d(3, 4, 3).eval(), (IMAGES[0],), quantize=QuantizeConfig("int8", activations="dynamic"))


def test_layers_of_half_precision() -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 8)).eval()
    config = QuantizeConfig("int8", activations="dynamic")
    with pytest.raises(ArgumentError, match="no linear layer of float32"):
        fxonnx.export(model.half(), (ROWS[0].half(),), quantize=config)


def test_language_models_for_genai_have_no_constant_scales(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="onnxruntime-genai have no activations with constant scales"):
        fxonnx.genai.export(tmp_path, tmp_path / "out", quantize=QuantizeConfig("int8", calibration=[ROWS]))


def test_batches_with_other_answers_to_questions_of_the_model() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(32, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head([-x, x][int(x.sum() > 0)])

    batches = [ROWS[0].abs(), -ROWS[0].abs()]
    with pytest.raises(ArgumentError, match="calibration: batch 1 does not fit the model"):
        fxonnx.export(
            Branch().eval(),
            (batches[0],),
            quantize=QuantizeConfig("int8", calibration=batches),
            data_dependent="example",
        )


def test_the_drop_in_function_takes_a_configuration(tmp_path: Path) -> None:
    model = nn.Linear(32, 8).eval()
    with fxonnx.installed():
        torch.onnx.export(
            model, (ROWS[0],), tmp_path / "m.onnx", quantize=QuantizeConfig("int8", calibration=ROWS), dynamo=False
        )
    operators = {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= operators


def test_calibration_requires_values() -> None:
    with torch.device("meta"):
        model, example = nn.Linear(32, 8).eval(), torch.empty(2, 5, 32)
    with pytest.raises(ArgumentError, match="calibration: the model cannot be run"):
        fxonnx.export(model, (example,), quantize=QuantizeConfig("int8", calibration=ROWS))
