"""Objects as inputs and outputs, frozen inputs, one tensor as several inputs, and arguments beside an ExportedProgram."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import fxonnx
from fxonnx import ArgumentError, CaptureError
from fxonnx._capture.inputs.pytree_objects import flatten_objects, is_object, object_parts, unflatten_objects

from ..functions import Function, VariadicFunction
from ..models.torchvision_shim import import_torchvision


class Layer:
    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values
        self.name = "layer"
        self._sliding_window_tensor = torch.tensor(4)
        self.cumulative_length = keys.shape[-2]


class Cache:
    """A cache with the structure of a transformers cache."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self.owner = self

    def update(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.layers[index]
        layer.cumulative_length += keys.shape[-2]
        layer.keys = torch.cat([layer.keys, keys], dim=-2)
        layer.values = torch.cat([layer.values, values], dim=-2)
        return layer.keys, layer.values


@dataclass
class State:
    hidden: Tensor
    history: list[Tensor]
    named: dict[str, Any] = field(default_factory=dict)
    again: Tensor | None = None


Pair = namedtuple("Pair", "first second")


def _cache(batch: int = 2, past: int = 3) -> Cache:
    return Cache([Layer(torch.rand(batch, past, 4), torch.rand(batch, past, 4)) for _ in range(2)])


class Decoder(nn.Module):
    field = "past_key_values"

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, past_key_values: Cache) -> dict[str, Any]:
        for index in range(2):
            keys, values = past_key_values.update(index, self.linear(x), x)
            x = torch.softmax(x @ keys.mT, -1) @ values
        return {"logits": x, self.field: past_key_values}


class WindowLayer(Layer):
    """A layer with a window; its mask has the interface of transformers 4."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__(keys, values)
        self.sliding_window = 4

    def get_mask_sizes(self, positions: Tensor) -> tuple[int, int]:
        query = positions.shape[0]
        offset = max(self.cumulative_length - self.sliding_window + 1, 0)
        return self.sliding_window - 1 + query if offset else self.cumulative_length + query, offset


class Masked(nn.Module):
    def forward(self, x: Tensor, layer: WindowLayer) -> Tensor:
        length, offset = layer.get_mask_sizes(torch.arange(x.shape[0]))
        return x.sum() * torch.arange(length) + offset + layer.keys.sum() + layer.values.sum()


def test_parts_are_named_by_path() -> None:
    assert list(object_parts(_cache())) == [
        *("0.key", "0.value", "0.cumulative_length"),
        *("1.key", "1.value", "1.cumulative_length"),
    ]
    hidden = torch.ones(1)
    state = State(hidden, [torch.ones(2), torch.ones(3)], {"pair": Pair(torch.ones(4), 5)}, again=hidden)
    assert list(object_parts(state)) == ["hidden", "history.0", "history.1", "named.pair.first"]


@pytest.mark.parametrize(
    "value", [3, "x", None, torch.ones(1), [torch.ones(1)], nn.Linear(1, 1), Cache, print, object()]
)
def test_values_that_are_not_objects(value: Any) -> None:
    assert not is_object(value)
    assert flatten_objects(value) is value


def test_unflattened_objects_are_copies_with_the_given_tensors() -> None:
    cache = _cache()
    parts = flatten_objects((cache, 1))
    new = {name: part + 1 for name, part in parts[0].items()}
    made, one = unflatten_objects((cache, 1), (new, 1))
    assert one == 1
    assert made is not cache
    assert made.owner is made
    assert made.layers[0].keys is new["0.key"]
    assert made.layers[1].cumulative_length == 4
    assert made.layers[0]._sliding_window_tensor is cache.layers[0]._sliding_window_tensor
    assert cache.layers[0].keys is parts[0]["0.key"]
    hidden = torch.ones(1)
    state = State(hidden, [hidden], {"pair": Pair(hidden, 5)})
    made = unflatten_objects(state, {"hidden": hidden + 1})
    assert made.named["pair"].first is made.hidden is made.history[0]


def test_a_cache_as_input_and_output() -> None:
    model = Decoder().eval()
    x, cache = torch.rand(2, 1, 4), _cache()
    before = object_parts(cache)
    spec = {name: {0: "batch", 1: "past"} for name in before if "cumulative" not in name}
    program = fxonnx.export(model, (x, cache), dynamic_shapes={"x": {0: "batch"}, "past_key_values": spec})
    assert [value.name for value in program.model.graph.inputs] == [
        "x",
        *(f"past_key_values.{layer}.{name}" for layer in range(2) for name in ("key", "value", "cumulative_length")),
    ]
    assert [value.name for value in program.model.graph.outputs] == [
        "logits",
        *(f"present.{layer}.{name}" for layer in range(2) for name in ("key", "value", "cumulative_length")),
    ]
    assert all(part is before[name] for name, part in object_parts(cache).items())
    program.verify()
    tried = [dict(row.sizes) for row in program.verify(sizes="auto")]
    assert {sizes["batch"] for sizes in tried} > {1, 2}
    assert {sizes["past"] for sizes in tried} > {1, 3}
    for batch, past in ((2, 3), (1, 3), (3, 8), (2, 0)):
        x, cache = torch.rand(batch, 1, 4), _cache(batch, past)
        ours = program(x, cache)
        theirs = model(x, cache)
        torch.testing.assert_close(ours[0], theirs["logits"])
        torch.testing.assert_close(ours[1], theirs["past_key_values"].layers[0].keys)
        assert ours[3].item() == past + 1


@pytest.mark.parametrize("field", ["cache", "past_key_values"])
def test_a_cache_that_is_returned_in_another_field(field: str) -> None:
    """Results of transformers 5.24 and later have it as "cache"."""
    model = Decoder().eval()
    model.field = field
    program = fxonnx.export(model, (torch.rand(2, 1, 4), _cache()))
    assert [value.name for value in program.model.graph.outputs][1] == "present.0.key"


def test_a_cache_that_is_no_input_keeps_its_name() -> None:
    model = Function(lambda x: {"cache": x * 2, "past_key_values": x * 3}).eval()
    program = fxonnx.export(model, (torch.rand(2),))
    assert [value.name for value in program.model.graph.outputs] == ["cache", "past_key_values"]


def test_the_mask_of_a_window_over_a_past_of_any_length() -> None:
    model = Masked().eval()
    given = _window(3)
    shapes = {"x": {0: "tokens"}, "layer": {"key": {1: "past"}, "value": {1: "past"}, "cumulative_length": Dim.DYNAMIC}}
    program = fxonnx.export(model, given, dynamic_shapes=shapes)
    for past in (1, 3, 4, 7):
        torch.testing.assert_close(program(*_window(past))[0], model(*_window(past)))


def _window(past: int) -> tuple[Tensor, WindowLayer]:
    return torch.ones(2, 3), WindowLayer(torch.ones(2, past, 4), torch.ones(2, past, 4))


def test_outputs_are_named_by_path() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"x": x + 1, "inner": [x * 2, {"deep": x * 3}], "state": State(x * 4, [x * 5])}

    program = fxonnx.export(Model(), (torch.ones(2),))
    names = [value.name for value in program.model.graph.outputs]
    assert names == ["x_1", "inner.0", "inner.1.deep", "state.hidden", "state.history.0"]
    named = fxonnx.export(Model(), (torch.ones(2),), output_names=["first", "second"])
    assert [value.name for value in named.model.graph.outputs] == ["first", "second", *names[2:]]
    for ours, factor in zip(program(torch.ones(2)), (2.0, 2, 3, 4, 5), strict=True):
        torch.testing.assert_close(ours, torch.full((2,), float(factor)))


@pytest.mark.parametrize("example", [(2, 5, 3), (1, 5, 1)], ids=["several", "one"])
def test_a_step_of_a_language_model_runs_with_a_past_of_any_length(example: tuple[int, int, int]) -> None:
    import_torchvision()
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=20,
    )
    model = transformers.LlamaForCausalLM(config).eval()

    def call(batch: int, past: int, tokens: int) -> dict[str, Any]:
        layers = [(torch.rand(batch, 2, past, 4), torch.rand(batch, 2, past, 4)) for _ in range(2)]
        return {
            "input_ids": torch.randint(0, 20, (batch, tokens)),
            "attention_mask": torch.ones(batch, past + tokens, dtype=torch.int64),
            "past_key_values": transformers.DynamicCache(layers),
        }

    past = {f"{layer}.{name}": {0: "batch", 2: "past"} for layer in range(2) for name in ("key", "value")}
    shapes = {"input_ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "total"}, "past_key_values": past}
    program = fxonnx.export(model, kwargs=call(*example), dynamic_shapes=shapes)
    for sizes in ((2, 5, 3), (3, 7, 1), (1, 0, 4), (1, 1, 1)):
        inputs = call(*sizes)
        ours = program(**inputs)
        theirs = model(**inputs)
        torch.testing.assert_close(ours[0], theirs.logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours[3], theirs.past_key_values.layers[1].keys, rtol=1e-4, atol=1e-4)


class Unnamed(dict[str, Any]):
    """An output like diffusers', registered with pytree without keys."""


class Wrapped:
    def __init__(self, first: Any, second: Any) -> None:
        self.parts = (first, second)


torch.utils._pytree.register_pytree_node(
    Unnamed,
    lambda tree: (list(tree.values()), list(tree)),
    lambda values, names: Unnamed(zip(names, values, strict=True)),
)
torch.utils._pytree.register_pytree_node(
    Wrapped, lambda tree: (list(tree.parts), None), lambda values, _: Wrapped(*values)
)


def test_outputs_in_containers_registered_without_keys() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Unnamed:
            return Unnamed(sample=x + 1, more=Wrapped(x * 2, {"last": x - 1}))

    program = fxonnx.export(Model(), (torch.ones(2),))
    assert [value.name for value in program.model.graph.outputs] == ["sample", "more.0", "more.1.last"]
    assert [value.tolist() for value in program(torch.ones(2))] == [[2, 2], [2, 2], [0, 0]]


class Fields(NamedTuple):
    """A tensor and numbers."""

    x: torch.Tensor
    count: int
    scale: float = 0.5


class FieldsWithMethod(Fields):
    def total(self) -> torch.Tensor:
        return self.x * self.count + self.scale


class FieldsWithNew(Fields):
    def __new__(cls, x: torch.Tensor) -> FieldsWithNew:
        return super().__new__(cls, x, 2, 0.5)


class TakesFields(nn.Module):
    def forward(self, fields: Any) -> Any:
        total = fields.total() if isinstance(fields, FieldsWithMethod) else fields.x
        return type(fields)(total * fields.count, fields.count + 1, fields.scale)


@pytest.mark.parametrize("build", [Fields, FieldsWithMethod])
@pytest.mark.parametrize("scalars", [(), ("fields.count", "fields.scale")])
def test_named_tuples_with_numbers(build: type[Fields], scalars: tuple[str, ...]) -> None:
    model = TakesFields().eval()
    shapes = {"fields": build({0: "n"}, None, None)}  # type: ignore[arg-type]
    program = fxonnx.export(model, (build(torch.randn(2, 4), 3),), dynamic_shapes=shapes, dynamic_scalars=scalars)
    for fields in (build(torch.randn(2, 4), 3), build(torch.randn(5, 4), 7 if scalars else 3, 1.5 if scalars else 0.5)):
        found = program(fields)
        for one, other in zip(found, model(fields), strict=True):
            torch.testing.assert_close(one.double(), torch.as_tensor(other).double())


def test_a_named_tuple_that_is_not_created_from_its_fields_is_refused() -> None:
    fields = FieldsWithNew(torch.randn(2, 4))
    with pytest.raises(ArgumentError, match=r"cannot be created from its parts: FieldsWithNew(?s:.*)remove __new__"):
        fxonnx.export(TakesFields().eval(), (fields,))
    with pytest.raises(CaptureError, match=r"FieldsWithNew.__new__(?s:.*)remove __new__ from the NamedTuple"):
        fxonnx.export(VariadicFunction(FieldsWithNew).eval(), (torch.randn(2, 4),))


# Frozen inputs: tensors whose example values become constants of the model.


class Tower(nn.Module):
    """Split patches by grids, as the vision towers of language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor, grid_thw: Tensor, extra: dict[str, Tensor] | None = None) -> Tensor:
        parts = self.norm(x).split(grid_thw.prod(-1).tolist())
        rows = [
            part.reshape(height, width, -1).mean(1) for part, (_, height, width) in zip(parts, grid_thw, strict=True)
        ]
        result = torch.cat(rows)
        return result if extra is None else result[: int(extra["rows"])]


GRID = torch.tensor([[1, 2, 2], [1, 3, 2]])
X = torch.rand(10, 4)


@pytest.mark.parametrize("on_meta", [False, True], ids=["cpu", "meta"])
def test_frozen_values_are_constants(on_meta: bool, tmp_path: Path) -> None:
    model = Tower().eval()
    exported = Tower().eval().to("meta") if on_meta else model
    program = fxonnx.export(exported, (X, GRID), frozen=["grid_thw"])
    assert [value.name for value in program.model.graph.inputs] == ["x"]
    assert torch.equal(program.record.frozen_arguments["grid_thw"], GRID)
    if on_meta:
        program.apply_weights(model.state_dict())
    for given in ((X, GRID), (X,), (X, None), (X, GRID.clone())):
        torch.testing.assert_close(program(*given)[0], model(X, GRID))
    torch.testing.assert_close(program(X, grid_thw=GRID)[0], model(X, GRID))
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": X.numpy()})[0]), model(X, GRID))
    if not on_meta:
        program.verify()


def test_keyword_and_nested_inputs_match_patterns() -> None:
    model = Tower().eval()
    kwargs = {"grid_thw": GRID, "extra": {"rows": torch.tensor(3)}}
    program = fxonnx.export(model, (X,), kwargs=kwargs, frozen=["grid*", "extra.rows"])
    assert set(program.record.frozen_arguments) == {"grid_thw", "extra['rows']"}
    torch.testing.assert_close(program(X, **kwargs)[0], model(X, **kwargs))
    with pytest.raises(fxonnx.ArgumentError, match=r"extra: got 2, but the argument is frozen .* at export are 3"):
        program(X, GRID, {"rows": torch.tensor(2)})


def test_other_values_are_refused() -> None:
    program = fxonnx.export(Tower().eval(), (X, GRID), frozen=["grid_thw"])
    with pytest.raises(
        fxonnx.ArgumentError,
        match=r"(?s)grid_thw: got \[\[1, 2, 2\], \[1, 2, 3\]\], but .* \[1, 3, 2\]\]\nhint: pass the values of the example",
    ):
        program(X, torch.tensor([[1, 2, 2], [1, 2, 3]]))
    with pytest.raises(fxonnx.ArgumentError, match=r"grid_thw: got other values, but the argument is frozen"):
        program(X, "grid")


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        ("grid_thw", r"frozen: expected a list of names, got 'grid_thw'\nhint: write \[\"image_grid_thw\"\]"),
        ([1], r"frozen: expected a list of names, got \[1\]"),
        (["grid_thv"], r"frozen: 'grid_thv' matches no tensor of the example inputs\nhint: did you mean 'grid_thw'"),
        (["z*"], r"frozen: 'z\*' matches no tensor"),
    ],
)
def test_invalid_names(frozen: Any, message: str) -> None:
    with pytest.raises(fxonnx.ArgumentError, match=message):
        fxonnx.export(Tower().eval(), (X, GRID), frozen=frozen)


def test_a_frozen_tensor_needs_values() -> None:
    with pytest.raises(fxonnx.ArgumentError, match=r"frozen: grid_thw has no values\nhint: pass a tensor on the CPU"):
        fxonnx.export(Tower().eval(), (X, GRID.to("meta")), frozen=["grid_thw"])


def test_a_captured_program_has_no_frozen_inputs() -> None:
    program = torch.export.export(nn.Linear(4, 4), (X,))
    with pytest.raises(fxonnx.ArgumentError, match=r"frozen: an ExportedProgram is already captured"):
        fxonnx.export(program, frozen=["input"])


def test_a_frozen_tensor_has_no_dynamic_dims() -> None:
    with pytest.raises(fxonnx.ArgumentError, match=r"dynamic_shapes: grid_thw is None or frozen, which has no dims"):
        fxonnx.export(Tower().eval(), (X, GRID), frozen=["grid_thw"], dynamic_shapes={"grid_thw": {0: "images"}})


# Examples in which one tensor is several inputs: a model that asks for the identity is exported for equal inputs.


NAMES = ("a", "b", "c")


def same_or_difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x if x is y else x - y


def shared_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if v is not k:
        v = v * 3
    return torch.softmax(q @ k.mT, -1) @ v


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT, -1) @ v


def session_of(function: Callable[..., Any], count: int, path: Path) -> Any:
    x = torch.randn(2, 3, 4)
    program = fxonnx.export(
        VariadicFunction(function).eval(),
        (x,) * count,
        path,
        input_names=NAMES[:count],
        dynamic_shapes=(tuple({0: "n"} for _ in range(count)),),
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return program, onnxruntime.InferenceSession(path, options)


@pytest.mark.parametrize(("function", "count"), [(same_or_difference, 2), (shared_keys, 3)])
def test_a_model_that_asks_for_the_identity(function: Callable[..., Any], count: int, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"inputs: \S+ is \S+ -> True"):
        program, session = session_of(function, count, tmp_path / "m.onnx")
    x = torch.randn(5, 3, 4)
    x[0, 0, 0] = torch.nan
    found = session.run(None, dict.fromkeys(NAMES[:count], x.numpy()))[0]
    torch.testing.assert_close(torch.from_numpy(found), function(*(x,) * count), equal_nan=True)
    others = [torch.randn(5, 3, 4) for _ in range(count)]
    with pytest.raises(Exception, match=r"requires .* is .* -> True"):
        session.run(None, {name: other.numpy() for name, other in zip(NAMES, others, strict=False)})
    with pytest.raises(fxonnx.ArgumentError, match="take another branch than the example"):
        program(*others)


def test_other_models_have_separate_inputs(recwarn: pytest.WarningsRecorder, tmp_path: Path) -> None:
    program, session = session_of(attention, 3, tmp_path / "m.onnx")
    assert not recwarn.list
    assert [one.change for one in program.record.capture.attempts] == [""]
    given = [torch.randn(5, 3, 4) for _ in NAMES]
    found = session.run(None, {name: one.numpy() for name, one in zip(NAMES, given, strict=True)})[0]
    torch.testing.assert_close(torch.from_numpy(found), attention(*given))


def test_examples_with_two_tensors_are_separate_for_the_identity() -> None:
    x = torch.randn(2, 3)
    program = fxonnx.export(VariadicFunction(same_or_difference).eval(), (x, x.clone()))
    assert program(x, x * 3)[0].equal(x - x * 3)


# Arguments beside an ExportedProgram: inputs and dims that are not its own are errors.


class Model(torch.nn.Module):
    """Inputs in a dict, a list, a constant and an optional one."""

    def forward(self, x: Any, more: Any, k: int = 2, *, z: Any = None, shape: Any = None) -> Any:
        y = x * k + more["a"] + more["b"][0]
        return y if z is None else y + z


N = Dim("n", min=2, max=10)


def x(rows: int = 3, columns: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(rows, columns, dtype=dtype)


def more(rows: int = 3, **changed: Any) -> dict[str, Any]:
    return {"a": x(rows), "b": [x(rows)], **changed}


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    shapes = {"x": {0: N}, "more": {"a": {0: N}, "b": [{0: N}]}, "k": None, "z": None}
    return torch.export.export(Model(), (x(), more(), 3), {"z": torch.ones(4)}, dynamic_shapes=shapes)


_Row = tuple[Any, Mapping[str, Any] | None, Any]
Z = {"z": torch.zeros(4)}
OWN: dict[str, _Row] = {
    "nothing": ((), None, None),
    "equal": ((x(), more(), 3), {"z": torch.ones(4)}, None),
    "other-values": ((x() * 7, more(), 3), Z, None),
    "other-size": ((x(5), more(5), 3), Z, None),
    "constant-left-out": ((x(), more()), Z, None),
    "by-name": ((), {"more": more(), "x": x(), **Z}, None),
    "names": ((), None, {"x": {0: "rows"}, "more": None, "k": None, "z": None}),
    "dim-without-range": ((), None, {"x": {0: Dim("rows")}, "more": None, "k": None, "z": None}),
    "the-same-dim": ((), None, {"x": {0: N}, "more": None, "k": None, "z": None}),
    "auto": ((), None, {"x": {0: Dim.AUTO, 1: Dim.AUTO}, "more": None, "k": None, "z": None}),
}
OTHER: dict[str, tuple[Any, Mapping[str, Any] | None, Any, str]] = {
    "rank": ((torch.ones(4), more(), 3), Z, None, r"args: 'x' has the shape \[4\], but \[s\d+, 4\]"),
    "static-size": ((x(3, 5), more(), 3), Z, None, r"args: 'x' has the shape \[3, 5\]"),
    "out-of-range": ((x(11), more(11), 3), Z, None, r"args: 'x' has the shape \[11, 4\]"),
    "unequal": ((x(5), more(4), 3), Z, None, r"args: 'more' has the shape \[4, 4\]"),
    "dtype": ((x(dtype=torch.int32), more(), 3), Z, None, r"args: 'x' is torch.int32, but torch.float32"),
    "no-tensor": (("a", more(), 3), Z, None, r"args: 'x' is a str, but a tensor"),
    "constant": ((x(), more(), 4), Z, None, r"args: 'k' is 4, but the constant 3"),
    "constant-tensor": ((x(), more(), torch.ones(())), Z, None, r"args: 'k' is a Tensor, but the constant 3"),
    "keys": ((x(), more(c=x()), 3), Z, None, r"args: 'more' has another structure"),
    "list": ((x(), more(b=[x(), x()]), 3), Z, None, r"args: 'more' has another structure"),
    "missing": ((x(),), None, None, r"args: the input 'more' of the ExportedProgram is missing"),
    "missing-keyword": ((x(), more(), 3), {"k": 3}, None, r"kwargs: 'k' is also given by position"),
    "unknown": ((x(), more()), {"zz": 1, **Z}, None, r"kwargs: the ExportedProgram has no input 'zz'"),
    "keyword-shape": ((x(), more()), {"z": torch.ones(5)}, None, r"kwargs: 'z' has the shape \[5\], but \[4\]"),
    "too-many": ((x(), more(), 3, torch.ones(4), 1), None, None, r"takes 4 inputs, got 5 positional ones"),
    "no-tuple": ({"x": x()}, None, None, r"args: expected a tuple or a tensor, got a dict"),
    "bare": (x(3, 5), None, None, r"args: 'x' has the shape \[3, 5\]"),
    "static": ((), None, {"x": {0: 3}, "more": None, "k": None, "z": None}, r"dynamic_shapes: x axis 0 is dynamic"),
    "dim-static": (
        *((), None, {"x": None, "more": {"a": {0: Dim.STATIC}, "b": None}, "k": None, "z": None}),
        r"dynamic_shapes: more\['a'\] axis 0 is dynamic in the ExportedProgram, not static",
    ),
    "range": (
        *((), None, {"x": {0: Dim("n", min=3, max=4)}, "more": None, "k": None, "z": None}),
        r"dynamic_shapes: x axis 0 is 2 to 10 in the ExportedProgram, not 3 to 4",
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_own_arguments(name: str, program: ExportedProgram) -> None:
    args, kwargs, shapes = OWN[name]
    exported = fxonnx.export(program, args, kwargs=kwargs, dynamic_shapes=shapes)
    inputs = (x(4), more(4), 3), {"z": torch.rand(4)}
    torch.testing.assert_close(exported(*inputs[0], **inputs[1])[0], Model()(*inputs[0], **inputs[1]))


@pytest.mark.parametrize("name", OTHER)
def test_other_arguments(name: str, program: ExportedProgram) -> None:
    args, kwargs, shapes, expected = OTHER[name]
    with pytest.raises(ArgumentError, match=expected):
        fxonnx.export(program, args, kwargs=kwargs, dynamic_shapes=shapes)
