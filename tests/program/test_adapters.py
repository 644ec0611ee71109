"""Adapter weights as graph inputs with default values, and adapter files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fxonnx
from fxonnx import ArgumentError, ONNXProgram, SaveError

from ..models.torchvision_shim import import_torchvision


class LoraLinear(nn.Module):
    """A linear layer with low-rank adapters, and names as in PEFT."""

    def __init__(self, size: int, ranks: Mapping[str, int], alpha: float = 4.0) -> None:
        super().__init__()
        self.base_layer = nn.Linear(size, size)
        self.lora_A = nn.ModuleDict({name: nn.Linear(size, rank, bias=False) for name, rank in ranks.items()})
        self.lora_B = nn.ModuleDict({name: nn.Linear(rank, size, bias=False) for name, rank in ranks.items()})
        self.scaling = {name: alpha / rank for name, rank in ranks.items()}
        self.active = "default"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = self.lora_B[self.active](self.lora_A[self.active](x))
        return self.base_layer(x) + added * self.scaling[self.active]


class Model(nn.Module):
    def __init__(self, **ranks: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*[LoraLinear(8, ranks or {"default": 4, "german": 2}) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def activate(self, name: str) -> None:
        for layer in self.layers:
            layer.active = name


class Product(nn.Module):
    """Adapter weights in operators for which ordinary weights are transposed, folded or stored in another dtype."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv1d(3, 4, 1)
        self.norm = nn.BatchNorm1d(4)
        self.table = nn.Parameter(torch.randn(4, 4))
        self.index = nn.Buffer(torch.tensor([0, 1, 2]))
        self.small = nn.Parameter(torch.randn(4).half())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.conv(x)).transpose(1, 2)
        h = h @ self.table.t() + self.table.sum(0) + self.small.float()
        return h.index_add(0, self.index, h)


X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
SHAPES = {"x": {0: "batch", 1: "tokens"}}


def exported(model: nn.Module, x: torch.Tensor = X, **options: Any) -> ONNXProgram:
    return fxonnx.export(model.eval(), (x,), **{"dynamic_shapes": SHAPES, "adapters": "*.lora_*", **options})


def runner(program: ONNXProgram, path: Path) -> Callable[..., torch.Tensor]:
    """A function that runs the saved model, with an adapter file or without."""
    program.save(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(x: torch.Tensor, file: Path | None = None) -> torch.Tensor:
        run_options, adapter = onnxruntime.RunOptions(), onnxruntime.LoraAdapter()
        if file is not None:
            adapter.Load(str(file))
            run_options.add_active_adapter(adapter)
        return torch.from_numpy(session.run(None, {"x": x.numpy()}, run_options)[0])

    return run


def save_peft(directory: Path, model: Model, name: str, **config: Any) -> Path:
    """Write an adapter in the format of PEFT."""
    directory.mkdir()
    tensors = {
        "base_model.model." + key.replace(f".{name}.", "."): value.clone()
        for key, value in model.state_dict().items()
        if f".{name}." in key
    }
    save_file(tensors, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
    return directory


def test_adapter_files_of_one_base(tmp_path: Path) -> None:
    model = Model()
    program = exported(model, verify="auto")
    assert program.interface.adapters == tuple(
        f"layers.{layer}.lora_{factor}.default.weight" for layer in (0, 1) for factor in "AB"
    )
    run = runner(program, tmp_path / "model.onnx")
    german = save_peft(tmp_path / "german", model, "german", lora_alpha=4.0, r=2)
    rslora = save_peft(tmp_path / "rslora", model, "german", lora_alpha=4 / 2**0.5, r=2, use_rslora=True)
    pattern = {"lora_alpha": 1.0, "alpha_pattern": {r"layers\.\d": 4.0}}
    patterned = save_peft(tmp_path / "patterned", model, "german", **pattern)
    zeros = {name: torch.zeros_like(value) for name, value in model.state_dict().items() if ".default." in name}
    files: dict[str, tuple[Any, str | None]] = {
        "default": (None, None),
        "state_dict": (model.state_dict(), None),
        "double": ({name: value.double() for name, value in model.state_dict().items()}, None),
        "german": (None, "german"),
        "german_directory": (german, None),
        "german_file": (german / "adapter_model.safetensors", None),
        "german_rslora": (rslora, None),
        "german_patterned": (patterned, None),
        "base": (zeros, None),
    }
    with torch.no_grad():
        expected = {"default": model(X), "state_dict": model(X), "double": model(X)}
        expected["base"] = model.layers[1].base_layer(model.layers[0].base_layer(X))
        model.activate("german")
        german_result = model(X)
    torch.testing.assert_close(run(X), expected["default"])
    for name, (weights, adapter) in files.items():
        file = tmp_path / f"{name}.onnx_adapter"
        program.save_adapter(file, weights, adapter=adapter)
        torch.testing.assert_close(run(X, file), expected.get(name, german_result), msg=name)
    assert not torch.allclose(german_result, expected["default"], atol=1e-2)


def test_inputs_have_the_shape_and_name_of_the_parameter(tmp_path: Path) -> None:
    exported(Model()).save(tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in graph.input[1:]}
    assert shapes["layers.0.lora_A.default.weight"] == [4, 8]
    assert {tensor.name: list(tensor.dims) for tensor in graph.initializer}.items() >= shapes.items()


def test_without_the_option_the_model_is_the_same() -> None:
    plain, selected = exported(Model(), adapters=()), exported(Model(), adapters=["layers.0.lora_A.default.weight"])
    assert plain.interface.adapters == ()
    assert "layers.0.lora_A.default.weight::transposed" in plain.model.graph.initializers
    assert selected.interface.adapters == ("layers.0.lora_A.default.weight",)
    assert "layers.1.lora_A.default.weight::transposed" in selected.model.graph.initializers


@pytest.mark.parametrize(
    "options",
    [{}, {"options": fxonnx.ExportOptions(functions="repeated")}, {"target": "onnxruntime"}, {"optimize": False}],
)
def test_program_members(options: dict[str, Any], tmp_path: Path) -> None:
    model = Model()
    program = exported(model, **options)
    (expected,) = program(X)
    torch.testing.assert_close(program.call_reference(X)[0], expected)
    name = program.interface.adapters[0]
    torch.testing.assert_close(program.compute_values([name], (X,))[0], model.state_dict()[name])
    assert program.weights.sources[name] == (name,)
    program.apply_weights({name: torch.zeros(4, 8)})
    assert not torch.allclose(program(X)[0], expected)
    program.verify(sizes="auto")
    program.save_adapter(tmp_path / "zero.onnx_adapter")
    saved = onnxruntime.AdapterFormat.read_adapter(str(tmp_path / "zero.onnx_adapter")).get_parameters()
    assert list(saved[name].shape()) == [4, 8]
    assert not saved[name].numpy().any()
    run = runner(exported(model, **options), tmp_path / "model.onnx")
    torch.testing.assert_close(run(X, tmp_path / "zero.onnx_adapter"), program(X)[0])
    assert repr(program).splitlines()[1].endswith("x: float[batch, tokens, 8], 4 adapter weights")


def test_weights_that_are_folded_otherwise(tmp_path: Path) -> None:
    x = torch.randn(3, 3, 6)
    model = Product().eval()
    program = fxonnx.export(model, (x,), adapters=["conv.*", "table", "index", "small"], verify=True)
    assert program.interface.adapters == ("table", "small", "conv.weight", "conv.bias", "index")
    other = Product().eval()
    for weight in (other.table, other.small, other.conv.weight, other.conv.bias):
        torch.nn.init.uniform_(weight)
    other.index.copy_(torch.tensor([2, 2, 0]))
    program.save_adapter(tmp_path / "other.onnx_adapter", other.state_dict())
    run = runner(program, tmp_path / "model.onnx")
    with torch.no_grad():
        torch.testing.assert_close(run(x, tmp_path / "other.onnx_adapter"), other(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    model = Model().to(dtype)
    program = exported(model, X.to(dtype), verify=True)
    program.save_adapter(tmp_path / "half.onnx_adapter", {k: v.float() for k, v in model.state_dict().items()})
    saved = onnxruntime.AdapterFormat.read_adapter(str(tmp_path / "half.onnx_adapter")).get_parameters()
    types = {torch.float16: onnx.TensorProto.FLOAT16, torch.bfloat16: onnx.TensorProto.BFLOAT16}
    assert {value.element_type() for value in saved.values()} == {types[dtype]}


def test_states_come_first(tmp_path: Path) -> None:
    class Counting(Model):
        def __init__(self) -> None:
            super().__init__()
            self.count = nn.Buffer(torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return self.layers(x) + self.count

    program = exported(Counting(), state="io")
    session = program.stateful_session()
    session(X)
    torch.testing.assert_close(session(X)[0], program(X)[0] + 1)
    assert len(program.interface.adapters) == 4


def test_tied_adapters(tmp_path: Path) -> None:
    model = Model()
    model.layers[1].lora_A["default"].weight = model.layers[0].lora_A["default"].weight
    program = exported(model, verify=True)
    assert len(program.interface.adapters) == 3
    program.save_adapter(tmp_path / "tied.onnx_adapter", model.state_dict())
    different = dict(model.state_dict()) | {"layers.1.lora_A.default.weight": torch.ones(4, 8)}
    with pytest.raises(ArgumentError, match=r"weights: 'layers.1.lora_A.default.weight' in the state_dict is tied to"):
        program.save_adapter(tmp_path / "tied.onnx_adapter", different)
    for pattern in ("layers.0.lora_*", "layers.1.lora_*"):
        with pytest.raises(
            ArgumentError, match=r"lora_A.default.weight' are tied weights, but only the first is selected"
        ):
            exported(model, adapters=pattern)


def test_meta_device(tmp_path: Path) -> None:
    model = Model()
    with torch.device("meta"):
        empty = Model()
    program = exported(empty, X.to("meta"))
    with pytest.raises(SaveError, match=r"'layers.0.lora_A.default.weight' has no values"):
        program.save_adapter(tmp_path / "a.onnx_adapter")
    program.save_adapter(tmp_path / "a.onnx_adapter", model.state_dict())
    program.save(tmp_path / "model.onnx", weights=model.state_dict())
    assert (tmp_path / "a.onnx_adapter").is_file()


@pytest.mark.parametrize(
    ("adapters", "match"),
    [
        ("*.lora_C*", r"adapters: '\*.lora_C\*' matches no parameter of the model\nhint: "),
        ("layers.0.lora_A.defualt.weight", "hint: did you mean 'layers.0.lora_A.default.weight' or"),
        ("*.german.*", r"adapters: '\*.german.\*' matches only parameters that forward does not use, as 'layers.0"),
        (["*.lora_A.*", "typo"], "adapters: 'typo' matches no parameter"),
        (3, "adapters: expected a pattern or a list of patterns, got 3"),
        ([3], r"adapters: expected a pattern or a list of patterns, got \[3\]"),
    ],
)
def test_invalid_patterns(adapters: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        exported(Model(), adapters=adapters)


def test_updated_weights_cannot_be_selected() -> None:
    class Updated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Buffer(torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean += x.mean((0, 1))
            return x - self.mean

    with pytest.raises(ArgumentError, match=r"adapters: forward writes to 'mean', which state=\"io\" makes an input"):
        exported(Updated(), adapters="mean", state="io")


def test_invalid_adapters(tmp_path: Path) -> None:
    model = Model()
    program, path = exported(model), tmp_path / "a.onnx_adapter"
    state = {name: value for name, value in model.state_dict().items() if ".default." in name}
    german = save_peft(tmp_path / "german", model, "german", lora_alpha=1)
    larger = save_peft(tmp_path / "larger", Model(default=6), "default", lora_alpha=1)
    ia3 = save_peft(tmp_path / "ia3", model, "german", peft_type="IA3")
    broken = save_peft(tmp_path / "broken", model, "german")
    (broken / "adapter_config.json").write_text("{}")
    name = "layers.0.lora_A.default.weight"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"weights": {}}, r"weights: the state_dict does not match the adapter weights: missing 'layers.0.lora_A"),
        ({"weights": {k: v for k, v in state.items() if k != name}}, f"missing '{name}'\nhint: "),
        ({"weights": state | {"layers.9.lora_A.weight": X}}, "'layers.9.lora_A.weight' is not among its inputs"),
        ({"weights": state | {name: torch.ones(3, 8)}}, r"is torch.float32 of shape \[3, 8\], expected torch.float32"),
        ({"weights": state | {name: torch.ones(4, 8).int()}}, r"is torch.int32 of shape \[4, 8\], expected"),
        ({"weights": state | {name: 3}}, "expected a state_dict of tensors, it has an int"),
        ({"weights": tmp_path / "missing"}, "does not exist"),
        ({"weights": larger}, r"is torch.float32 of shape \[6, 8\], expected torch.float32 of shape \[4, 8\]"),
        ({"weights": ia3}, "has the type 'IA3', not 'LORA'"),
        ({"weights": broken}, "adapter_config.json is not a configuration of PEFT"),
        ({"adapter": "germam"}, r"no adapter 'germam' with the same layers\nhint: did you mean 'german'\?"),
        ({"weights": state, "adapter": "german"}, "names an adapter of the exported model, but weights are given"),
    ]
    for arguments, match in cases:
        with pytest.raises(ArgumentError, match=match):
            program.save_adapter(path, **arguments)
    with pytest.raises(SaveError, match=r"directory .* does not exist"):
        program.save_adapter(tmp_path / "missing" / "a.onnx_adapter")
    assert not path.exists()
    with pytest.raises(ArgumentError, match="the model has no adapter weights"):
        exported(model, adapters=()).save_adapter(path)
    for layer in model.layers:
        layer.scaling = {"german": 1.0}
    with pytest.raises(ArgumentError, match=r"the scaling of 'layers.0' in the exported model is not known"):
        program.save_adapter(path, german)


def test_adapters_without_some_layers(tmp_path: Path) -> None:
    """The directory of PEFT, or another adapter of the model, has one of two layers: the other is the base model's."""
    model = Model()
    for factors in (model.layers[1].lora_A, model.layers[1].lora_B):
        del factors["german"]
    program = exported(model)
    run = runner(program, tmp_path / "model.onnx")
    german = save_peft(tmp_path / "german", model, "german", lora_alpha=4.0, r=2)
    program.save_adapter(tmp_path / "named", adapter="german")
    program.save_adapter(tmp_path / "directory", german)
    layer = model.layers[1]
    with torch.no_grad():
        layer.lora_B["default"].weight.zero_()
        model.layers[0].lora_A["default"] = model.layers[0].lora_A["german"]
        model.layers[0].lora_B["default"] = model.layers[0].lora_B["german"]
        model.layers[0].scaling = dict.fromkeys(("default", "german"), model.layers[0].scaling["german"])
        expected = model(X[:2])
    for name in ("named", "directory"):
        torch.testing.assert_close(run(X[:2], tmp_path / name), expected, atol=1e-5, rtol=1e-4)
    incomplete = {key: value for key, value in load_file(german / "adapter_model.safetensors").items() if "_A" in key}
    save_file(incomplete, german / "adapter_model.safetensors")
    with pytest.raises(ArgumentError, match=r"does not match the adapter weights: missing 'layers\.0\.lora_B"):
        program.save_adapter(tmp_path / "other", german)


def test_adapter_with_further_layers(tmp_path: Path) -> None:
    model = Model()
    model.layers[1].lora_A["default"] = model.layers[1].lora_B["default"] = nn.Identity()
    program = exported(model)
    match = r"adapter: 'german' has weights that are not inputs of the exported model: 'layers.1.lora_A.german"
    with pytest.raises(ArgumentError, match=match):
        program.save_adapter(tmp_path / "a.onnx_adapter", adapter="german")
    again = fxonnx.export(program.exported_program, adapters="*.lora_*")
    with pytest.raises(ArgumentError, match="adapter: the exported module is not known"):
        again.save_adapter(tmp_path / "a.onnx_adapter", adapter="german")


def test_peft(tmp_path: Path) -> None:
    import_torchvision()
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = {"target_modules": ["0", "1"], "init_lora_weights": False}
    model = peft.get_peft_model(
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), peft.LoraConfig(r=4, lora_alpha=8, **config)
    )
    model.add_adapter("german", peft.LoraConfig(r=2, lora_alpha=3, use_rslora=True, **config))
    model.save_pretrained(tmp_path)
    program = fxonnx.export(model.eval(), (X,), adapters="*.lora_*", input_names=["x"], verify=True)
    run = runner(program, tmp_path / "model.onnx")
    files = {"directory": (tmp_path / "german", None), "name": (None, "german")}
    model.set_adapter("german")
    with torch.no_grad():
        expected = model(X)
    for name, (weights, adapter) in files.items():
        file = tmp_path / f"{name}.onnx_adapter"
        program.save_adapter(file, weights, adapter=adapter)
        torch.testing.assert_close(run(X, file), expected)
