"""Weight-only quantization: ``export(quantize=...)``."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.torch
import torch
from onnx import numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
from torch import nn
from torch.nn import functional as F

import fxonnx
from fxonnx import ArgumentError, QuantizeConfig, SaveError

IDS = torch.tensor([[3, 0, 49], [7, 7, 21]])
ROWS = torch.arange(2 * 3 * 40, dtype=torch.float32).reshape(2, 3, 40).sin()


class Conv1D(nn.Module):
    """The linear layer of GPT-2, whose weight is (in_features, out_features)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(40, 22)), nn.Parameter(torch.randn(22))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, 40), self.weight).view(*x.shape[:2], 22)


class Language(nn.Module):
    """An embedding and the layer of the logits, which may be tied."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(50, 64), nn.Linear(64, 64)
        self.lm_head = nn.Linear(64, 50, bias=False)
        if tied:
            self.lm_head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.inner(self.table(ids)).relu())


class Shared(nn.Module):
    """One weight in two products."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(40, 40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(x, self.weight).tanh(), self.weight)


class Reused(nn.Module):
    """Weights that are not only multiplied by from the right in one direction."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.added = nn.Parameter(torch.randn(40, 40)), nn.Parameter(torch.randn(40, 40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x @ self.both, self.both) @ self.added + self.added[:3]


def flat(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    example: torch.Tensor
    quantized: tuple[str, ...]
    """Parameters that are quantized, by default."""


CASES = {
    "linear": Case(lambda: nn.Linear(40, 22), ROWS, ("weight",)),
    "linear_gemm": Case(lambda: nn.Linear(40, 22), flat(ROWS), ("weight",)),
    "odd": Case(lambda: nn.Sequential(nn.Linear(40, 33), nn.ReLU(), nn.Linear(33, 3)), ROWS, ("0.weight", "2.weight")),
    "conv1d": Case(Conv1D, ROWS, ("weight",)),
    "shared": Case(Shared, ROWS, ("weight",)),
    "reused": Case(Reused, ROWS, ()),
    "tied": Case(lambda: Language(tied=True), IDS, ("inner.weight", "lm_head.weight")),
}

FORMS: dict[str, dict[str, Any]] = {
    "int4": {"quantize": QuantizeConfig("int4", accuracy_level=1)},
    "int4_asymmetric": {"quantize": QuantizeConfig("int4", symmetric=False, block_size=16), "opset_version": 21},
    "int8": {"quantize": QuantizeConfig("int8", accuracy_level=1), "opset_version": 13},
    "int8_default": {"quantize": QuantizeConfig("int8")},
    "int8_blocks": {"quantize": QuantizeConfig("int8", symmetric=False, block_size=32), "opset_version": 25},
    "nbits4": {"quantize": QuantizeConfig("int4", accuracy_level=1), "target": "onnxruntime-genai"},
    "nbits4_asymmetric": {
        "quantize": QuantizeConfig("int4", accuracy_level=1, symmetric=False, block_size=16),
        "target": "onnxruntime-genai",
    },
    "nbits8": {"quantize": QuantizeConfig("int8", accuracy_level=1), "target": "onnxruntime-genai"},
}


def session_of(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    # Activations are not rounded.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def nibbles(packed: np.ndarray, bits: int) -> np.ndarray:
    """Split the bytes of the last axis into unsigned codes."""
    if bits == 8:
        return packed.astype(np.float64)
    pairs = np.stack([packed & 15, packed >> 4], axis=-1)
    return pairs.reshape(*packed.shape[:-1], -1).astype(np.float64)


def dequantized(model: onnx.ModelProto) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield operator, weight and its values as (in_features, out_features), decoded from the bytes of the file."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    shaped = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Reshape"}
    for node in model.graph.node:
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "DequantizeLinear":
            codes, scales, *points = (stored[name].astype(np.float64) for name in node.input)
            if attributes["axis"] == 0:
                size = attributes["block_size"]
                scales, *points = (np.repeat(part, size, axis=0)[: len(codes)] for part in (scales, *points))
            yield node.op_type, node.input[0], (codes - sum(points)) * scales
        elif node.op_type in ("MatMulNBits", "GatherBlockQuantized"):
            is_product = node.op_type == "MatMulNBits"
            data, scales, *points = (
                shaped.get(name, name)
                for name in ([node.input[0], *node.input[2:]] if not is_product else node.input[1:])
            )
            bits, size = attributes["bits"], attributes["block_size"]
            codes = nibbles(stored[data].reshape(len(stored[data]), -1), bits)
            rows, blocks = stored[scales].shape
            middle = nibbles(stored[points[0]], bits)[:, :blocks, None] if points and points[0] else 2 ** (bits - 1)
            weight = (codes.reshape(rows, blocks, size) - middle) * stored[scales].astype(np.float64)[:, :, None]
            yield node.op_type, data, weight.reshape(rows, -1)[:, : attributes.get("K", 64)].T


def with_weights(model: nn.Module, found: dict[str, np.ndarray], bits: int) -> None:
    """Replace the parameters of a model by dequantized ones, which must be close to them."""
    parameters = dict(model.named_parameters())
    for name, weight in found.items():
        parameter = parameters[name]
        both = [torch.tensor(weight).to(parameter.dtype), torch.tensor(weight.T).to(parameter.dtype)]
        errors = [(one - parameter).abs().max() if one.shape == parameter.shape else torch.inf for one in both]
        new = both[int(errors[1] < errors[0])]
        assert min(errors) <= parameter.detach().abs().max() / 2 ** (bits - 1) * 1.01
        parameters[name].data = new


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_the_file_computes_with_the_dequantized_weights(name: str, form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = CASES[name]
    model, path = case.make().eval(), tmp_path / "model.onnx"
    before = {key: value.clone() for key, value in model.state_dict().items()}
    program = fxonnx.export(model, (case.example,), path, dynamic_shapes=({0: "batch"},), **FORMS[form])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    found = {data.split("::")[0]: weight for _, data, weight in dequantized(proto)}
    tied = {"table.weight": "lm_head.weight"} if name == "tied" else {}
    assert {tied.get(key, key) for key in found} == set(case.quantized)
    if name == "tied":
        # The table is not quantized.
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())  # type: ignore[union-attr]
    with_weights(
        model,
        {tied.get(key, key): weight for key, weight in found.items()},
        (FORMS[form]["quantize"].dtype == "int8" and 8) or 4,
    )
    session = session_of(path)
    for example in (case.example, torch.cat([case.example, case.example.flip(0)])):
        (y,) = session.run(None, {str(program.model.graph.inputs[0].name): example.numpy()})
        expected = model(example).detach()
        assert np.abs(y - expected.numpy()).max() <= 2e-6 * expected.abs().max()


INVALID: list[tuple[Any, dict[str, Any], str]] = [
    ("int5", {}, "dtype: expected one of 'int4', 'int8', got 'int5'"),
    (4, {}, 'expected "int4", "int8" or a QuantizeConfig, got 4'),
    (QuantizeConfig(block_size=48), {}, "block_size: 48 is not a power of two"),
    (QuantizeConfig(block_sizes={"inner": 48}), {}, r"block_sizes\['inner'\]: 48 is not a power of two"),
    (
        QuantizeConfig(block_sizes={"iner": 64}),
        {},
        "block_sizes: 'iner' matches no linear layer or embedding\n.*'inner'",
    ),
    (QuantizeConfig(block_sizes=32), {}, "block_sizes: expected names with sizes, got an int"),  # type: ignore[arg-type]
    (QuantizeConfig("int8", block_sizes={"inner": 32}), {"opset_version": 20}, "weights in blocks require opset 21"),
    (QuantizeConfig(bits=8), {}, "bits: expected names with bits, got an int"),  # type: ignore[arg-type]
    (QuantizeConfig(bits={"inner": 3}), {}, r"bits\['inner'\]: expected 4 or 8, got 3"),
    (QuantizeConfig(bits={"iner": 8}), {}, "bits: 'iner' matches no linear layer or embedding\n.*'inner'"),
    (QuantizeConfig("int8", bits={"inner": 4}), {"opset_version": 20}, "4-bit weights require opset 21"),
    (
        QuantizeConfig(importance={"inner.weight": [1.0]}),
        {},
        r"importance\['inner.weight'\]: expected a tensor of one axis",
    ),
    (QuantizeConfig(weights_only=["inner"]), {}, 'weights_only: activations="float" does not use it'),
    (QuantizeConfig(accuracy_level=5), {}, "accuracy_level: expected one of 0, 1, 2, 3, 4, got 5"),
    (QuantizeConfig(symmetric=None), {}, "symmetric: expected one of True, False"),  # type: ignore[arg-type]
    (QuantizeConfig(rounding="serach"), {}, "rounding: expected one of 'nearest', 'search', got 'serach'"),  # type: ignore[arg-type]
    (QuantizeConfig(include="inner"), {}, "include: expected a list of names, got 'inner'"),
    (QuantizeConfig(exclude=["iner"]), {}, "exclude: 'iner' matches no linear layer or embedding\n.*'inner'"),
    (QuantizeConfig(embeddings="int4"), {}, 'embeddings="int4" requires an operator of ONNX Runtime'),
    (QuantizeConfig(embeddings="int4"), {"target": "onnxruntime-web"}, 'embeddings="int4" requires an operator'),
    (QuantizeConfig(embeddings="half"), {}, "embeddings: expected one of None, 'float'"),  # type: ignore[arg-type]
    ("int4", {"opset_version": 20}, "4-bit weights require opset 21, got opset_version=20"),
    (QuantizeConfig("int8", block_size=32), {"opset_version": 20}, "weights in blocks require opset 21"),
    (QuantizeConfig("int8", lm_head="int4"), {"opset_version": 20}, "4-bit weights require opset 21"),
    ("int8", {"opset_version": 12}, "8-bit weights require opset 13, got opset_version=12"),
]


@pytest.mark.parametrize(("quantize", "options", "match"), INVALID)
def test_invalid_configurations(quantize: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=f"(?s)quantize.*{match}"):
        fxonnx.export(Language(tied=False).eval(), (IDS,), quantize=quantize, **options)


def test_an_opset_without_scales_in_half_precision() -> None:
    with pytest.raises(ArgumentError, match="weights of float16 require opset 19, got opset_version=18"):
        fxonnx.export(nn.Linear(40, 22).half().eval(), (ROWS.half(),), quantize="int8", opset_version=18)


def test_a_model_without_a_layer_of_the_logits() -> None:
    with pytest.raises(ArgumentError, match="lm_head: the model has no layer of the name embed_out, lm_head"):
        fxonnx.export(nn.Linear(40, 22).eval(), (ROWS,), quantize=QuantizeConfig(lm_head="int8"))


def test_the_default_opset_is_raised_only_as_far_as_necessary() -> None:
    def opset(quantize: Any, **options: Any) -> int:
        program = fxonnx.export(nn.Linear(40, 22).eval(), (ROWS,), quantize=quantize, **options)
        return program.model.opset_imports[""]

    default = opset(None)
    assert default < 21
    assert [opset("int8"), opset("int4"), opset("int8", opset_version=13)] == [21, 21, 13]
    assert [opset("int8", target="openvino"), opset("int4", target="openvino")] == [default, 21]
    assert opset("int4", opset_version=24) == 24
    assert opset("int4", target="onnxruntime") == opset(None, target="onnxruntime") >= 21


VERIFIED: dict[str, dict[str, Any]] = {
    **FORMS,
    "tables": {"quantize": QuantizeConfig("int4", embeddings="int8")},
    "gather_nbits": {"quantize": QuantizeConfig("int4", embeddings="int4"), "target": "onnxruntime-genai"},
    "tables_of_webassembly": {"quantize": QuantizeConfig("int4", embeddings="int8"), "target": "onnxruntime-web"},
    "gather_nbits_asymmetric": {
        "quantize": QuantizeConfig("int4", embeddings="int8", symmetric=False, lm_head="int8"),
        "target": "onnxruntime-genai",
    },
}


@pytest.mark.parametrize(
    ("form", "tied", "dtype"),
    [
        *((form, True, torch.float32) for form in VERIFIED),
        *((form, False, torch.float32) for form in ("int4", "tables", "gather_nbits_asymmetric")),
        *((form, True, torch.float16) for form in ("int8_default", "nbits4", "tables", "gather_nbits")),
        *((form, True, torch.bfloat16) for form in ("int8", "nbits4", "tables", "gather_nbits")),
    ],
)
def test_verification_computes_with_the_dequantized_weights(form: str, tied: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    model = Language(tied=tied).eval().to(dtype)
    program = fxonnx.export(model, (IDS,), dynamic_shapes=({0: "batch"},), verify="auto", **VERIFIED[form])
    program.verify()
    if dtype == torch.float32:
        program.verify(rtol=1e-5, atol=1e-5)
    # With the weights of the model, the results are others.
    difference = (program.quantization.call_in_float(IDS)[0] - model(IDS)).abs().max()
    assert difference > 1e-3 * model(IDS).abs().max()


def operators(program: fxonnx.ONNXProgram) -> list[str]:
    return [node.op_type for node in program.model.graph]


def saved(program: fxonnx.ONNXProgram, **options: Any) -> bytes:
    file = io.BytesIO()
    program.save(file, **options)
    return file.getvalue()


def test_a_tied_embedding_shares_the_integers_of_the_logits() -> None:
    model = Language(tied=True).eval()
    config = QuantizeConfig("int8", embeddings="int8")
    program = fxonnx.export(model, (IDS,), quantize=config, target="onnxruntime-genai", verify=True)
    assert operators(program) == ["Reshape", "GatherBlockQuantized", "MatMulNBits", "Add", "Relu", "MatMulNBits"]
    weights = [name for name in program.model.graph.initializers if "::" in name and "inner" not in name]
    assert weights == ["lm_head.weight::int8", "lm_head.weight::scales"]
    # Other bits for the logits: two sets of integers.
    config = QuantizeConfig("int8", embeddings="int8", lm_head="int4")
    program = fxonnx.export(model, (IDS,), quantize=config, target="onnxruntime-genai", verify=True)
    assert {"lm_head.weight::int4", "lm_head.weight::int8"} < set(program.model.graph.initializers)


def test_layers_are_selected_by_module_or_parameter_name() -> None:
    model = nn.ModuleDict({name: nn.Linear(40, 40) for name in ("query", "key", "gate")}).eval()

    class Selected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([model])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sum(layer(x) for layer in model.values())  # type: ignore[return-value]

    def quantized(**choice: Any) -> set[str]:
        program = fxonnx.export(Selected().eval(), (ROWS,), quantize=QuantizeConfig(**choice), verify=True)
        return {name.split(".")[2] for name in program.model.graph.initializers if name.endswith("::int4")}

    assert quantized() == {"query", "key", "gate"}
    assert quantized(exclude=["*.gate"]) == {"query", "key"}
    assert quantized(include=["layers.0.query.weight", "*.gate"], exclude=["*.gate"]) == {"query"}
    assert quantized(exclude=["layers"]) == set()


@pytest.mark.parametrize("target", [None, "onnxruntime-genai"])
def test_blocks_of_some_layers_have_another_size(target: Any) -> None:
    config = QuantizeConfig("int4", block_size=64, block_sizes={"*inner": 16, "lm_head.weight": 32, "lm_*": 64})
    program = fxonnx.export(Language(tied=False).eval(), (IDS,), quantize=config, target=target, verify=True)
    sizes = [node.attributes["block_size"].as_int() for node in program.model.graph if "block_size" in node.attributes]
    assert sizes == [16, 32]


@pytest.mark.parametrize("target", [None, "onnxruntime-genai"])
def test_some_layers_have_other_bits(target: Any) -> None:
    config = QuantizeConfig("int4", bits={"*inner": 8, "*": 4}, lm_head="int8", embeddings="tied")
    program = fxonnx.export(Language(tied=True).eval(), (IDS,), quantize=config, target=target, verify=True)
    assert program.quantization is not None
    layers = {(layer.name, layer.op_type): layer.dtype for layer in program.quantization.report().layers}
    assert {dtype for (_, kind), dtype in layers.items() if kind == "Gather"} == {"int8"}
    assert set(layers.values()) == {"int8"}


@pytest.mark.parametrize("width", [48, 96, 100, 576])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("is_tied", [True, False])
def test_tables_whose_rows_are_no_whole_blocks(width: int, bits: int, is_tied: bool, tmp_path: Path) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.lm_head = nn.Embedding(50, width), nn.Linear(width, 50, bias=False)
            if is_tied:
                self.lm_head.weight = self.table.weight

        def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            rows = self.table(ids)
            return rows, self.lm_head(rows)

    torch.manual_seed(0)
    model = Table().eval()
    element: Any = f"int{bits}"
    config = QuantizeConfig(element, block_size=128, embeddings=element)
    shapes = ({0: "batch", 1: "length"},)
    fxonnx.export(
        model, (IDS,), tmp_path / "m.onnx", dynamic_shapes=shapes, quantize=config, target="onnxruntime-genai"
    )
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    for ids in (torch.tensor([[49]]), torch.arange(12).reshape(2, 6)):
        found = session.run(None, {session.get_inputs()[0].name: ids.numpy()})
        for ours, expected in zip(found, model(ids), strict=True):
            assert ours.shape == tuple(expected.shape)
            error = float((torch.from_numpy(ours) - expected).norm() / expected.norm())
            assert error < (0.2 if bits == 4 else 0.02)


def test_the_same_bytes_as_onnxruntimes_own_quantization(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = nn.Linear(200, 48, bias=False).eval()
    x = torch.randn(2, 3, 200)
    fxonnx.export(model, (x,), tmp_path / "float.onnx")
    for bits, size in ((4, 32), (8, 128)):
        configuration = DefaultWeightOnlyQuantConfig(size, True, accuracy_level=4, bits=bits)
        quantizer = MatMulNBitsQuantizer(onnx.load(tmp_path / "float.onnx"), algo_config=configuration)
        quantizer.process()
        theirs = {tensor.name: tensor for tensor in quantizer.model.model.graph.initializer}
        (node,) = (node for node in quantizer.model.model.graph.node if node.op_type == "MatMulNBits")
        program = fxonnx.export(model, (x,), quantize=f"int{bits}", target="onnxruntime-genai")  # type: ignore[arg-type]
        (own,) = program.model.graph
        for name, value in zip(node.input[1:], own.inputs[1:], strict=True):
            assert value is not None
            assert value.const_value is not None
            assert np.array_equal(numpy_helper.to_array(theirs[name]), value.const_value.numpy())
        given = {attribute.name: attribute.i for attribute in node.attribute}
        assert given == {name: attribute.value for name, attribute in own.attributes.items()}


def test_onnxruntime_fuses_the_plain_form(tmp_path: Path) -> None:
    for quantize, opset in (("int4", 21), ("int8", 13), (QuantizeConfig("int4", symmetric=False), 25)):
        for example in (ROWS, flat(ROWS)):
            fxonnx.export(
                nn.Linear(40, 22).eval(), (example,), tmp_path / "model.onnx", quantize=quantize, opset_version=opset
            )
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
            onnxruntime.InferenceSession(tmp_path / "model.onnx", options, providers=["CPUExecutionProvider"])
            fused = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
            assert fused.count("MatMulNBits") == 1
            assert not {"DequantizeLinear", "MatMul", "Gemm"} & set(fused)


@pytest.mark.parametrize(
    ("form", "most"), [("int4", 0.165), ("int8", 0.255), ("int8_default", 0.265), ("nbits4", 0.165), ("nbits8", 0.265)]
)
def test_sizes(form: str, most: float) -> None:
    model = nn.Linear(512, 512, bias=False).eval()
    sizes = [
        len(
            saved(
                fxonnx.export(model, (torch.ones(2, 3, 512),), options=fxonnx.ExportOptions(metadata="none"), **options)
            )
        )
        for options in ({}, FORMS[form])
    ]
    assert sizes[1] <= most * sizes[0]


@pytest.mark.parametrize("form", ["int4", "int8", "nbits4_asymmetric"])
def test_weights_given_while_saving(form: str, tmp_path: Path) -> None:
    """A model without values, saved with a checkpoint's, is the same file; so is one saved twice."""
    torch.manual_seed(3)
    model = Language(tied=False).eval()
    options = {**FORMS[form], "options": fxonnx.ExportOptions(metadata="none")}
    expected = saved(fxonnx.export(model, (IDS,), **options))
    with torch.device("meta"):
        program = fxonnx.export(Language(tied=False).eval(), (IDS,), **options)
    with pytest.raises(SaveError, match="weights have no values"):
        saved(program)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "checkpoint.safetensors")
    for _ in range(2):
        assert saved(program, weights=tmp_path / "checkpoint.safetensors") == expected
    program.save(tmp_path / "model.onnx", weights=tmp_path / "checkpoint.safetensors", external_data=fxonnx.REFERENCE)
    (y,) = session_of(tmp_path / "model.onnx").run(None, {"ids": IDS.numpy()})
    program.apply_weights(model.state_dict())
    assert np.allclose(y, program.quantization.call_in_float(IDS)[0].numpy(), atol=1e-6)
    assert saved(program) == expected


def test_new_weights_are_quantized() -> None:
    program = fxonnx.export(Language(tied=True).eval(), (IDS,), quantize=QuantizeConfig(embeddings="int8"))
    other = Language(tied=True).eval()
    before = program.quantization.call_in_float(IDS)[0]
    program.apply_weights(other.state_dict())
    assert not torch.equal(program.quantization.call_in_float(IDS)[0], before)
    program.verify()
    assert program.weights.initializers["lm_head.weight"] == program.weights.initializers["table.weight"]
    assert len(program.weights.initializers["lm_head.weight"]) == 4


def test_activations_are_rounded_by_default() -> None:
    torch.manual_seed(4)
    for options in ({}, {"target": "onnxruntime-genai"}):
        program = fxonnx.export(nn.Linear(64, 64).eval(), (torch.randn(5, 64),), quantize="int4", **options)
        x = torch.randn(5, 64)
        rounded, exact = program(x)[0], program.quantization.call_in_float(x)[0]
        assert 0 < (rounded - exact).abs().max() < 3e-2 * exact.abs().max()


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    model = nn.Linear(40, 22).eval()
    model.weight.data[3, 4] = torch.inf
    program = fxonnx.export(model, (ROWS,), quantize="int4")
    with pytest.raises(SaveError, match="'weight::int4' cannot be written: it has elements that are not finite"):
        program.save(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_weights_of_zeros_and_tiny_ones() -> None:
    for dtype, scale in ((torch.float32, 0.0), (torch.float16, 6e-8), (torch.float32, 1e-38)):
        model = nn.Linear(40, 22, bias=False, dtype=dtype).eval()
        model.weight.data.uniform_(-scale, scale)
        for symmetric in (True, False):
            program = fxonnx.export(model, (ROWS.to(dtype),), quantize=QuantizeConfig(symmetric=symmetric))
            assert program(ROWS.to(dtype))[0].abs().max() <= 40 * scale + 1e-36


class Counted(nn.Module):
    """A layer in the body of a loop, and one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(40, 40), nn.Linear(40, 40)

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return torch.while_loop(
            lambda i, _: i < n, lambda i, y: (i + 1, self.inner(y).tanh()), (torch.zeros((), dtype=torch.int64), x)
        )[1]


@pytest.mark.parametrize(("form", "count"), [("int4", 1), ("nbits4", 2)])
def test_bodies_of_loops(form: str, count: int) -> None:
    program = fxonnx.export(Counted().eval(), (ROWS, torch.tensor(3)), verify=True, **FORMS[form])
    names = [name for name in program.model.graph.initializers if name.endswith("::int4")]
    assert names == [name + ".weight::int4" for name in ("first", "inner")][:count]


@pytest.mark.parametrize("form", ["int4", "nbits4"])
def test_functions_of_repeated_layers(form: str) -> None:
    torch.manual_seed(5)
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.LayerNorm(40)) for _ in range(3))).eval()
    flat_program = fxonnx.export(blocks, (ROWS,), **FORMS[form])
    program = fxonnx.export(
        blocks, (ROWS,), options=fxonnx.ExportOptions(functions="repeated"), verify=True, **FORMS[form]
    )
    assert program.model.functions
    assert torch.equal(program(ROWS)[0], flat_program(ROWS)[0])


class Unusual(nn.Module):
    """Weights that are concatenated, transposed by the model, multiplied by vectors, or of an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.vector = nn.Linear(40, 40), nn.Linear(40, 16, bias=False), nn.Linear(40, 40)
        self.turned, self.lora = nn.Parameter(torch.randn(40, 40)), nn.Linear(40, 40, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, torch.cat([self.a.weight, self.b.weight]))[..., :40] + self.lora(x)
        return y @ self.turned.t() + self.vector(x[0, 0])


@pytest.mark.parametrize("form", ["int4", "nbits4"])
def test_other_forms_of_weights(form: str) -> None:
    program = fxonnx.export(
        Unusual().eval(), (ROWS,), dynamic_shapes=({0: "batch"},), verify="auto", adapters="lora.*", **FORMS[form]
    )
    names = {name.removesuffix("::int4") for name in program.model.graph.initializers if name.endswith("::int4")}
    assert names == {"a.weight::cat", "turned::t"}
    assert program.interface.adapters == ("lora.weight",)
    # The weights that the model concatenates are quantized together or not at all.
    for choice, expected in (({"include": ["b"]}, 0), ({"include": ["a", "b"]}, 1), ({"exclude": ["a", "turned"]}, 0)):
        program = fxonnx.export(Unusual().eval(), (ROWS,), quantize=QuantizeConfig(**choice), adapters="lora.*")
        assert sum(name.endswith("::int4") for name in program.model.graph.initializers) == expected


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.randn(22, 40)), nn.Parameter(torch.rand(22, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight * self.gain)


def test_weights_that_are_quantized_after_they_are_computed() -> None:
    model = Scaled().eval()
    program = fxonnx.export(model, (ROWS,), quantize="int8")
    assert (program(ROWS)[0] - model(ROWS)).abs().max() < 0.5
    with pytest.raises(
        ArgumentError, match="'weight::mul::int8' is quantized after it is computed from 'weight', 'gain'"
    ):
        program.verify()
