"""Members of ONNXProgram besides calls and save: weights, intermediate values, rename_axes, optimize."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn
from torch.onnx.errors import OnnxExporterWarning

import fxonnx
from fxonnx import ArgumentError, SaveError

from ..functions import VariadicFunction


class Network(nn.Module):
    """Every kind of weight: used directly, transposed, folded, tied, complex, a buffer, and unused."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.table = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6)
        self.head.weight = self.table.weight
        self.phase = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.register_buffer("shift", torch.rand(6))
        self.register_buffer("hidden", torch.rand(6), persistent=False)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> dict[str, Any]:
        x = self.norm(self.conv(x)).mean((2, 3)) + self.table(ids)
        turned = torch.view_as_real(x * self.phase)[..., 0]
        return {"logits": self.head(turned) + self.shift * self.hidden, "nothing": None, "pooled": (x,)}


def inputs(batch: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 2, 5, 5), torch.randint(0, 6, (batch,))


def exported(model: nn.Module | None = None) -> fxonnx.ONNXProgram:
    torch.manual_seed(0)
    model = Network() if model is None else model
    return fxonnx.export(model.eval(), inputs(), dynamic_shapes=({0: "batch", 2: "h", 3: "w"}, {0: "batch"}))


@pytest.fixture(scope="module")
def program() -> fxonnx.ONNXProgram:
    return exported()


def expect(program: fxonnx.ONNXProgram, model: nn.Module, given: Any) -> None:
    with torch.no_grad():
        expected = model(*given)
    for name, value in zip(("logits", "pooled"), program(*given), strict=True):
        wanted = expected[name][0] if name == "pooled" else expected[name]
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-5)


def test_weight_map(program: fxonnx.ONNXProgram) -> None:
    weights = fxonnx.weights_of(program)
    state = Network().state_dict()
    assert set(weights.initializers) == {*state, "hidden"}
    assert weights.initializers["table.weight"] == weights.initializers["head.weight"]
    assert {"head.weight", "table.weight"} & set(weights.initializers["table.weight"])
    (folded,) = weights.initializers["norm.running_var"][:1]
    assert {"conv.weight", "norm.weight"} <= set(weights.sources[folded])
    assert weights.initializers["unused.weight"] == weights.initializers["norm.num_batches_tracked"] == ()
    for name, sources in weights.sources.items():
        assert name in program.model.graph.initializers
        assert all(name in weights.initializers[source] for source in sources)


def test_apply_weights() -> None:
    program = exported()
    given = inputs(2)
    program(*given)  # apply_weights releases this session
    torch.manual_seed(7)
    other = Network().eval()
    for norm_buffer in (other.norm.running_mean, other.norm.running_var):
        norm_buffer.copy_(torch.rand(4) + 0.5)
    program.apply_weights({**other.state_dict(), "hidden": other.hidden})
    expect(program, other, given)
    program.verify()
    program.verify(sizes=[{"batch": 5}])
    # One of two tied weights.
    other.head.bias.data = torch.rand(6)
    program.apply_weights({"head.bias": other.head.bias})
    expect(program, other, given)


def test_apply_weights_rejects_invalid_weights() -> None:
    model = Network().eval()
    program = exported(model)
    state = model.state_dict()
    with pytest.warns(OnnxExporterWarning, match=r"Weight 'zzz' not found in the model. Skipped applying.") as caught:
        program.apply_weights({"zzz": torch.rand(3)})
    assert caught[0].filename == __file__
    wrong = {
        r"'head.bias' is torch.float64 of shape \[6\], expected torch.float32 of shape \[6\]\nhint: re-export": {"head.bias": state["head.bias"].double()},
        r"'head.bias' is torch.float32 of shape \[5\], expected": {"head.bias": torch.rand(5)},
        r"'head.bias' is a list, not a tensor": {"head.bias": [1.0]},
        r"'table.weight' and 'head.weight' are tied weights in the model, but have different values here": {
            "table.weight": torch.zeros(6, 4), "head.weight": torch.ones(6, 4)
        },
    }  # fmt: skip
    for match, state_dict in wrong.items():
        with pytest.raises(ArgumentError, match=f"state_dict: {match}"):
            program.apply_weights({"conv.bias": torch.zeros(4), **state_dict})  # type: ignore[dict-item]
    # No weight was applied.
    expect(program, model, inputs())


def test_compute_values(program: fxonnx.ONNXProgram) -> None:
    given = inputs()
    (node,) = [node for node in program.model.graph if node.op_type == "Conv"]
    name = str(node.outputs[0].name)
    outputs = [str(value.name) for value in program.model.graph.outputs]
    names = [name, "ids", "head.bias", *outputs, name]
    computed = program.compute_values(names, given)
    assert torch.equal(computed[0], computed[-1])
    found = dict(zip(names, computed, strict=True))
    assert found[name].shape == (3, 4, 3, 3)
    assert torch.equal(found["ids"], given[1])
    assert torch.equal(found["head.bias"], program.exported_program.state_dict["head.bias"])
    for value, expected in zip(outputs, program(*given), strict=True):
        torch.testing.assert_close(found[value], expected)
    assert [str(value.name) for value in program.model.graph.outputs] == outputs
    with pytest.raises(
        ArgumentError, match=r"value_names: 'head.bia' is not a value of the main graph\nhint: did you mean 'head.bias'"
    ):
        program.compute_values(["head.bia"], given)
    with pytest.raises(ArgumentError, match=r"'\?' is not a value of the main graph\nhint: program.model.graph lists"):
        program.compute_values(["?"], given)


def test_call_reference(program: fxonnx.ONNXProgram) -> None:
    given = inputs()
    for one, other in zip(program.call_reference(*given), program(*given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8, torch.bool])
def test_call_reference_with_every_dtype(dtype: torch.dtype) -> None:
    class Stack(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(3, 2)

    x = torch.tensor([[0.5, 1, 0], [2, -1, 1]]).to(dtype)
    (result,) = fxonnx.export(Stack().eval(), (x,)).call_reference(x)
    assert result.dtype == dtype
    assert torch.equal(result.float(), x.reshape(3, 2).float())


def test_unflatten(program: fxonnx.ONNXProgram) -> None:
    outputs = program(*inputs())
    found = program.unflatten(outputs)
    assert list(found) == ["logits", "nothing", "pooled"]
    assert found["logits"] is outputs[0]
    assert found["nothing"] is None
    assert found["pooled"] == (outputs[1],)
    with pytest.raises(ArgumentError, match="outputs: the model has 2 outputs, got 1 values"):
        program.unflatten(outputs[:1])


def test_numpy_inputs(program: fxonnx.ONNXProgram) -> None:
    given = inputs()
    for one, other in zip(program(*(value.numpy() for value in given)), program(*given), strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(ArgumentError, match=r"x: expected dtype torch\.float32, got torch\.float64"):
        program(given[0].double().numpy(), given[1].numpy())


def test_user_defined_session() -> None:
    program = exported()
    seen: list[Any] = []

    def make(source: str | bytes) -> onnxruntime.InferenceSession:
        seen.append(type(source))
        return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])

    program.initialize_inference_session(make)
    program(*inputs())
    program.release()
    program(*inputs())
    assert seen == [bytes, bytes]


class Branch(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        # Results of another rank: one branch is exported.
        return torch.cat([x, y, x]) if x.shape[0] > 2 else x[None]


def test_rename_axes() -> None:
    with pytest.warns(UserWarning, match="only for:\n  n >= 3"):
        program = fxonnx.export(Branch().eval(), (torch.rand(4), torch.rand(5)), dynamic_shapes=({0: "n"}, {0: "nn"}))
    graph = program.model.graph

    def dims() -> list[str]:
        return [str(value.shape[0]) for value in (*graph.inputs, *graph.outputs)]  # type: ignore[index]

    assert dims() == ["n", "nn", "2*n + nn"]
    with pytest.warns(
        UserWarning, match="no dim of the model is named 'absent'; it is ignored\nhint: the dim names are: n, nn"
    ):
        program.rename_axes({"n": "nn", ir.SymbolicDim("nn"): "n", "absent": "m"})
    assert dims() == ["nn", "n", "2*nn + n"]
    program.rename_axes({"nn": "batch"})
    assert dims() == ["batch", "n", "2*batch + n"]
    assert [constraint.text for constraint in program.record.constraints] == ["batch >= 3"]
    assert '"batch >= 3"' in program.model.metadata_props["pkg.fxonnx.constraints"]
    assert program(torch.rand(3), torch.rand(1))[0].shape == (7,)
    with pytest.raises(ArgumentError, match="the model was exported for batch >= 3, got batch = 2"):
        program(torch.rand(2), torch.rand(1))
    wrong: list[tuple[Any, str]] = [
        ({3: "a"}, r"Invalid key type in rename_mapping: <class 'int'>\(3\). Expected str or ir.SymbolicDim."),
        ({"n": ""}, "rename_mapping: expected a dim name, got ''"),
        ({"n": "7"}, "rename_mapping: expected a dim name, got '7'"),
        ({"n": "batch"}, "rename_mapping: 'batch' is already the name of another dim"),
    ]
    for mapping, match in wrong:
        with pytest.raises(ArgumentError, match=match):
            program.rename_axes(mapping)


def test_optimize_keeps_only_equivalent_models(monkeypatch: pytest.MonkeyPatch) -> None:
    program = exported()
    given = inputs()
    before = program(*given)
    program.optimize()
    for one, other in zip(program(*given), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    model = program.model

    def ruin(found: ir.Model) -> None:
        constant = next(iter(found.graph.initializers.values()))
        constant.const_value = ir.tensor(np.asarray(constant.const_value.numpy()) * 2 + 1)  # type: ignore[union-attr]

    def fail(found: ir.Model) -> None:
        raise KeyError("rule")

    for function, match in ((ruin, r"VerificationError: .*output 'logits' changed"), (fail, "KeyError: 'rule'")):
        monkeypatch.setattr("onnxscript.optimizer.optimize", function)
        with pytest.warns(UserWarning, match=f"the optimizer was not applied: {match}"):
            program.optimize()
        assert program.model is model
        for one, other in zip(program(*given), before, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class Flipped(nn.Module):
    """Two parameters that share a storage, one the transpose of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.head = nn.Parameter(self.table.weight.t())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.table(ids), self.table.weight) + self.table(ids) @ self.head


@pytest.mark.parametrize("name", ["table.weight", "head"])
def test_weights_tied_as_transposes(name: str) -> None:
    model, ids = Flipped().eval(), torch.randint(0, 6, (2, 3))
    program = fxonnx.export(model, (ids,), verify=True)
    large = [str(value.name) for value in program.model.graph.initializers.values() if value.const_value.nbytes > 64]
    assert large == ["head"]
    assert program.weights.initializers["head"] == program.weights.initializers["table.weight"] == ("head",)
    new = torch.rand(6, 4)
    program.apply_weights({name: new if name == "table.weight" else new.t()})
    program.verify()
    with torch.no_grad():
        model.table.weight.copy_(new)
        torch.testing.assert_close(program(ids)[0], model(ids), rtol=1e-4, atol=1e-5)


def test_notebooks_show_a_table() -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1, 2).sum(1) if x.shape[0] > 2 else x

    program = fxonnx.export(Rows().eval(), (torch.rand(4, 2),), dynamic_shapes=({0: "rows"},), output_names=["a<b"])
    table = ElementTree.fromstring(program._repr_html_().replace("<br>", "\n"))
    rows = {row[0].text: row[1].text for row in table.iter("tr")}
    assert rows["inputs"] == "x: float[rows, 2]"
    assert rows["outputs"] == "a<b: float[rows]"
    assert rows["constraints"].startswith("rows >= 3")
    assert "ReduceSum 1" in rows["operators"]
    assert "assumptions" not in rows


class Loop(nn.Module):
    """Control flow, derived weights, a read weight and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        x = self.layer(x) if x.sum() > 0 else x @ self.layer.weight
        for _ in range(int(x.abs().max())):
            x = x + self.layer(x)
        self.steps.add_(1)
        return x + self.steps


def repeated() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)) for _ in range(3)])


PROGRAMS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "control flow": (Loop, 4, {"state": "io"}),
    "adapters": (lambda: nn.Linear(4, 4), 4, {"adapters": "weight"}),
    "functions": (repeated, 64, {"options": fxonnx.ExportOptions(functions="repeated")}),
    "quantized": (repeated, 64, {"quantize": "int8"}),
    "quantized activations": (
        repeated,
        64,
        {"quantize": fxonnx.QuantizeConfig("int8", activations="dynamic")},
    ),
    "recurrent": (lambda: nn.LSTM(4, 4), 4, {}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_texts_are_short_and_copies_share_only_tensors(name: str) -> None:
    make, width, options = PROGRAMS[name]
    model = make().eval()
    x = torch.randn(3, width)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "batch"},), **options)
    for part in (program.interface, program.record, program.quantization):
        assert repr(part).startswith(f"{type(part).__name__}(")
        assert len(repr(part)) < 300
    for text in (str(program.model), repr(program.model)):
        assert "batch" in text
    assert ("int8" in repr(program.quantization)) == ("quantize" in options)
    before, expected = saved(program), program(x)
    other = copy.deepcopy(program)
    assert saved(other) == saved(copy.copy(program)) == before == saved(program)
    tensors = {str(value.name): value.const_value for value in program.model.graph.initializers.values()}
    assert all(value.const_value is tensors[str(value.name)] for value in other.model.graph.initializers.values())
    other.verify()
    other.apply_weights({key: value * 0.5 for key, value in model.state_dict().items() if value.is_floating_point()})
    other.rename_axes({"batch": "b"})
    other.verify()
    assert saved(program) == before
    assert saved(other) != before
    for one, wanted in zip(program(x), expected, strict=True):
        torch.testing.assert_close(one, wanted, rtol=0, atol=0)
    ir.to_proto(copy.deepcopy(program.model))


def saved(program: fxonnx.ONNXProgram) -> bytes:
    file = io.BytesIO()
    program.save(file)
    return file.getvalue()


def test_pickling_a_program_is_an_error_that_says_what_to_do(program: fxonnx.ONNXProgram) -> None:
    with pytest.raises(SaveError, match=r"an ONNXProgram cannot be pickled: .*\nhint: save the file, program.save\("):
        pickle.dumps(program)
    file = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(pickle.loads(pickle.dumps(file)))
    given = inputs(2)
    (expected, _), computed = program(*given), session.run(None, {"x": given[0].numpy(), "ids": given[1].numpy()})
    torch.testing.assert_close(torch.from_numpy(computed[0]), expected)


def test_texts_of_many_inputs_are_short() -> None:
    names = [f"x{index}" for index in range(60)]
    model = VariadicFunction(lambda *given: sum(given))
    program = fxonnx.export(model, tuple(torch.rand(2) for _ in names), input_names=names)
    assert "x39: float[2], ... (60)" in repr(program.interface)
    assert "x40" not in repr(program)
