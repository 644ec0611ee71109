"""Programs with state in calls in a row: the proof, ``verify`` of programs and files, and errors that name the call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fxonnx
from fxonnx import CaptureError, VerificationError
from fxonnx._cli.commands import app
from fxonnx._program.proof import prove

X = torch.tensor([[1.0, -2.0, 0.5], [3.0, 4.0, 1.0]])


class Stateful(nn.Module):
    """A function of a model with two buffers and of an input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("n", torch.tensor(0))
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def counted(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.n += 1
    return x * m.n


def averaged(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.n = m.n + x.shape[0]
    m.h += (x - m.h).sum(0) / m.n
    return x - m.h


def read_first(m: Any, x: torch.Tensor) -> Any:
    y = x + m.h
    m.h.copy_(x.amax(0))
    return {"y": y, "none": None, "n": m.h.sum()}


def returns_state(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.h.mul_(0.5).add_(x.sum(0))
    return m.h  # type: ignore[no-any-return]


def limited(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Has room for two calls."""
    if not torch.compiler.is_compiling() and m.n > 1:
        raise ValueError("full")
    m.n += 1
    return x + m.n


def noisy(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.n += 1
    return torch.nn.functional.dropout(x, 0.5, training=True) + m.n


def for_positive(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.n += 1
    return x * m.n if x.sum() > 0 else x - m.n


RIGHT = [counted, averaged, read_first, returns_state, for_positive]


def example() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """A model for the command line."""
    return Stateful(averaged).eval(), (X,)


def tripled_in_the_second_call() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Differs from the model above after its first call."""

    def function(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = averaged(m, x)
        return y * 3 if m.n > 2 else y

    return Stateful(function).eval(), (X,)


def calls_of(rows: list[fxonnx.OutputComparison]) -> set[str]:
    return {row.name.partition(":")[0] for row in rows if row.name.startswith("call ")}


@pytest.mark.parametrize("function", RIGHT)
@pytest.mark.parametrize("dynamic", [False, True])
def test_calls_in_a_row_are_compared(function: Any, dynamic: bool, tmp_path: Path) -> None:
    model = Stateful(function).eval()
    shapes = ({0: "rows"},) if dynamic else None
    program = fxonnx.export(model, (X,), tmp_path / "model.onnx", state="io", dynamic_shapes=shapes, verify=True)
    sequence = program.record.proof.sequence
    assert sequence is not None
    assert (sequence.status, sequence.calls) == ("equal", 5 if dynamic else 3)
    assert "calls in a row, compared with the model:\n  example; then negated" in str(program.record.proof)
    assert calls_of(program.verify()) == {"call 2", "call 3"}
    assert len(calls_of(program.verify(sizes="auto"))) == (4 if dynamic else 2)
    assert calls_of(fxonnx.verify(tmp_path / "model.onnx", model, (X,))) == {"call 2", "call 3"}
    # Nothing of the sequences is left.
    assert model.n == 0
    assert not model.h.any()


@pytest.mark.parametrize("options", [{}, {"state": "outputs"}])
def test_programs_without_state_inputs_are_called_once(options: Any) -> None:
    program = fxonnx.export(Stateful(counted).eval(), (X,), **options)
    assert program.record.proof.sequence is None
    assert calls_of(program.verify()) == set()


def test_attributes_that_no_call_keeps_are_no_sequence() -> None:
    class Stepping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.tensor(0))
            self.step = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.step += 1
            self.n += 1
            return x * self.step + self.n

    try:
        program = fxonnx.export(Stepping().eval(), (X,), state="io")
    except fxonnx.StateError:
        return
    if "pkg.fxonnx.lost_updates" in program.model.metadata_props:
        assert calls_of(program.verify()) == set()


def test_a_sequence_ends_where_the_model_fails() -> None:
    model = Stateful(limited).eval()
    program = fxonnx.export(model, (X,), state="io")
    sequence = program.record.proof.sequence
    assert sequence is not None
    assert (sequence.status, sequence.calls) == ("equal", 2)
    assert calls_of(program.verify()) == {"call 2"}


def test_random_results_are_not_compared() -> None:
    model = Stateful(noisy)
    program = fxonnx.export(model, (X,), state="io")
    rows = {row.name: row.status for row in program.verify()}
    assert rows["call 3: n.out"] == "ok"
    assert "skipped" in rows.values()
    assert "mismatch" not in rows.values()


def test_branches_that_follow_the_example_end_a_sequence() -> None:
    def chosen(m: Any, x: torch.Tensor) -> Any:
        m.n += 1
        return (x - m.n, x * m.n)[int(x.sum() > 0)]

    model = Stateful(chosen).eval()
    program = fxonnx.export(model, (X,), state="io", data_dependent="example")
    sequence = program.record.proof.sequence
    # Negated inputs take the other branch: the example is called three times.
    assert sequence is not None
    assert (sequence.inputs, sequence.calls) == ("example; then example; then example", 3)
    assert calls_of(program.verify()) == {"call 2", "call 3"}


def test_the_proof_refuses_a_program_that_is_wrong_from_the_second_call_on() -> None:
    model = Stateful(counted).eval()
    capture = fxonnx.export(model, (X,), state="io").record.capture
    (product,) = (node for node in capture.exported_program.graph.nodes if "mul" in str(node.target))
    # The value that the counter has after the first call.
    product.args = (product.args[0], 1)
    text = (
        r"the captured program does not compute .*, at 3 calls in a row: example; then negated; then "
        r"with noise:\n  call 2: output 0: (?s:.*)pass the state to forward as an input"
    )
    with pytest.raises(CaptureError, match=text):
        prove(capture, model, is_stateful=True)
    assert prove(capture, model).runs[0].status == "equal"
    assert model.n == 0


def without_update(model: ir.Model) -> None:
    """Make a file that returns the first state at every call."""
    (state,) = (value for value in model.graph.inputs if value.name == "h.in")
    constant = ir.Value(name="h.first", const_value=ir.tensor(torch.zeros(3).numpy(), name="h.first"))
    model.graph.register_initializer(constant)
    for node, index in tuple(state.uses()):
        node.replace_input_with(index, constant)


@pytest.mark.parametrize("sizes", [None, "auto"])
def test_a_file_that_ignores_its_state_is_an_error(sizes: Any, tmp_path: Path) -> None:
    model = Stateful(averaged).eval()
    program = fxonnx.export(model, (X,), state="io", dynamic_shapes=({0: "rows"},))
    program.verify(sizes=sizes)
    without_update(program.model)
    text = (
        r"disagree:(?s:.*)\n  call 2: sub_1 +mismatch (?s:.*)\n  call 2: h.out +mismatch(?s:.*)"
        "each call in a row starts from the state that ONNX Runtime returned for the one before"
    )
    with pytest.raises(VerificationError, match=text) as caught:
        program.verify(sizes=sizes, locate=True)
    (first, *_) = (row for row in caught.value.rows if row.status == "mismatch")
    assert (first.name, first.index) == ("call 2: sub_1", 0)
    program.initialize_inference_session(lambda source: onnxruntime.InferenceSession(source))
    with pytest.raises(VerificationError, match=r"call 2: sub_1 +mismatch"):
        program.verify(sizes=sizes)
    program.save(tmp_path / "model.onnx")
    with pytest.raises(VerificationError, match=text):
        fxonnx.verify(tmp_path / "model.onnx", model, (X,))


def test_states_that_are_fed_back_to_other_inputs_are_an_error(tmp_path: Path) -> None:
    def crossed(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.h += x[0]
        m.k += x[1]
        return x + m.h - m.k  # type: ignore[no-any-return]

    model = Stateful(crossed)
    model.register_buffer("k", torch.zeros(3))
    program = fxonnx.export(model.eval(), (X,), state="io", verify=True)
    pairs = json.loads(program.model.metadata_props["pkg.fxonnx.state"])
    pairs[0]["input"], pairs[1]["input"] = pairs[1]["input"], pairs[0]["input"]
    program.model.metadata_props["pkg.fxonnx.state"] = json.dumps(pairs)
    program.save(tmp_path / "model.onnx")
    with pytest.raises(VerificationError, match=r"call 2: h\.out +mismatch"):
        fxonnx.verify(tmp_path / "model.onnx", model, (X,))


def test_a_file_that_fails_in_the_second_call_is_an_error(tmp_path: Path) -> None:
    model = Stateful(averaged).eval()
    program = fxonnx.export(model, (X,), tmp_path / "model.onnx", state="io")
    (state,) = (value for value in program.model.graph.inputs if value.name == "h.in")
    (returned,) = (value for value in program.model.graph.outputs if value.name == "h.out")
    # A state that grows, whose input does not.
    for value in (state, returned):
        value.shape = ir.Shape([3])
    grown = ir.node("Concat", [returned, returned], attributes={"axis": 0})
    grown.outputs[0].name, returned.name = "h.out", "h.before"
    grown.outputs[0].dtype = ir.DataType.FLOAT
    program.model.graph.append(grown)
    program.model.graph.outputs[list(program.model.graph.outputs).index(returned)] = grown.outputs[0]

    def grows(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = averaged(m, x)
        m.h = torch.cat([m.h, m.h])
        return y

    other = Stateful(lambda m, x: grows(m, x) if m.h.numel() == 3 else x)
    text = (
        r"ONNX Runtime fails in a call in a row that eager torch computes: h\.in: expected shape \[3\], got \[6\]"
        "(?s:.*)each call in a row starts from the state"
    )
    program.save(tmp_path / "model.onnx")
    with pytest.raises(VerificationError, match=text):
        fxonnx.verify(tmp_path / "model.onnx", other, (X,))


def test_the_command_line_runs_sequences(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fxonnx.export(*example(), path, state="io")
    done = CliRunner().invoke(app, ["verify", str(path), "tests.program.test_sequences:example"])
    assert done.exit_code == 0, done.output
    assert "call 3: h.out" in done.output
    other = "tests.program.test_sequences:tripled_in_the_second_call"
    done = CliRunner().invoke(app, ["verify", str(path), other])
    assert done.exit_code == 1
    assert "call 2: sub_1" in done.output


def test_an_exported_program_is_its_own_reference() -> None:
    exported = torch.export.export(Stateful(averaged).eval(), (X,))
    program = fxonnx.export(exported, state="io", verify=True)
    assert calls_of(program.verify()) == {"call 2", "call 3"}
    program.apply_weights({"h": torch.ones(3)})
    program.verify()
    assert program.interface.applied_weights["h"].equal(torch.ones(3))
    without_update(program.model)
    with pytest.raises(VerificationError, match=r"call 2: sub_1 +mismatch"):
        program.verify()


class Assigned(nn.Module):
    """Assigns and writes buffers, one of them not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3), persistent=False)
        self.register_buffer("n", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.5 + x[0]
        self.n.add_(1)
        return x + self.h * self.n


class Shared(nn.Module):
    """A module with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Assigned()
        self.second = self.first

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.first(x))


@pytest.mark.filterwarnings("ignore:forward writes to")
@pytest.mark.parametrize(("shared", "state"), [(False, "warn"), (False, "io"), (True, "warn")])
def test_assigned_buffers_that_are_not_persistent(shared: bool, state: Any) -> None:
    model = (Shared() if shared else Assigned()).eval()
    program = fxonnx.export(model, (X,), state=state, verify=True)
    assert [run.status for run in program.record.proof.runs] == ["equal"]
    assert calls_of(program.verify()) == ({"call 2", "call 3"} if state == "io" else set())
