"""Python attributes that forward changes are state that an ONNX model does not have; caches are not."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections import deque
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import fxonnx
from fxonnx import CaptureError, StateError
from fxonnx._capture.suspicions import attribute_changes

from . import helpers_with_state
from .helpers_with_state import adds_the_last

X = torch.randn(2, 4)
TOTAL = 0
HISTORY: list[int] = []
KEPT: list[torch.Tensor] = []


class Number(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ticks = 0

    def forward(self, x: Tensor) -> Tensor:
        self.ticks += 1
        return x * self.ticks


class Reassigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.label = "a"

    def forward(self, x: Tensor) -> Tensor:
        self.label = self.label + "b"
        return x * len(self.label)


class PlainTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.zeros(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x + self.hidden
        self.hidden = hidden
        return hidden


class PreviousOrNone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.previous: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.previous is not None:
            x = x + self.previous
        self.previous = x
        return x


class ListItem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counts = [0, 5]

    def forward(self, x: Tensor) -> Tensor:
        self.counts[0] += 1
        return x * self.counts[0]


class Appended(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: deque[int] = deque()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        return x * len(self.seen)


class DictItem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table: dict[str, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.table["n"] = self.table.get("n", 0) + 1
        return x * self.table["n"]


class Submodule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(), Number())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class ObjectAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(step=0)

    def forward(self, x: Tensor) -> Tensor:
        self.config.step += 1
        return x * self.config.step


class ClassAttribute(nn.Module):
    shared: ClassVar[int] = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).shared += 1
        return x * self.shared


class GlobalVariable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        global TOTAL  # noqa: PLW0603
        TOTAL += 1
        return x * TOTAL


class GlobalList(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        HISTORY.append(1)
        return x * len(HISTORY)


class FirstCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.is_first = True

    def forward(self, x: Tensor) -> Tensor:
        if self.is_first:
            self.is_first = False
            return x
        return x * 2


class RareUse(nn.Module):
    """The second call has the result of the first; the hundredth does not."""

    def __init__(self) -> None:
        super().__init__()
        self.warmup = 0

    def forward(self, x: Tensor) -> Tensor:
        self.warmup += 1
        return x * 2 if self.warmup > 100 else x


STATEFUL: tuple[tuple[type[nn.Module], str], ...] = (
    (Number, r"'ticks': 0 becomes 1 at .*test_attribute_changes.py:\d+ in forward: self.ticks \+= 1"),
    (Reassigned, r"'label': 'a' becomes 'ab' at .*in forward: self.label = self.label \+ \"b\""),
    (PlainTensor, r"'hidden': a tensor of shape \(2, 4\) becomes a tensor of shape \(2, 4\) at .*self.hidden = hidden"),
    (PreviousOrNone, r"'previous': None becomes a tensor of shape \(2, 4\) at .*self.previous = x"),
    (ListItem, r"'counts': \[0, 5\] becomes \[1, 5\] at .*self.counts\[0\] \+= 1"),
    (Appended, r"'seen': \[\] becomes \[1\] at .*self.seen.append\(1\)"),
    (DictItem, r"\"table\['n'\]\": nothing becomes 1 at .*self.table\[\"n\"\] = "),
    (Submodule, r"'layers.1.ticks': 0 becomes 1 at .*self.ticks \+= 1"),
    (ObjectAttribute, r"'config.step': 0 becomes 1 at .*self.config.step \+= 1"),
    (ClassAttribute, r"'ClassAttribute.shared': 0 becomes 1 at .*type\(self\).shared \+= 1"),
    (GlobalVariable, r"'TOTAL': 0 becomes 1 at .*TOTAL \+= 1"),
    (GlobalList, r"'HISTORY': \[\] becomes \[1\] at .*HISTORY.append\(1\)"),
    (FirstCall, r"'is_first': True becomes False at .*self.is_first = False"),
    (RareUse, r"'warmup': 0 becomes 1 at .*self.warmup \+= 1"),
)


@pytest.mark.filterwarnings("ignore:The tensor attribute:UserWarning")
@pytest.mark.parametrize(("build", "message"), STATEFUL)
def test_state_in_attributes_is_a_warning_and_restored(build: Callable[[], nn.Module], message: str) -> None:
    model = build().eval()
    attributes = {name: repr(vars(module)) for name, module in model.named_modules()}
    globals_before = TOTAL, list(HISTORY), ClassAttribute.shared
    with pytest.warns(UserWarning, match=rf"forward changes Python attributes(?s:.*){message}(?s:.*)register_buffer"):
        program = fxonnx.export(model, (X,))
    assert {name: repr(vars(module)) for name, module in model.named_modules()} == attributes
    assert (TOTAL, HISTORY, ClassAttribute.shared) == globals_before
    for x in (X, X + 1):
        fresh = copy.deepcopy(model)
        expected = fresh(x)
        globals()["TOTAL"], ClassAttribute.shared = 0, 0
        HISTORY.clear()
        torch.testing.assert_close(program(x)[0], expected)
    (path,) = re.findall(r"""^(?:'|\\")(.*?)(?:'|\\"):""", message)
    assert json.loads(program.model.metadata_props["pkg.fxonnx.lost_updates"]) == [path.replace("\\", "")]
    with pytest.raises(StateError, match="forward changes Python attributes"):
        fxonnx.export(model, (X,), state="error")


def counted(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        return function(x)

    return run


@counted
def adds_one(x: torch.Tensor) -> torch.Tensor:
    HISTORY.append(1)
    return x + len(HISTORY)


@counted
def keeps(x: torch.Tensor) -> torch.Tensor:
    KEPT.append(x)
    return x * len(KEPT)


class Decorated(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return keeps(adds_one(x))


def test_state_of_several_functions_with_one_decorator_is_restored() -> None:
    before = list(HISTORY)
    with pytest.warns(UserWarning, match=r"'HISTORY': (?s:.*)'KEPT': "):
        fxonnx.export(Decorated(), (X,))
    assert (before, []) == (HISTORY, KEPT)


class Appends(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helpers_with_state.appends(x)


class AddsTheLast(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return adds_the_last(x)


class Counts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helpers_with_state.counts(x)


class Numbered(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helpers_with_state.Box.numbered(x)


class CountsThere(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        helpers_with_state.COUNT += 1
        return x * helpers_with_state.COUNT


class CountsInABranch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 1e7:
            helpers_with_state.COUNT = 5
        return x * helpers_with_state.COUNT


def test_a_branch_that_assigns_a_variable_of_another_file_is_refused() -> None:
    with pytest.raises(CaptureError, match="it assigns the global variable 'COUNT'"):
        fxonnx.export(CountsInABranch(), (X,))
    assert helpers_with_state.COUNT == 0


@pytest.mark.parametrize("build", [Appends, AddsTheLast, Counts, CountsThere, Numbered])
def test_state_of_functions_in_another_file_is_a_warning_and_restored(build: Callable[[], nn.Module]) -> None:
    with pytest.warns(UserWarning, match="changes Python attributes"):
        program = fxonnx.export(build(), (X,))
    state = helpers_with_state
    assert (state.NOTES, state.COUNT, state.BOX.value, state.Box.made) == ([], 0, 0, 0)
    torch.testing.assert_close(program(X)[0], X)


def test_a_variable_of_an_enclosing_function_is_state() -> None:
    times = 0

    class Enclosed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal times
            times += 1
            return x * times

    with pytest.warns(UserWarning, match=r"'times': 0 becomes 1 at .*times \+= 1"):
        fxonnx.export(Enclosed().eval(), (X,))
    assert times == 0


class Cache(nn.Module):
    """Values that the first call computes and later calls read."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Tensor | None = None
        self.tables: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None or self.mask.shape[0] != x.shape[1]:
            self.mask = torch.ones(x.shape[1])
        if x.shape[1] not in self.tables:
            self.tables[x.shape[1]] = torch.arange(x.shape[1])
        if not hasattr(self, "_scale"):
            self._scale = torch.tensor(2.0)
        if not hasattr(self, "offsets"):
            self.register_buffer("offsets", torch.arange(4.0), persistent=False)
        return x * self.mask * self._scale + self.tables[x.shape[1]] + self.offsets


class Notes(nn.Module):
    """Values that nothing in the model reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layer_inputs: list[Tensor] = []
        self.number_of_runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.last_mean = x.mean()
        self.layer.last_input = x
        self.layer_inputs.append(x)
        self.number_of_runs += 1
        return self.layer(x)


@pytest.mark.parametrize("build", [Cache, Notes, lambda: nn.LSTM(4, 4), lambda: nn.Dropout(0.5)])
def test_caches_and_notes_are_silent(build: Callable[[], nn.Module]) -> None:
    model = build().eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = fxonnx.export(model, (X,))
    assert not [warning for warning in caught if "forward changes" in str(warning.message)]
    expected = copy.deepcopy(model)(X)
    torch.testing.assert_close(program(X)[0], expected[0] if isinstance(expected, tuple) else expected)


class CreatesModule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "head"):
            self.head = nn.Sequential(nn.Linear(x.shape[1], 3), nn.ReLU())
        return self.head(x)


class CreatesParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("table", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = nn.Parameter(torch.randn(4, 4))
        return x @ self.table


class DrawsBuffer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "projection"):
            self.register_buffer("projection", torch.randn(4, 4))
        return x @ self.projection


class DrawsAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features: Any = None

    def forward(self, x: Tensor) -> Tensor:
        if self.features is None:
            self.features = torch.randn(4, 4)
        return x @ self.features


@pytest.mark.filterwarnings("ignore:The tensor attribute:UserWarning")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (CreatesModule, r"forward creates the module 'head' in the first call(?s:.*)in forward: self.head = nn.Sequ"),
        (CreatesParameter, r"forward creates the parameter 'table' in the first call(?s:.*)in forward: self.table = "),
        (DrawsBuffer, r"forward draws random values in the first call only and keeps them in 'projection'"),
        (DrawsAttribute, r"forward draws random values in the first call only and keeps them in 'features'"),
    ],
)
def test_weights_that_the_first_call_creates_are_refused_until_it_has_run(
    build: Callable[[], nn.Module], message: str
) -> None:
    model = build().eval()
    names = list(model.state_dict())
    with pytest.raises(
        CaptureError, match=rf"{message}(?s:.*)hint: run the model once before the export: model\(\*arg"
    ):
        fxonnx.export(model, (X,))
    assert list(model.state_dict()) == names
    expected = model(X)
    program = fxonnx.export(model, (X,))
    torch.testing.assert_close(program(X)[0], expected)
    torch.testing.assert_close(program(X + 1)[0], model(X + 1))


def test_modules_created_in_every_call_are_exported() -> None:
    class Creates(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.activation = nn.ReLU()
            return self.activation(x)

    torch.testing.assert_close(fxonnx.export(Creates().eval(), (X,))(X)[0], X.relu())


class KeptProduct(nn.Module):
    """The first call keeps a value: of weights alone, or of the input."""

    def __init__(self, is_of_input: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(512, 512)
        self.kept: dict[str, Tensor] = {}
        self.is_of_input = is_of_input

    def forward(self, x: Tensor) -> Tensor:
        if "table" not in self.kept:
            self.kept["table"] = x.mean(0) if self.is_of_input else self.layer.weight.mean(0)
        return self.layer(x) * self.kept["table"]


@pytest.mark.parametrize("is_of_input", [False, True])
def test_long_models_do_not_run_for_caches_of_weights(is_of_input: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []
    monkeypatch.setattr(attribute_changes, "_decide", lambda *args: runs.append(args) or [])
    model, x = KeptProduct(is_of_input).eval(), torch.randn(256, 512)
    program = fxonnx.export(model, (x,))
    assert len(runs) == is_of_input
    torch.testing.assert_close(program(x)[0], model(x))


class Assigns(nn.Module):
    """Assigns a buffer that follows one without a value, and creates one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", None)
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "offset"):
            self.register_buffer("offset", torch.arange(4.0))
        self.total = self.total + x.sum(0)
        return self.total * self.scale + self.offset


def test_assigned_buffers_are_written_to_themselves() -> None:
    model = Assigns().eval()
    program = fxonnx.export(model, (X,), state="io")
    assert list(model._buffers) == ["mask", "total", "scale"]
    assert [value.name for value in program.model.graph.inputs] == ["x", "total.in"]
    session = program.stateful_session()
    for _ in range(2):
        torch.testing.assert_close(session(X)[0], model(X))
    torch.testing.assert_close(session.state["total"], model.total)


class Caching(nn.Module):
    """A module that keeps tables by the sizes for which it has made them."""

    def __init__(self, find: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.find = find
        self.cache: dict[Any, Tensor] = {}
        self.size: Any = ()
        self.grid = torch.zeros(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.find(self, x)


def _grid(height: int, width: int) -> Tensor:
    return torch.arange(height)[:, None] - 2 * torch.arange(width)


def _looked_up(self: Any, x: Tensor) -> Tensor:
    if x.shape[1] not in self.cache:
        while len(self.cache) > 2:
            self.cache.pop(next(iter(self.cache)))
        self.cache[x.shape[1]] = torch.arange(x.shape[1]) * 2.0
    return self.cache[x.shape[1]]


def _got(self: Any, x: Tensor) -> Tensor:
    found = self.cache.get(x.shape[1])
    if found is None:
        found = self.cache[x.shape[1]] = torch.arange(x.shape[1]) * 2.0
    return found


def _set_as_default(self: Any, x: Tensor) -> Tensor:
    height, width = x.shape
    return self.cache.setdefault((height, width, x.dtype), _grid(height, width))


def _of_shape(self: Any, x: Tensor) -> Tensor:
    key = tuple(x.shape)
    if key in self.cache:
        return self.cache[key]
    self.cache[key] = _grid(*x.shape)
    return self.cache[key]


def _handled(self: Any, x: Tensor) -> Tensor:
    n = x.shape[1]
    try:
        return self.cache[n]
    except KeyError:
        self.cache = {n: torch.arange(n) * 2.0}
        return self.cache[n]


def _beside_a_branch(self: Any, x: Tensor) -> Tensor:
    y = x if x.sum() > 0 else -x
    if x.shape[1] not in self.cache:
        self.cache[x.shape[1]] = torch.arange(x.shape[1]) * 2.0
    return y * self.cache[x.shape[1]]


def _kept_shape(self: Any, x: Tensor) -> Tensor:
    if self.size != x.shape:
        self.size, self.grid = x.shape, torch.stack([_grid(*x.shape), _grid(*x.shape)])
    return self.grid.sum(0)


_CACHES = (_looked_up, _got, _set_as_default, _of_shape, _handled, _kept_shape)


@pytest.mark.parametrize(("find", "is_called"), [*product(_CACHES, (False, True)), (_beside_a_branch, False)])
def test_a_cache_by_sizes_stays_dynamic(find: Callable[[Any, Tensor], Tensor], is_called: bool) -> None:
    model = Caching(find).eval()
    for shape in ((5, 7), (2, 4)) if is_called else ():
        model(torch.randn(shape))
    before = {**model.cache}
    program = fxonnx.export(model, (X,), dynamic_shapes=({0: "n", 1: "m"},))
    assert model.cache.keys() == before.keys()
    for shape in ((2, 4), (5, 7), (2, 9), (8, 4), (1, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x)[0], copy.deepcopy(model)(x))


def _chosen(self: Any, x: Tensor) -> Tensor:
    return torch.ones(()) * {7: 2.0, 9: 3.0}.get(x.shape[1], 4.0)


def _one_of(self: Any, x: Tensor) -> Tensor:
    return torch.ones(()) * (2.0 if x.shape[1] in {7, 9} else 4.0)


@pytest.mark.parametrize("find", [_chosen, _one_of])
def test_sizes_among_the_keys_of_a_table_are_no_sizes_of_the_file(find: Callable[[Any, Tensor], Tensor]) -> None:
    model = Caching(find).eval()
    with pytest.warns(UserWarning, match="m != 7\n(?s:.*)m != 9|m != 9\n(?s:.*)m != 7"):
        program = fxonnx.export(model, (X,), dynamic_shapes=({0: "n", 1: "m"},))
    torch.testing.assert_close(program(X)[0], model(X))
    for size in (7, 9):
        with pytest.raises(Exception, match=f"exported for m != {size}"):
            program(torch.randn(3, size))


class KeepsTheBatch(nn.Module):
    """A recurrent layer of speechbrain, which notes the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 1
        self.cell = nn.Linear(4, 4, bias=False)
        self.register_buffer("first", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        if self.batch_size != x.shape[0]:
            self.batch_size = x.shape[0]
        h, steps = self.first.broadcast_to(x.shape[0], 4), []
        for k in range(x.shape[1]):
            h = torch.tanh(x[:, k] + self.cell(h))
            steps.append(h)
        return torch.stack(steps, dim=1)


def test_a_size_that_a_layer_with_a_loop_notes_is_no_limit() -> None:
    model = KeepsTheBatch().eval()
    program = fxonnx.export(model, (torch.randn(2, 5, 4),), dynamic_shapes=({0: "batch", 1: "time"},))
    for shape in ((2, 5, 4), (1, 7, 4), (1, 1, 4), (3, 2, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x)[0], model(x))
