"""Objects as inputs and outputs: flattened, named by path, and rebuilt."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

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
