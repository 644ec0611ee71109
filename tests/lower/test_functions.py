"""Repeated modules as ONNX functions: ``export(functions="repeated")``."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import transformers
from torch import nn

import fxonnx
from fxonnx import ArgumentError, ONNXProgram

from ..models.torchvision_shim import import_torchvision

# transformers imports torchvision.
import_torchvision()

DOMAIN = "fxonnx.repeated"


def encoder(layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class Block(nn.Module):
    """A convolutional block whose batch norms are folded into the weights."""

    def __init__(self, dilation: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=dilation, dilation=dilation)
        self.second = nn.Conv2d(4, 4, 1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.second(self.first(x).relu())).sigmoid()


class Scaled(nn.Module):
    """A table computed in the first block, a scalar that differs, side outputs, and a branch on data."""

    class Layer(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            key = self.linear(x) * (table.sin() + x.shape[1])
            key = torch.cond(key.sum() > 0, lambda key, x: key.exp() + x, lambda key, x: key - 1, (key, x))
            return key.tanh() * self.scale, key

    def __init__(self, scales: tuple[float, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(self.Layer, scales))

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> Any:
        keys = []
        for layer in self.layers:
            x, key = layer(x, table)
            keys.append(key)
        return x, keys


class Shared(nn.Module):
    """One block called several times."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.block(x)
        return x


class Counting(nn.Module):
    """Blocks that update a buffer."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.mean: torch.Tensor
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x).relu()
            self.mean.mul_(0.9).add_(y.mean(0))
            return y + self.mean

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(self.Layer() for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Experts(nn.Module):
    """Blocks that contain equal modules."""

    def __init__(self, blocks: int, experts: int) -> None:
        super().__init__()

        def expert() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.Tanh())

        self.blocks = nn.ModuleList(nn.ModuleList(expert() for _ in range(experts)) for _ in range(blocks))
        self.wrap = nn.ModuleList(map(self.Block, self.blocks))

    class Block(nn.Module):
        def __init__(self, experts: nn.ModuleList) -> None:
            super().__init__()
            self.experts = experts

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + sum(expert(x) for expert in self.experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.wrap:
            x = block(x)
        return x


SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "vocab_size": 50,
}


def llama(**changes: Any) -> nn.Module:
    return transformers.LlamaModel(transformers.LlamaConfig(**SMALL, **{"use_cache": False, **changes}))


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**SMALL))


def gpt2() -> nn.Module:
    sizes = {"n_embd": 16, "n_head": 2, "n_layer": 4, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2Model(transformers.GPT2Config(**sizes, use_cache=True))


def vit() -> nn.Module:
    sizes = {name: value for name, value in SMALL.items() if name != "vocab_size"}
    return transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=16, patch_size=8))


def gemma() -> nn.Module:
    config = transformers.Gemma3TextConfig(
        **SMALL,
        num_key_value_heads=2,
        head_dim=8,
        use_cache=False,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    return transformers.Gemma3TextModel(config)


IDS = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))
OTHER_IDS = torch.randint(0, 50, (3, 5), generator=torch.Generator().manual_seed(1))
X = torch.linspace(-1, 1, 2 * 7 * 16).reshape(2, 7, 16)
OTHER_X = torch.linspace(-2, 1, 3 * 5 * 16).reshape(3, 5, 16)
IMAGE = torch.linspace(-1, 1, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)
ROWS = torch.linspace(-1, 1, 12).reshape(3, 4)
OTHER_ROWS = torch.linspace(-1, 2, 20).reshape(5, 4)
TABLE = torch.linspace(0, 1, 4)

# Model, inputs, inputs of other sizes for an export with dynamic sizes, calls of each function.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], tuple[Any, ...] | None, dict[str, int]]] = {
    "encoder": (lambda: encoder(6), (X,), (OTHER_X,), {"TransformerEncoderLayer": 6}),
    "static_encoder": (lambda: encoder(6), (X,), None, {"TransformerEncoderLayer": 6}),
    "llama": (llama, (IDS,), (OTHER_IDS,), {"LlamaDecoderLayer": 4}),
    "bert": (bert, (IDS,), (OTHER_IDS,), {"BertLayer": 4}),
    "gpt2": (gpt2, (IDS,), (OTHER_IDS,), {"GPT2Block": 4}),
    "vit": (vit, (torch.linspace(-1, 1, 1536).reshape(2, 3, 16, 16),), None, {"ViTLayer": 4}),
    "alternating": (
        gemma,
        (IDS,),
        (OTHER_IDS,),
        {"Gemma3DecoderLayer": 2, "Gemma3DecoderLayer_1": 2, "Gemma3RotaryEmbedding": 2},
    ),
    "conv": (lambda: nn.Sequential(*(Block() for _ in range(4))), (IMAGE,), None, {"Block": 4}),
    "attribute": (lambda: nn.Sequential(*map(Block, (1, 2, 1, 2, 1))), (IMAGE,), None, {"Block": 3, "Block_1": 2}),
    "branches": (lambda: Scaled((1.0, 1.0, 1.0)), (ROWS, TABLE), (OTHER_ROWS, TABLE), {"Layer": 3}),
    "constant": (lambda: Scaled((1.0, 2.0, 1.0, 2.0)), (ROWS, TABLE), None, {"Layer": 2, "Layer_1": 2}),
    "shared": (Shared, (ROWS,), (OTHER_ROWS,), {"Sequential": 3}),
    "buffers": (Counting, (ROWS,), (OTHER_ROWS,), {"Layer": 3}),
    "nested": (lambda: Experts(3, 4), (ROWS,), (OTHER_ROWS,), {"Block": 3}),
    "none": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), (ROWS,), None, {}),
}


def made(name: str) -> tuple[nn.Module, tuple[Any, ...], tuple[Any, ...] | None, dict[str, int]]:
    make, args, others, calls = MODELS[name]
    torch.manual_seed(0)
    return make().eval(), args, others, calls


def dynamic(args: tuple[Any, ...], others: tuple[Any, ...] | None) -> Any:
    """Dynamic dims where the sizes of the inputs differ."""
    if others is None:
        return None
    return tuple(
        {
            axis: torch.export.Dim.DYNAMIC
            for axis, (size, other) in enumerate(zip(one.shape, two.shape, strict=True))
            if size != other
        }
        for one, two in zip(args, others, strict=True)
    )


def calls_of(program: ONNXProgram) -> dict[str, int]:
    return dict(Counter(node.op_type for node in program.model.graph if node.domain == DOMAIN))


def node_count(program: ONNXProgram) -> int:
    functions = program.model.functions.values()
    return sum(len(list(graph.all_nodes())) for graph in (program.model.graph, *functions))


def without_weights(program: ONNXProgram) -> int:
    file = io.BytesIO()
    program.save(file, include_initializers=False)
    return len(file.getvalue())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_repeated_modules(name: str) -> None:
    model, args, others, calls = made(name)
    flat, program = (
        fxonnx.export(model, args, dynamic_shapes=dynamic(args, others), functions=functions)  # type: ignore[arg-type]
        for functions in ("none", "repeated")
    )
    assert not flat.model.functions
    assert calls_of(program) == calls
    onnx.checker.check_model(program.model_proto, full_check=True)
    for inputs in (args, others or args):
        expected = flat(*inputs)
        for one, two in zip(program(*inputs), expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
        program.verify(inputs)
    assert program.weights == flat.weights
    if calls:
        assert node_count(program) < node_count(flat) + 20
        assert without_weights(program) < without_weights(flat)


@pytest.mark.parametrize("opset", [15, 17, 23])
@pytest.mark.parametrize("name", ["encoder", "llama", "branches"])
@pytest.mark.filterwarnings("ignore")
def test_opsets(name: str, opset: int) -> None:
    model, args, others, calls = made(name)
    program = fxonnx.export(
        model, args, dynamic_shapes=dynamic(args, others), functions="repeated", opset_version=opset
    )
    assert calls_of(program) == calls
    assert all(function.opset_imports[""] == opset for function in program.model.functions.values())
    onnx.checker.check_model(program.model_proto, full_check=True)
    program.verify(others)


@pytest.mark.filterwarnings("ignore")
def test_half_precision() -> None:
    model = llama().half().eval()
    program = fxonnx.export(model, (IDS,), functions="repeated")
    assert calls_of(program) == {"LlamaDecoderLayer": 4}
    program.verify()


def test_a_fifth_of_the_nodes_and_of_the_file() -> None:
    model = encoder(24).eval()
    flat = fxonnx.export(model, (X,), dynamic_shapes=({0: "batch", 1: "time"},))
    program = fxonnx.export(model, (X,), dynamic_shapes=({0: "batch", 1: "time"},), functions="repeated")
    assert calls_of(program) == {"TransformerEncoderLayer": 24}
    assert len(program.model.functions) == 1
    assert node_count(program) * 5 < node_count(flat)
    assert without_weights(program) * 5 < without_weights(flat)
    assert len(program.model_proto.SerializeToString()) < len(flat.model_proto.SerializeToString())


def test_names_and_metadata() -> None:
    program = fxonnx.export(encoder(3).eval(), (X,), functions="repeated")
    (function,) = program.model.functions.values()
    assert (function.domain, function.name) == (DOMAIN, "TransformerEncoderLayer")
    assert program.model.opset_imports[DOMAIN] == 1
    inputs = [value.name for value in function.inputs]
    assert inputs[:2] == ["src", "self_attn.in_proj_weight::transposed"]
    calls = list(program.model.graph)
    assert [call.inputs[1].name for call in calls if call.inputs[1] is not None] == [
        f"layers.{index}.self_attn.in_proj_weight::transposed" for index in range(3)
    ]
    metadata = calls[1].metadata_props
    assert metadata["pkg.torch.onnx.name_scopes"].startswith("['', 'layers.1', ")
    assert metadata["pkg.torch.onnx.class_hierarchy"].endswith(", 'fxonnx.repeated::TransformerEncoderLayer']")
    assert metadata["pkg.torch.onnx.stack_trace"].splitlines()[0].endswith("in forward")
    assert program.model.graph.outputs[0].name in [value.name for value in calls[2].outputs]
    plain = fxonnx.export(encoder(3).eval(), (X,), functions="repeated", metadata="none")
    assert not next(iter(plain.model.graph)).metadata_props


def test_dims_are_known_where_all_calls_agree() -> None:
    class Cached(nn.Module):
        class Layer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                past = torch.cat([past, self.linear(x).relu()])
                return x + past.sum(0).tanh(), past

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(self.Layer() for _ in range(3))

        def forward(self, x: torch.Tensor, pasts: list[torch.Tensor]) -> Any:
            present = []
            for layer, past in zip(self.layers, pasts, strict=True):
                x, new = layer(x, past)
                present.append(new)
            return x, present

    pasts = [torch.ones(size, 4) for size in (2, 3, 4)]
    sizes = ({0: "n"}, [{0: f"past_{index}"} for index in range(3)])
    program = fxonnx.export(Cached().eval(), (ROWS, pasts), dynamic_shapes=sizes, functions="repeated")
    assert calls_of(program) == {"Layer": 3}
    (function,) = program.model.functions.values()
    shapes = {value.name: value.shape for value in function.inputs}
    assert [str(dim) for dim in shapes["x"] or ()] == ["n", "4"]
    assert str((shapes["pasts_0"] or [0])[0]) in ("None", "?")
    program.verify((OTHER_ROWS, [torch.ones(size, 4) for size in (5, 1, 7)]))
    program.rename_axes({"n": "rows"})
    assert [str(dim) for dim in shapes["x"] or ()] == ["rows", "4"]
    assert [str(dim) for dim in program.model.graph.inputs[0].shape or ()] == ["rows", "4"]


def test_weights_can_be_replaced() -> None:
    model, other = encoder(3).eval(), encoder(3).eval()
    torch.manual_seed(1)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    program = fxonnx.export(model, (X,), functions="repeated")
    program.apply_weights(other.state_dict())
    torch.testing.assert_close(program(X)[0], other(X), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("external_data", [False, True, "safetensors"])
def test_saved_files(external_data: Any, tmp_path: Path) -> None:
    import onnxruntime

    model = encoder(3).eval()
    program = fxonnx.export(model, (X,), functions="repeated")
    path = tmp_path / "model.onnx"
    program.save(path, external_data=external_data)
    onnx.checker.check_model(path, full_check=True)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"src": X.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(X), rtol=1e-5, atol=1e-5)


def test_state() -> None:
    program = fxonnx.export(Counting().eval(), (ROWS,), functions="repeated", state="io")
    assert calls_of(program) == {"Layer": 3}
    torch.manual_seed(0)
    model = Counting().eval()
    program.apply_weights(model.state_dict())
    session = program.stateful_session()
    for rows in (ROWS, ROWS + 1):
        torch.testing.assert_close(session(rows)[0], model(rows))


def test_downstream(tmp_path: Path) -> None:
    program = fxonnx.export(encoder(3).eval(), (X,), functions="repeated", report=True, artifacts_dir=tmp_path)
    (page,) = tmp_path.glob("*.md")
    assert "| fxonnx.repeated::TransformerEncoderLayer | 40 | 3 |" in page.read_text()
    assert "1 functions" in repr(program)
    assert not [finding for finding in program.check("onnxruntime") if finding.severity == "fails"]
    torch.testing.assert_close(program.call_reference(X)[0], program(X)[0], rtol=1e-4, atol=1e-5)
    name = str(next(iter(program.model.graph)).outputs[0].name)
    assert program.compute_values([name], (X,))[0].shape == X.shape
    program.optimize()
    program.verify()


def test_printed_graph(capsys: pytest.CaptureFixture[str]) -> None:
    fxonnx.export(encoder(3).eval(), (X,), functions="repeated", verbose=True)
    assert "function fxonnx.repeated::TransformerEncoderLayer (" in capsys.readouterr().out


def test_older_opsets() -> None:
    with pytest.raises(ArgumentError, match=r"functions: functions require IR version 8(?s:.*)opset_version=15"):
        fxonnx.export(encoder(3).eval(), (X,), functions="repeated", opset_version=14)
    program = fxonnx.export(encoder(3).eval(), (X,), functions="repeated", opset_version=14, ir_version=8)
    program.verify()


def test_unknown_choice() -> None:
    with pytest.raises(ArgumentError, match=r"functions: expected one of 'none', 'regions', 'repeated', got"):
        fxonnx.export(encoder(3).eval(), (X,), functions="repeat")  # type: ignore[arg-type]


@torch.compiler.nested_compile_region
def scaled(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.nn.functional.linear(x, weight)) * 2


class Marked(nn.Module):
    """Regions: a function, a method that calls it, and a closure."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        @torch.compiler.nested_compile_region
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).tanh() + scaled(self.linear.weight, x)

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.layers = nn.ModuleList(self.Layer() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean()

        @torch.compiler.nested_compile_region
        def closed(x: torch.Tensor) -> torch.Tensor:
            return x.sin() * mean + self.one.bias

        x = scaled(self.two.weight, scaled(self.one.weight, x))
        for layer in self.layers:
            x = layer(x)
        return closed(x)


@pytest.mark.parametrize("others", [None, (OTHER_ROWS,)], ids=["static", "dynamic"])
def test_marked_regions(others: tuple[Any, ...] | None) -> None:
    torch.manual_seed(0)
    model = Marked().eval()
    program = fxonnx.export(model, (ROWS,), dynamic_shapes=dynamic((ROWS,), others))
    calls = [(node.domain, node.op_type) for node in program.model.graph if node.domain]
    assert calls == [("fxonnx.regions", name) for name in ("scaled", "scaled", "Layer", "Layer", "closed")]
    functions = {function.name: function for function in program.model.functions.values()}
    assert [node.op_type for node in functions["Layer"]] == ["Gemm", "Tanh", "scaled", "Add"]
    assert [value.name for value in functions["Layer"].inputs][1:] == ["linear.weight", "linear.bias"]
    assert functions["Layer"].opset_imports == {"": 20, "fxonnx.regions": 1}
    onnx.checker.check_model(program.model_proto, full_check=True)
    program.verify(others)
    repeated = fxonnx.export(model, (ROWS,), functions="repeated")
    assert [node.op_type for node in repeated.model.graph] == [node.op_type for node in program.model.graph]


def test_marked_regions_of_a_flat_graph() -> None:
    for options in ({"functions": "none"}, {"opset_version": 14}):
        program = fxonnx.export(Marked().eval(), (ROWS,), **options)
        assert not program.model.functions
        assert not any(node.domain for node in program.model.graph)
        program.verify()


def test_marked_regions_of_a_captured_program() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scaled(self.two.weight, scaled(self.one.weight, x))

    captured = torch.export.export(Twice().eval().requires_grad_(False), (ROWS,), strict=True)
    assert any(node.target is torch.ops.higher_order.invoke_subgraph for node in captured.graph.nodes)
    program = fxonnx.export(captured)
    (function,) = program.model.functions.values()
    assert [node.domain for node in program.model.graph] == ["fxonnx.regions"] * 2
    assert len(function.inputs) == 2
    program.verify()
