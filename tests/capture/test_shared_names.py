"""Names of dims: one name on several dims, and every way to specify them, compared with eager torch at other sizes."""

from __future__ import annotations

import json
import warnings
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F
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


# Every way to specify dynamic dims: exported at one size, compared with eager torch at two more.


Sizes = tuple[int, ...]
KeysAndValues = namedtuple("Pair", ["a", "b"])
d = Dim("d", min=1)


@dataclass
class Box:
    """A class that is not registered with pytree."""

    a: torch.Tensor
    b: torch.Tensor


def I(*shape: int) -> torch.Tensor:  # noqa: E743 - as in the other tables
    return torch.randint(0, 5, shape)


class Fn(nn.Module):
    """A model of up to three inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, y: Any = None, z: Any = None) -> Any:
        return self.function(*(value for value in (x, y, z) if value is not None))


class Cache:
    """Two layers of keys and values."""

    def __init__(self, keys: tuple[int, ...], values: tuple[int, ...]) -> None:
        self.layers = [KeysAndValues(R(*keys), R(*values)) for _ in range(2)]


def attend(cache: Any) -> list[torch.Tensor]:
    return [layer.a.transpose(1, 2) @ layer.b for layer in cache.layers]


class Variadic(nn.Module):
    def forward(self, x: torch.Tensor, *ys: torch.Tensor, **more: torch.Tensor) -> Any:
        return [x * 2, *(y + 1 for y in ys), *(value - 1 for value in more.values())]


class Lstm(nn.Module):
    """The model of torch's tutorial on recurrent networks: inputs and a pair of states."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, 2, **options)

    def forward(self, x: torch.Tensor, states: tuple[torch.Tensor, torch.Tensor]) -> Any:
        return self.lstm(x, states)


@dataclass(frozen=True)
class Row:
    """One model and one specification of its dynamic dims.

    Attributes:
        name: Name of the row.
        model: A module, or a function of the inputs.
        make: Function from sizes to positional or keyword inputs.
        sizes: Sizes to export with, and sizes to run with.
        inputs: Graph inputs with their dims, ``x[n, 3]``, in their order.
        options: Options of the export.
    """

    name: str
    model: Callable[..., Any]
    make: Callable[..., Any]
    sizes: tuple[Sizes, Sizes, Sizes]
    inputs: str
    options: Mapping[str, Any] = field(default_factory=dict)


ONE = ((4,), (1,), (7,))
TWO = ((4, 5), (1, 6), (3, 1))
XY = lambda n, m: (R(n, 3), R(m, 3))  # noqa: E731
X = lambda n: (R(n, 3),)  # noqa: E731
BOTH = lambda x, y: (x * 2, y + 1)  # noqa: E731
CACHE = lambda n, p: (Cache((n, p, 3), (n, p, 2)),)  # noqa: E731
CACHED = "x.0.a[n, p, 3] x.0.b[n, p, 2] x.1.a[n, p, 3] x.1.b[n, p, 2]"
N = {0: "n"}
M = {0: "m"}

SAID = (
    Row("tuple", BOTH, XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_shapes": (N, M)}),
    Row("list", BOTH, XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_shapes": [N, M]}),
    Row("dict", BOTH, XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_shapes": {"x": N, "y": M}}),
    Row("dict in another order", BOTH, XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_shapes": {"y": M, "x": N}}),
    Row("keywords in another order", BOTH, lambda n, m: {"y": R(m, 3), "x": R(n, 3)}, TWO, "y[m, 3] x[n, 3]", {"dynamic_shapes": {"x": N, "y": M}}),
    Row("keyword tuple in the order of forward", BOTH, lambda n, m: {"y": R(m, 3), "x": R(n, 3)}, TWO, "y[m, 3] x[n, 3]", {"dynamic_shapes": (N, M)}),
    Row("one input of two", BOTH, lambda n, m: (R(n, 3), R(2, 3)), TWO, "x[n, 3] y[2, 3]", {"dynamic_shapes": {"x": N}}),
    Row("negative axes", BOTH, XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_shapes": ({-2: "n"}, {-2: "m"})}),
    Row("axes as a tuple", BOTH, XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_shapes": (("n", None), ("m", 3))}),
    Row("axes as a list", BOTH, XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_shapes": (["n", Dim.STATIC], ["m", None])}),
    Row("Dims", BOTH, XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_shapes": ({0: Dim("n", min=1)}, {0: Dim("m", min=1)})}),
    Row("a range", BOTH, XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_shapes": ({0: Dim("n", min=1, max=9)}, M)}),
    Row("a derived Dim", BOTH, lambda n: (R(n, 3), R(2 * n + 1)), ONE, "x[d, 3] y[2*d + 1]", {"dynamic_shapes": ({0: d}, {0: 2 * d + 1})}),
    Row("one Dim twice", lambda x, y: x + y, lambda n: (R(n, 3), R(n, 3)), ONE, "x[d, 3] y[d, 3]", {"dynamic_shapes": ({0: d}, {0: d})}),
    Row("one name twice", lambda x, y: x + y, lambda n: (R(n, 3), R(n, 3)), ONE, "x[n, 3] y[n, 3]", {"dynamic_shapes": (N, N)}),
    Row("one name for unrelated sizes", BOTH, XY, TWO, "x[n, 3] y[n_1, 3]", {"dynamic_shapes": (N, N)}),
    Row("two names for equal dims", lambda x, y: x + y, lambda n: (R(n, 3), R(n, 3)), ONE, "x[n, 3] y[n, 3]", {"dynamic_shapes": (N, M)}),
    Row("AUTO and DYNAMIC", BOTH, XY, TWO, "x[s, 3] y[s, 3]", {"dynamic_shapes": ({0: Dim.AUTO}, {0: Dim.DYNAMIC})}),
    Row("an int declares a static dim", BOTH, lambda n, m: (R(n, 3), R(2, 3)), TWO, "x[n, 3] y[2, 3]", {"dynamic_shapes": (("n", 3), (2, 3))}),
    Row("by the name of the graph input", BOTH, XY, TWO, "a[n, 3] b[m, 3]", {"dynamic_shapes": {"a": N, "b": M}, "input_names": ["a", "b"]}),
    Row("by parameter in spite of input_names", BOTH, XY, TWO, "a[n, 3] b[m, 3]", {"dynamic_shapes": {"x": N, "y": M}, "input_names": ["a", "b"]}),
    Row("names that are those of other parameters", BOTH, XY, TWO, "y[n, 3] x[m, 3]", {"dynamic_shapes": {"x": N, "y": M}, "input_names": ["y", "x"]}),
    Row("by pattern", BOTH, lambda n, m: ([R(n, 3), R(n, 3)], R(m)), TWO, "x_0[n, 3] x_1[n, 3] y[m]", {"dynamic_shapes": {"x*": N, "y": M}}),
    Row("by path", lambda x: x["b"][0] * 2, lambda n: ({"a": R(2), "b": [R(n, 3)]},), ONE, "x_a[2] x_b_0[n, 3]", {"dynamic_shapes": {"x.b.0": N}}),
    Row("by path in Python's notation", lambda x: x["b"][0] * 2, lambda n: ({"a": R(2), "b": [R(n, 3)]},), ONE, "x_a[2] x_b_0[n, 3]", {"dynamic_shapes": {"x['b'][0]": N}}),
    Row("a pattern and a name", BOTH, lambda n, m: ([R(n, 3), R(n, m)], R(3)), TWO, "x_0[n, 3] x_1[n, m] y[3]", {"dynamic_shapes": {"x_1": {1: "m"}, "x_?": N}}),
    Row("nested", lambda x: [x["a"] * 2, x["b"][1] + x["b"][0].sum()], lambda n, m: ({"a": R(n), "b": (R(2), R(m))},), TWO, "x_a[n] x_b_0[2] x_b_1[m]", {"dynamic_shapes": ({"a": N, "b": (None, M)},)}),
    Row("a tuple of Nones", lambda x, y: x + y[0] + y[1], lambda n: (R(n, 3), (R(3), R(3))), ONE, "x[n, 3] y_0[3] y_1[3]", {"dynamic_shapes": (N, (None, None))}),
    Row("a named tuple", lambda x: x.a * 2 + x.b.sum(), lambda n: (KeysAndValues(R(n), R(2)),), ONE, "x_a[n] x_b[2]", {"dynamic_shapes": ({"a": N},)}),
    Row("a class of the user's", lambda x: x.a * 2 + x.b.sum(), lambda n: (Box(R(n), R(2)),), ONE, "x.a[n] x.b[2]", {"dynamic_shapes": {"x": {"a": N}}}),
    Row("a class of the user's by pattern", lambda x: x.a * 2 + x.b, lambda n: (Box(R(n), R(n)),), ONE, "x.a[n] x.b[n]", {"dynamic_shapes": {"x.*": N}}),
    Row("one spec for all tensors of an object", attend, CACHE, TWO, CACHED, {"dynamic_shapes": ({0: "n", 1: "p"},)}),
    Row("an object by pattern", attend, CACHE, TWO, CACHED, {"dynamic_shapes": {"x": {"*": {0: "n", 1: "p"}}}}),
    Row("an object by layer", attend, CACHE, TWO, CACHED, {"dynamic_shapes": ([({0: "n", 1: "p"}, {0: "n", 1: "p"})] * 2,)}),
    Row("an object's keys", lambda x: attend(x)[0] * 2, CACHE, TWO, CACHED, {"dynamic_shapes": {"x.*": {0: "n", 1: "p"}}}),
    Row("*args", Variadic, lambda n, m: (R(n), R(m), R(2)), TWO, "x[n] ys_0[m] ys_1[2]", {"dynamic_shapes": {"x": N, "ys": (M, None)}}),
    Row("*args in line", Variadic, lambda n, m: (R(n), R(m), R(2)), TWO, "x[n] ys_0[m] ys_1[2]", {"dynamic_shapes": (N, M, None)}),
    Row("*args by pattern", Variadic, lambda n, m: (R(n), R(m), R(m)), TWO, "x[n] ys_0[m] ys_1[m]", {"dynamic_shapes": {"x": N, "ys_*": M}}),
    Row("**kwargs", Variadic, lambda n, m: {"x": R(n), "k": R(m)}, TWO, "x[n] k[m]", {"dynamic_shapes": {"x": N, "k": M}}),
    Row("**kwargs under their name", Variadic, lambda n, m: {"x": R(n), "k": R(m)}, TWO, "x[n] k[m]", {"dynamic_shapes": {"x": N, "more": {"k": M}}}),
    Row("an int", lambda x, y: x[:y] * y, lambda n, k: (R(9 + n, 3), k), TWO, "x[n, 3] y[]", {"dynamic_shapes": (N, "k")}),
    Row("dynamic_axes", BOTH, XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_axes": {"x": N, "y": M}}),
    Row("dynamic_axes by name, not by position", BOTH, lambda n, m: (R(2, 3), R(m, 3)), TWO, "a[2, 3] b[m, 3]", {"dynamic_axes": {"b": M}, "input_names": ["a", "b"]}),
    Row("dynamic_axes in another order", BOTH, XY, TWO, "a[n, 3] b[m, 3]", {"dynamic_axes": {"b": M, "a": N}, "input_names": ["a", "b"]}),
    Row("dynamic_axes as lists", BOTH, XY, TWO, "x[x_dynamic_axes_1, 3] y[y_dynamic_axes_1, 3]", {"dynamic_axes": {"x": [0], "y": [-2]}}),
    Row("dynamic_axes of outputs", BOTH, XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_axes": {"x": N, "y": M, "out": {0: "n"}}, "output_names": ["out"]}),
    Row("dynamic_axes of nested inputs", lambda x, y: x + y[0] + y[1], lambda n: (R(n, 3), (R(n, 3), R(3))), ONE, "a[n, 3] h[n, 3] c[3]", {"dynamic_axes": {"a": N, "h": N}, "input_names": ["a", "h", "c"]}),
    Row("the tutorial's LSTM", Lstm, lambda t, b: (R(t, b, 4), (R(2, b, 3), R(2, b, 3))), TWO, "input[sequence, batch, 4] h0[2, batch, 3] c0[2, batch, 3]", {"dynamic_axes": {"input": {0: "sequence", 1: "batch"}, "h0": {1: "batch"}, "c0": {1: "batch"}}, "input_names": ["input", "h0", "c0"], "output_names": ["output", "hn", "cn"]}),
    Row("more_inputs", BOTH, XY, TWO, "x[x_dim_0, 3] y[y_dim_0, 3]", {"more_inputs": [(XY(2, 3), {})]}),
    Row("more_inputs of equal sizes", lambda x, y: x + y, lambda n: (R(n, 3), R(n, 3)), ONE, "x[x_dim_0, 3] y[x_dim_0, 3]", {"more_inputs": [((R(2, 3), R(2, 3)), None)]}),
    Row("more_inputs and names", BOTH, XY, TWO, "x[n, 3] y[y_dim_0, 3]", {"more_inputs": [(XY(2, 3), {})], "dynamic_shapes": {"x": N}}),
    Row("more_inputs of keywords", BOTH, lambda n, m: {"x": R(n, 3), "y": R(m, 3)}, TWO, "x[x_dim_0, 3] y[y_dim_0, 3]", {"more_inputs": [((), {"y": R(2, 3), "x": R(3, 3)})]}),
)  # fmt: skip

SQUARES = ((4, 5), (1, 1), (6, 3))
IMAGE = {0: "batch", 2: "height", 3: "width"}
PICTURE = lambda h, w: (R(2, 3, h, w),)  # noqa: E731

MODELS = (
    Row("a batch of 1", lambda x: x.view(x.shape[0], -1) + 1, lambda n: (R(n, 3, 2),), ((1,), (4,), (2,)), "x[n, 3, 2]", {"dynamic_shapes": (N,)}),
    Row("an empty example", lambda x: torch.cat([x, x + 1]), X, ((0,), (4,), (1,)), "x[n, 3]", {"dynamic_shapes": (N,)}),
    Row("an empty batch", lambda x: x @ torch.ones(3, 2), X, ((4,), (0,), (1,)), "x[n, 3]", {"dynamic_shapes": (N,)}),
    Row("softmax of a view by a dynamic size", lambda x: torch.softmax(x.view(x.size(1), -1), 1), lambda n: (R(2, n, 3),), ONE, "x[2, n, 3]", {"dynamic_shapes": ({1: "n"},)}),
    Row("broadcast of unequal examples", lambda x, y: x[:, None] + y, lambda n, m: (R(n), R(m)), ((1, 5), (4, 2), (3, 1)), "x[n] y[m]", {"dynamic_shapes": (N, M)}),
    Row("a batch that is broadcast", lambda x, y: x * y, lambda n: (R(n, 3), R(1, 3)), ONE, "x[n, 3] y[1, 3]", {"dynamic_shapes": (N, None)}),
    Row("flatten", lambda x: x.flatten(1), lambda n, t: (R(n, t, 3),), TWO, "x[n, t, 3]", {"dynamic_shapes": ({0: "n", 1: "t"},)}),
    Row("flatten of two dynamic axes", lambda x: x.flatten(0, 1) @ torch.ones(3, 2), lambda n, t: (R(n, t, 3),), TWO, "x[n, t, 3]", {"dynamic_shapes": ({0: "n", 1: "t"},)}),
    Row("heads", lambda x: x.view(x.shape[0], x.shape[1], 2, 3).transpose(1, 2), lambda n, t: (R(n, t, 6),), TWO, "x[n, t, 6]", {"dynamic_shapes": ({0: "n", 1: "t"},)}),
    Row("attention", lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), lambda n, t: (R(n, 2, t, 4),), TWO, "x[n, 2, t, 4]", {"dynamic_shapes": ({0: "n", 2: "t"},)}),
    Row("a causal mask", lambda x: x + torch.full((x.shape[1], x.shape[1]), -1.0).triu(1), lambda n, t: (R(n, t, t),), ((4, 5), (1, 6), (3, 2)), "x[n, t, t]", {"dynamic_shapes": ({0: "n", 1: "t", 2: "t"},)}),
    Row("positions", lambda x: F.embedding(x, torch.ones(5, 3)) + torch.arange(x.shape[1])[:, None], lambda n, t: (I(n, t),), TWO, "x[n, t]", {"dynamic_shapes": ({0: "n", 1: "t"},)}),
    Row("a mean over a dynamic axis", lambda x: (x.mean(1), x.std(0), x.var(1, correction=0)), lambda n, t: (R(n, t),), ((4, 5), (2, 6), (3, 1)), "x[n, t]", {"dynamic_shapes": ({0: "n", 1: "t"},)}),
    Row("sizes in arithmetic", lambda x: x * x.shape[0] / (x.shape[1] + 1), lambda n, t: (R(n, t),), TWO, "x[n, t]", {"dynamic_shapes": ({0: "n", 1: "t"},)}),
    Row("the last half", lambda x: x[:, x.shape[1] // 2 :], lambda n, t: (R(n, t),), TWO, "x[n, t]", {"dynamic_shapes": ({0: "n", 1: "t"},)}),
    Row("a sliding window", lambda x: x[:, -3:], lambda n, t: (R(n, t),), TWO, "x[n, t]", {"dynamic_shapes": ({0: "n", 1: "t"},)}),
    Row("padded to an even size", lambda x: F.pad(x, (0, x.shape[1] % 2)), lambda n, t: (R(n, t),), TWO, "x[n, t]", {"dynamic_shapes": ({0: "n", 1: "t"},)}),
    Row("unfold of half the size", lambda x: x.reshape(x.shape[0], -1, 2).sum(2), lambda n: (R(3, 2 * n),), ONE, "x[3, 2*d]", {"dynamic_shapes": ({1: 2 * d},)}),
    Row("convolution", nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU()).eval, PICTURE, SQUARES, "input[batch, 3, height, width]", {"dynamic_shapes": (IMAGE,)}),
    Row("same padding and shuffled pixels", nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.PixelShuffle(2)).eval, PICTURE, SQUARES, "input[batch, 3, height, width]", {"dynamic_shapes": (IMAGE,)}),
    Row("pools", lambda x: F.adaptive_avg_pool2d(F.max_pool2d(x, 2, ceil_mode=True), 1), PICTURE, SQUARES, "x[batch, 3, height, width]", {"dynamic_shapes": (IMAGE,)}),
    Row("resized to another input", lambda x, y: F.interpolate(x, y.shape[2:], mode="bilinear") + y, lambda h, w: (R(1, 3, 2, 3), R(1, 3, h, w)), SQUARES, "x[1, 3, 2, 3] y[1, 3, height, width]", {"dynamic_shapes": (None, {2: "height", 3: "width"})}),
    Row("twice as large", lambda x: F.interpolate(x, scale_factor=2), PICTURE, SQUARES, "x[batch, 3, height, width]", {"dynamic_shapes": (IMAGE,)}),
    Row("a bidirectional LSTM", lambda: nn.LSTM(4, 5, batch_first=True, bidirectional=True), lambda n, t: (R(n, t, 4),), TWO, "input[n, t, 4]", {"dynamic_shapes": ({0: "n", 1: "t"},)}),
    Row("a GRU", lambda: nn.GRU(4, 5), lambda t, n: (R(t, n, 4),), TWO, "input[t, n, 4]", {"dynamic_shapes": ({0: "t", 1: "n"},)}),
    Row("an RNN", lambda: nn.RNN(4, 5), lambda t, n: (R(t, n, 4),), TWO, "input[t, n, 4]", {"dynamic_shapes": ({0: "t", 1: "n"},)}),
    Row("a transformer layer", nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval, lambda n, t: (R(n, t, 8),), TWO, "src[n, t, 8]", {"dynamic_shapes": ({0: "n", 1: "t"},)}),
    Row("multi-head attention", lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda n, t: (x := R(n, t, 8), x, x), TWO, "query[n, t, 8] key[n, t, 8] value[n, t, 8]", {"dynamic_shapes": [{0: "n", 1: "t"}] * 3}),
    Row("positions from a table", lambda x: x + torch.ones(64, 3)[: x.shape[0]], X, ONE, "x[n, 3]", {"dynamic_shapes": ({0: Dim("n", min=1, max=64)},)}),
    Row("sorted", lambda x: (x.sort(0)[0], x.argmax(0), x.cumsum(0)), X, ONE, "x[n, 3]", {"dynamic_shapes": (N,)}),
    Row("a loop over a static dim", lambda x: torch.stack([x[:, i] * i for i in range(x.shape[1])]), X, ONE, "x[n, 3]", {"dynamic_shapes": (N,)}),
    Row("scattered", lambda x: torch.zeros(x.shape[0], 5).scatter(1, torch.zeros_like(x[:, :1], dtype=torch.int64), x), X, ONE, "x[n, 3]", {"dynamic_shapes": (N,)}),
    Row("written to in place", lambda x: x.clone().index_fill_(0, torch.tensor([0]), 2.0).mul_(x.shape[0]), X, ONE, "x[n, 3]", {"dynamic_shapes": (N,)}),
    Row("passed through, twice", lambda x, y: (y, y, x), XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_shapes": (N, M)}),
    Row("an input without a use", lambda x, y: x * 2, XY, TWO, "x[n, 3] y[m, 3]", {"dynamic_shapes": (N, M)}),
    Row("sizes as outputs", lambda x: (x.shape[0] * 2, x.sum(1)), X, ONE, "x[n, 3]", {"dynamic_shapes": (N,)}),
    Row("einsum", lambda x, y: torch.einsum("bij,bjk->bik", x, y), lambda n, t: (R(n, t, 3), R(n, 3, t)), TWO, "x[n, t, 3] y[n, 3, t]", {"dynamic_shapes": ({0: "n", 1: "t"}, {0: "n", 2: "t"})}),
    Row("repeated", lambda x: x.repeat(2, 1).repeat_interleave(3, 0), X, ONE, "x[n, 3]", {"dynamic_shapes": (N,)}),
    Row("chunks", lambda x: x.chunk(3, 1) + x.split(2, 1), X, ONE, "x[n, 3]", {"dynamic_shapes": (N,)}),
)  # fmt: skip


def built(row: Row) -> nn.Module:
    """The row's model: an instance of its class, the result of its factory, or a module for its function."""
    torch.manual_seed(0)
    is_factory = isinstance(row.model, type) or "input" in row.inputs or row.inputs.startswith(("src", "query"))
    module = row.model() if is_factory else Fn(row.model)
    return module.eval().requires_grad_(False)


def call(row: Row, sizes: Sizes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    made = row.make(*sizes)
    return ((), made) if isinstance(made, dict) else (made, {})


def shown(program: fxonnx.ONNXProgram) -> str:
    """The graph inputs with their dims; dims without a user's name are shown as s."""
    return " ".join(
        f"{value.name}[{', '.join('s' if str(dim).startswith('s') and str(dim)[1:].isdigit() else str(dim) for dim in value.shape)}]"
        for value in program.model.graph.inputs
    )


@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes:UserWarning")
@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in SAID + MODELS])
def test_three_sizes_match_eager_torch(row: Row) -> None:
    model = built(row)
    args, kwargs = call(row, row.sizes[0])
    program = fxonnx.torch_onnx_export(model, args, kwargs=kwargs, **row.options)
    assert shown(program) == row.inputs
    for sizes in row.sizes:
        torch.manual_seed(1)
        args, kwargs = call(row, sizes)
        expected = torch.utils._pytree.tree_leaves(model(*args, **kwargs))
        actual = program(*args, **kwargs)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, torch.as_tensor(other), rtol=1e-4, atol=1e-5)
