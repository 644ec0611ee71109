"""One name on several dims: one dim param and an equality constraint, or separate dims where the examples differ."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn
from torch.export import Dim

import fxonnx
from fxonnx.errors import ArgumentError

from ..models.torchvision_shim import import_torchvision


def R(*shape: int) -> torch.Tensor:
    return torch.rand(*shape)


N, M = {0: "n"}, {0: "m"}
apart = lambda x, y, *rest: (x + 1, y * 2, *rest)  # noqa: E731

# Function, example, dynamic_shapes, dims of the inputs, equality constraints.
AGREE = [
    pytest.param(apart, (R(4), R(4)), (N, N), "x[n] y[n]", ["x.shape[0] == y.shape[0]"], id="unrelated"),
    pytest.param(torch.add, (R(4), R(4)), (N, N), "x[n] y[n]", ["x.shape[0] == y.shape[0]"], id="equal-in-the-model"),
    pytest.param(apart, (R(4), R(4)), ({0: Dim("n")}, N), "x[n] y[n]", ["x.shape[0] == y.shape[0]"], id="a-Dim-and-a-name"),
    pytest.param(apart, (R(1), R(1)), (N, N), "x[n] y[n]", ["x.shape[0] == y.shape[0]"], id="size-1"),
    pytest.param(apart, (R(4, 4), R(3)), ({0: "n", 1: "n"}, M), "x[n, n] y[m]", ["x.shape[0] == x.shape[1]"], id="one-tensor"),
    pytest.param(lambda x, y: x[:y] * 2, (R(4), 4), (N, "n"), "x[n] y[]", ["x.shape[0] == y"], id="an-int"),
    pytest.param(apart, (R(4), R(4), R(5), R(5)), (N, N, (M, M)), "x[n] y[n] rest_0[m] rest_1[m]",
                 ["x.shape[0] == y.shape[0]", "rest[0].shape[0] == rest[1].shape[0]"], id="two-names"),
    pytest.param(apart, (R(4), R(4), R(5)), (N, N, (N,)), "x[n] y[n] rest_0[n_1]", ["x.shape[0] == y.shape[0]"], id="two-of-three"),
]  # fmt: skip


class Pair(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, x: Any, y: Any, *rest: Any) -> Any:
        return self.function(x, y, *rest)


class Cat(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y])


def dims(program: fxonnx.ONNXProgram) -> str:
    return " ".join(f"{value.name}[{', '.join(map(str, value.shape))}]" for value in program.model.graph.inputs)


def equalities(program: fxonnx.ONNXProgram) -> list[str]:
    return [constraint.text for constraint in program.record.constraints if constraint.is_equality]


@pytest.mark.parametrize(("function", "args", "shapes", "expected", "constraints"), AGREE)
@pytest.mark.filterwarnings("ignore:dims of different sizes have the same name")
def test_one_dim_param(
    function: Any, args: tuple[Any, ...], shapes: Any, expected: str, constraints: list[str]
) -> None:
    program = fxonnx.export(Pair(function), args, dynamic_shapes=shapes)
    assert dims(program) == expected
    assert equalities(program) == constraints
    recorded = json.loads(program.model_proto.metadata_props[0].value)
    assert [entry["constraint"] for entry in recorded] == [constraint.text for constraint in program.record.constraints]
    outputs = function(*args)
    for actual, wanted in zip(program(*args), outputs if isinstance(outputs, tuple) else (outputs,), strict=True):
        torch.testing.assert_close(actual, wanted)


def test_equality_of_dims_is_checked_at_the_call() -> None:
    program = fxonnx.export(Pair(apart), (R(4), R(4)), dynamic_shapes=(N, N), strict_shapes=True)
    torch.testing.assert_close(program(x := R(7), y := R(7)), apart(x, y))
    with pytest.raises(ArgumentError, match=r"y: the size of y axis 0 is n, here 4: x axis 0 has 4, y axis 0 has 5"):
        program(R(4), R(5))


def test_a_renamed_dim_keeps_its_equality() -> None:
    program = fxonnx.export(Pair(apart), (R(4), R(4)), dynamic_shapes=(N, N))
    program.rename_axes({"n": "batch"})
    assert dims(program) == "x[batch] y[batch]"
    assert [(constraint.text, constraint.dims) for constraint in program.record.constraints] == [
        ("x.shape[0] == y.shape[0]", ("batch",))
    ]


def test_examples_that_differ_keep_dims_separate() -> None:
    with pytest.warns(UserWarning, match=r"separate dims with numbered names:\n  'n': x axis 0 is 4, y axis 0 is 5\n"):
        program = fxonnx.export(Pair(apart), (R(4), R(5)), dynamic_shapes=(N, N))
    assert (dims(program), equalities(program)) == ("x[n] y[n_1]", [])
    torch.testing.assert_close(program(x := R(2), y := R(9)), apart(x, y))


def test_an_additional_example_keeps_dims_separate() -> None:
    more = [((R(6), R(7)), {})]
    with pytest.warns(UserWarning, match=r"'n': x axis 0 is 4 and 6, y axis 0 is 4 and 7"):
        program = fxonnx.export(Pair(apart), (R(4), R(4)), dynamic_shapes=(N, N), more_inputs=more)
    assert (dims(program), equalities(program)) == ("x[n] y[n_1]", [])
    torch.testing.assert_close(program(x := R(2), y := R(9)), apart(x, y))


def test_a_captured_program() -> None:
    """The symbols of an ExportedProgram remain separate but share a name."""
    shapes = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
    captured = torch.export.export(Cat(), (R(4), R(4)), dynamic_shapes=shapes)
    program = fxonnx.export(captured, dynamic_shapes=(N, N))
    names = [value.name for value in program.model.graph.inputs]
    assert [str(value.shape) for value in program.model.graph.inputs] == ["[n]", "[n]"]
    assert str(program.model.graph.outputs[0].shape) == "[2*n]"
    assert equalities(program) == [f"{names[0]}.shape[0] == {names[1]}.shape[0]"]
    torch.testing.assert_close(program(x := R(7), y := R(7))[0], torch.cat([x, y]))
    with pytest.raises(ArgumentError, match=r"axis 0 has 4, \w+ axis 0 has 5"):
        program(R(4), R(5))


def test_names_that_share_a_dim_through_another_one() -> None:
    """``m`` is an alias of ``n`` on x, and the only name of y's second axis."""
    shapes = ({0: "n"}, {0: "m", 1: "m"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = fxonnx.export(Pair(lambda x, y: x + y), (R(4), R(4, 4)), dynamic_shapes=shapes)
    assert dims(program) == "x[n] y[n, n]"
    assert json.loads(program.model.metadata_props["pkg.fxonnx.dim_aliases"]) == {"n": ["m"]}


def test_free_dimension_overrides_of_a_llama_with_a_cache(tmp_path: Path) -> None:
    import_torchvision()
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, vocab_size=20, **sizes)).eval()

    def inputs(batch: int, tokens: int, past: int) -> dict[str, Any]:
        layers = [(R(batch, 2, past, 8), R(batch, 2, past, 8)) for _ in range(2)]
        return {
            "input_ids": torch.randint(0, 20, (batch, tokens)),
            "attention_mask": torch.ones(batch, past + tokens, dtype=torch.int64),
            "past_key_values": DynamicCache(layers),
        }

    program = fxonnx.export(
        model,
        kwargs=inputs(2, 3, 6),
        dynamic_shapes={
            "input_ids": {0: "batch", 1: "tokens"},
            "attention_mask": {0: "batch", 1: "total"},
            "past_key_values.*": {0: "batch", 2: "past"},
        },
    )
    program.save(tmp_path / "llama.onnx")
    proto = onnx.load(tmp_path / "llama.onnx")
    values = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    found = {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim} - {""}
    assert found == {"batch", "tokens", "total", "past", "past + tokens"}
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 1)
    options.add_free_dimension_override_by_name("past", 5)
    session = ort.InferenceSession(tmp_path / "llama.onnx", options, providers=["CPUExecutionProvider"])
    assert [value.shape[0] for value in session.get_inputs()] == [1] * 6
    given = inputs(1, 4, 5)
    layers = given["past_key_values"].layers
    feed = {name: given[name].numpy() for name in ("input_ids", "attention_mask")}
    for index, layer in enumerate(layers):
        feed |= {
            f"past_key_values.{index}.key": layer.keys.numpy(),
            f"past_key_values.{index}.value": layer.values.numpy(),
        }
    (logits, *_) = session.run(None, feed)
    with torch.no_grad():
        expected = model(**given).logits
    torch.testing.assert_close(torch.from_numpy(logits), expected, atol=1e-5, rtol=1e-4)
