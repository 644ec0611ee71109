"""Mutations in forward: lost updates, states as outputs, stateful sessions, and state='error'."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.onnx import TrainingMode

import fxonnx
from fxonnx import ArgumentError, StateError


class Cache(nn.Module):
    """Mutates two buffers, one of them non-persistent, and an input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 8, 4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> dict[str, Any]:
        self.cache.index_copy_(1, at, x)
        self.steps += 1
        seen.add_(x.sum())
        return {"total": self.cache.sum(1) * self.steps, "nothing": None}


class Assigned(nn.Module):
    """Assigns a new tensor to a buffer instead of mutating it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = self.mean * 0.5 + x
        return x - self.mean


class Whole(nn.Module):
    """Overwrites a buffer without reading its initial value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last.copy_(x)
        return x + 1


class Averaged(nn.Module):
    """Batch norm and instance norm with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm1d(3, momentum=0.3)
        self.instance = nn.InstanceNorm1d(3, track_running_stats=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.instance(x) + self.batch(x)


def step(position: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(2, 1, 4), torch.tensor([position]), torch.zeros(3)


def names(values: Sequence[Any]) -> list[str]:
    return [str(value.name) for value in values]


def test_lost_updates_cause_a_warning_with_names_and_lines() -> None:
    model = Cache()
    text = (
        r"forward writes to 'cache', 'steps', 'seen', but an ONNX model keeps no state(?s:.*)"
        r"'cache' at .*test_state\.py:\d+\n  'steps' at .*test_state\.py:\d+\n  'seen' at .*test_state\.py:\d+\nhint: pass state="
    )
    given = step(0)
    with pytest.warns(UserWarning, match=text):
        program = fxonnx.export(model, given)
    assert json.loads(program.model.metadata_props["pkg.fxonnx.lost_updates"]) == ["cache", "steps", "seen"]
    assert names(program.model.graph.outputs) == ["total"]
    assert model.cache.abs().sum() == 0
    assert given[2].sum() == 0
    with pytest.raises(ArgumentError, match="the model has no state, or no graph inputs for it"):
        program.stateful_session()


def test_returned_mutated_inputs_are_not_lost() -> None:
    class Returned(nn.Module):
        def forward(self, data: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            data[1] = row
            return data

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxonnx.export(Returned().eval(), (torch.zeros(3, 2), torch.ones(2)), state="error", verify=True)


def test_state_error_rejects_mutations() -> None:
    with pytest.raises(StateError, match=r"forward writes to 'last'(?s:.*)'last' at .*test_state\.py"):
        fxonnx.export(Whole().eval(), (torch.ones(3),), state="error")
    with pytest.raises(ArgumentError, match="state: expected one of 'warn', 'io', 'outputs', 'error', got 'input'"):
        fxonnx.export(Whole().eval(), (torch.ones(3),), state="input")  # type: ignore[arg-type]


@pytest.mark.parametrize("opset", [20, 24])
def test_states_are_fed_back(opset: int) -> None:
    torch.manual_seed(0)
    model = Cache().eval()
    model.cache += 0.5
    program = fxonnx.export(model, step(0), state="io", opset_version=opset, verify=True)
    assert [value.op_type for value in program.model.graph if "Scatter" in value.op_type] == [
        "TensorScatter" if opset == 24 else "ScatterElements"
    ]
    assert names(program.model.graph.inputs) == ["x", "at", "seen", "cache.in", "steps.in"]
    assert names(program.model.graph.outputs) == ["total", "cache.out", "steps.out", "seen.out"]
    pairs = [(pair.name, pair.input, pair.output, pair.initial) for pair in program.interface.states]
    assert pairs == [
        ("cache", "cache.in", "cache.out", "cache.in"),
        ("steps", "steps.in", "steps.out", "steps.in"),
        ("seen", "seen", "seen.out", None),
    ]
    session = program.stateful_session()
    for _ in range(2):
        expected = Cache()
        expected.load_state_dict(model.state_dict())
        for position in range(4):
            given = step(position)
            ours = [value.clone() for value in given]
            torch.testing.assert_close(session(*ours), (expected(*given)["total"],))
            torch.testing.assert_close(ours, list(given))
            torch.testing.assert_close(dict(session.state), {"cache": expected.cache, "steps": expected.steps})
        session.reset()
    given = step(1)
    session.reset({"steps": torch.tensor(6)})
    assert session(*given)[0].equal(program(*given)[0] * 7)
    assert set(program.unflatten(program(*given))) == {"total", "nothing"}
    with pytest.raises(ArgumentError, match="state: unknown state 'other'"):
        session.reset({"other": torch.zeros(1)})
    with pytest.raises(ArgumentError, match=r"cache\.in: expected shape \[2, 8, 4\], got \[1\]"):
        session.reset({"cache": torch.zeros(1)})


def test_stateful_model_from_a_file(tmp_path: Path) -> None:
    program = fxonnx.export(Cache().eval(), step(0), state="io")
    program.save(tmp_path / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    pairs = json.loads(session.get_modelmeta().custom_metadata_map["pkg.fxonnx.state"])
    assert [pair["name"] for pair in pairs] == ["cache", "steps", "seen"]
    x, at, seen = (value.numpy() for value in step(3))
    (steps,) = session.run(["steps.out"], {"x": x, "at": at, "seen": seen})
    assert steps == 1
    (steps,) = session.run(["steps.out"], {"x": x, "at": at, "seen": seen, "steps.in": steps})
    assert steps == 2


def test_states_after_optimization_and_apply_weights() -> None:
    program = fxonnx.export(Cache().eval(), step(0), state="io")
    program.optimize()
    session = program.stateful_session()
    first, second = session(*step(0)), session(*step(0))
    assert session.state["steps"] == 2
    assert not first[0].equal(second[0])
    program.apply_weights({"cache": torch.ones(2, 8, 4)})
    assert program.stateful_session().state["cache"].sum() == 64


def test_states_as_outputs_only() -> None:
    program = fxonnx.export(Cache().eval(), step(0), state="outputs", verify=True)
    assert names(program.model.graph.inputs) == ["x", "at", "seen"]
    assert names(program.model.graph.outputs) == ["total", "cache.out", "steps.out", "seen.out"]
    assert [pair.initial for pair in program.interface.states] == [None, None, None]
    assert program(*step(0))[2] == 1


@pytest.mark.parametrize("model", [Assigned(), Whole()], ids=["assigned", "never-read"])
def test_kinds_of_mutations(model: Any) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    session = fxonnx.export(model.eval(), (x,), state="io", verify=True).stateful_session()
    for _ in range(3):
        torch.testing.assert_close(session(x), (model(x),))
        torch.testing.assert_close(dict(session.state), dict(model.named_buffers()))


class Decayed(nn.Module):
    """Writes to parameters in a region of ``no_grad``, which is a subgraph of the captured program."""

    def __init__(self, write: Callable[[nn.Parameter], object]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.write(self.w)
        return x * self.w


WRITES: tuple[Callable[[nn.Parameter], object], ...] = (
    lambda w: w.mul_(0.5),
    lambda w: w.data.mul_(0.5),
    lambda w: w[:2].sub_(0.25),
    lambda w: torch.mul(torch.ones(3), 0.5, out=w),
)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("verify", [False, True])
def test_parameters_written_without_gradients_are_restored(write: Any, verify: bool) -> None:
    model, x = Decayed(write).eval(), torch.ones(2, 3)
    with pytest.warns(UserWarning, match="forward writes to 'w'"):
        program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},), verify=verify)
    assert torch.equal(model.w, torch.ones(3))
    torch.testing.assert_close(program(x)[0], model(x).detach())


def test_running_statistics() -> None:
    model = Averaged().train()
    x = torch.randn(4, 3, 5)
    shapes = ({0: "n", 2: "t"},)
    names_ = r"'batch\.running_mean', 'batch\.running_var', 'batch\.num_batches_tracked', 'instance\.running_mean'"
    with pytest.warns(UserWarning, match=names_):
        fxonnx.torch_onnx_export(model, (x,), training=TrainingMode.PRESERVE)
    program = fxonnx.torch_onnx_export(
        model, (x,), training=TrainingMode.PRESERVE, state="io", dynamic_shapes=shapes, verify="auto"
    )
    session = program.stateful_session()
    for size in (2, 3, 4):
        x = torch.randn(size, 3, 2 * size)
        torch.testing.assert_close(session(x), (model(x).detach(),), rtol=1e-4, atol=1e-5)
        for name, value in session.state.items():
            torch.testing.assert_close(value, model.state_dict()[name])


class Constants(nn.Module):
    """Tensors that forward creates are no state, also if it writes to them or to views of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([1.0, 2.0, 4.0])
        scale.div_(2.0)
        matrix = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        matrix[0] = x
        matrix[1, 2:].mul_(scale[2])
        return matrix * scale


@pytest.mark.filterwarnings("error")
def test_tensors_created_in_forward_are_no_state() -> None:
    program = fxonnx.export(Constants().eval(), (torch.rand(3),), state="error")
    for _ in range(2):
        x = torch.rand(3)
        torch.testing.assert_close(program(x)[0], Constants()(x))
    assert "Div" not in {node.op_type for node in program.model.graph}


class Growing(nn.Module):
    """Appends each input to a buffer, and returns a function of what it held before."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("k", torch.arange(12.0).reshape(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.function(self.k) + x.sum()
        self.k = torch.cat([self.k, x])
        return y


def doubled_if_even(k: torch.Tensor) -> torch.Tensor:
    if k.shape[0] % 2:
        return k.sum()
    return k.sum() * 2


def test_a_branch_on_whether_the_length_of_a_growing_state_is_even(tmp_path: Path) -> None:
    model = Growing(doubled_if_even)
    fxonnx.export(model, (torch.randn(1, 3),), tmp_path / "m.onnx", state="io")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    state: dict[str, Any] = {}
    for _ in range(4):
        x = torch.randn(1, 3)
        y, after = session.run(None, {"x": x.numpy(), **state})
        state = {"k.in": after}
        torch.testing.assert_close(torch.from_numpy(y), model(x))


@pytest.mark.parametrize(
    ("function", "condition"),
    [
        (lambda k: k.view(2, -1, 3).sum(), r"\(3\*k_0\) % 6 == 0"),
        (lambda k: k.unflatten(0, (-1, 4)).sum(), "k_0 % 4 == 0"),
        (lambda k: k.view(4, 3).sum(), r"3\*k_0 == 12"),
    ],
    ids=["view", "unflatten", "number"],
)
def test_a_size_of_a_growing_state_that_has_to_be_a_multiple(function: Any, condition: str) -> None:
    with pytest.raises(StateError, match=f"changes the shape of 'k', and the program is valid for {condition}"):
        fxonnx.export(Growing(function), (torch.randn(1, 3),), state="io")


class AddsTheLast(nn.Module):
    """Adds the last input from the third call on, which two calls with equal inputs do not tell from a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0
        self.last = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.last if self.step > 1 else x * 1
        self.step += 1
        self.last = x[0].clone()
        return y


def test_an_attribute_that_a_later_call_reads_in_a_branch(tmp_path: Path) -> None:
    model = AddsTheLast()
    fxonnx.export(model, (torch.randn(2, 3),), tmp_path / "m.onnx", state="io")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    names = [value.name for value in session.get_outputs()]
    state: dict[str, Any] = {}
    for _ in range(5):
        x = torch.randn(2, 3)
        y, *after = session.run(None, {"x": x.numpy(), **state})
        state = {name.replace(".out", ".in"): value for name, value in zip(names[1:], after, strict=True)}
        torch.testing.assert_close(torch.from_numpy(y), model(x))
