"""A capture that departs from plain torch.export is compared with the model before the export ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fxonnx
from fxonnx._cli.commands import app
from fxonnx.torchscript.script import modules
from tests.functions import Function

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


class Doubling(nn.Module):
    """One branch for positive sums, another one for the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x - 1


def loop(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    for _ in range(int(n)):
        x = x * 2 + 1
    return x


class Rare(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() == 12345.678:
            return x * 2
        return x - 1


def while_positive(x: torch.Tensor) -> torch.Tensor:
    while x.max() < 100:
        x = x * 2
    return x


def kinds(program: fxonnx.ONNXProgram) -> set[str]:
    return {departure.kind.value for departure in program.record.proof.departures}


def test_a_rewritten_branch_is_compared_in_both_directions() -> None:
    program = fxonnx.export(Doubling(), (X,), dynamic_shapes=({0: "n"},))
    proof = program.record.proof
    assert not proof.is_plain
    assert kinds(program) == {"rewritten control flow"}
    assert any("test_proof.py" in departure.line and "if on" in departure.detail for departure in proof.departures)
    assert [run.inputs for run in proof.runs][:2] == ["example", "negated"]
    assert {"n = 1"} <= {run.inputs for run in proof.runs}
    assert {run.status for run in proof.runs} == {"equal"}
    assert proof.unexercised == ()
    assert "compared with the model:\n  example: equal" in str(proof)


def test_counts_of_loops_are_varied() -> None:
    program = fxonnx.export(Function(loop), (X, torch.tensor(3)))
    assert {"counts of 0", "counts of 1", "counts of 2"} <= {run.inputs for run in program.record.proof.runs}
    assert program.record.proof.unexercised == ()


def test_loops_that_do_not_end_are_not_run() -> None:
    # Multiplied by 2, neither 0 nor a negative number ever reaches 100.
    program = fxonnx.export(Function(while_positive), (X,))
    skipped = {run.inputs: run.message for run in program.record.proof.runs if run.status == "skipped"}
    assert skipped["negated"] == "a loop has more than 1000 iterations"
    assert program.record.proof.runs[0].status == "equal"


def test_what_no_input_reaches_is_an_assumption() -> None:
    program = fxonnx.export(Rare(), (X,))
    (missing,) = program.record.proof.unexercised
    assert missing in program.record.assumptions
    assert missing.kind is fxonnx.AssumptionKind.UNPROVED
    assert missing.answer == "the branch for true"
    assert "test_proof.py" in str(missing.line)
    assert str(missing).endswith("the branch for true (not compared with the model)")


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if bool(x.sum() > 0) else x


def transformed(x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda y: (y**3).sum())(x)


def constant(x: torch.Tensor) -> torch.Tensor:
    mask = torch.tensor([True, False])
    return x * 2 if mask.any() else x


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (transformed, "function transform"),
        (constant, "resolved guard"),
        (lambda x: scripted(x), "interpreted TorchScript"),
    ],
    ids=["transform", "constant", "script"],
)
def test_departures_are_recorded_by_kind(function: Callable[..., Any], kind: str) -> None:
    program = fxonnx.export(Function(function), (X,))
    assert kind in kinds(program)
    assert [run.status for run in program.record.proof.runs if run.inputs == "example"] == ["equal"]
    torch.testing.assert_close(program(X)[0], function(X))


def patched(monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.fx.Graph], None]) -> None:
    """Make every capture wrong: change the graph that torch.export returns."""
    original = torch.export.export

    def export(*args: Any, **kwargs: Any) -> Any:
        program = original(*args, **kwargs)
        for module in program.graph_module.modules():
            if isinstance(module, torch.fx.GraphModule):
                change(module.graph)
                module.recompile()
        return program

    monkeypatch.setattr(torch.export, "export", export)


def sub_one_becomes_two(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        if node.target is torch.ops.aten.sub.Tensor:
            node.args = (node.args[0], 2)


def test_a_wrong_branch_that_the_example_does_not_take_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, sub_one_becomes_two)
    message = (
        r"(?s)does not compute what the model computes, at inputs made of the example: negated:\n  output 0: 4 of 4 "
        r"elements differ.*; at \[.*\] -\d\.0, the model -\d\.0\nthe capture departs from torch.export at:\n"
        r"  rewritten control flow: if on a tensor's value \(.*test_proof.py:\d+ in forward\).*hint: .*clone\(\)"
    )
    with pytest.raises(fxonnx.CaptureError, match=message):
        fxonnx.export(Doubling(), (X,))


def appended(rows: list[torch.Tensor]) -> torch.Tensor:
    rows.append(rows[0] * 2)
    return torch.stack(rows)


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.function = torch.jit.script(appended)

    def forward(self, x: torch.Tensor) -> Any:
        rows = [x, x + 1]
        return self.function(rows), len(rows)


def test_a_wrong_form_of_a_script_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in an export, torch itself calls the Python function in place of the script.
    monkeypatch.setattr(modules, "_received", lambda argument, value: value)
    with pytest.raises(fxonnx.CaptureError, match="does not compute what the model computes, at the example"):
        fxonnx.export(Lists().eval(), (torch.rand(2, 3),))


def test_a_wrong_plain_capture_of_a_small_model_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, sub_one_becomes_two)
    message = r"(?s)does not compute what the model computes, at the example.*hint: during the capture, Python sees"
    with pytest.raises(fxonnx.CaptureError, match=message):
        fxonnx.export(Function(lambda x: x - 1), (X,))


class Updating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.copy_(x - 1)
        return x if bool((x.sum() > 0).item()) else x * 3


@pytest.mark.filterwarnings("ignore")
def test_mutated_buffers_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Updating()
    fxonnx.export(model, (X,), state="io")
    assert not model.total.any()
    patched(monkeypatch, sub_one_becomes_two)
    with pytest.raises(fxonnx.CaptureError, match=r"at the example:\n  buffer total: "):
        fxonnx.export(model, (X,), state="io")


def noise(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        x = x * 2
    return x - 1 + torch.rand(2)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x * 2
        return x + torch.rand(3).sum() * torch.randn(2)


def test_random_models_are_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    state = torch.random.get_rng_state()
    program = fxonnx.export(Noisy(), (X,))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert program.record.proof.runs[0].inputs == "example"
    patched(monkeypatch, sub_one_becomes_two)
    program = fxonnx.export(Function(noise), (X,))
    assert {run.message for run in program.record.proof.runs} == {"the results are random"}


def tied(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if x.sum() > 0:
        x = x * 2
    return (x / 7 * 7 - x).argsort(), x - 1


def quotient_becomes_product(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        if node.target is torch.ops.aten.div.Tensor:
            node.target, node.args = torch.ops.aten.mul.Tensor, (node.args[0], 1 / 7)


def test_orders_of_tied_scores_are_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.rand(64) + 0.1
    patched(monkeypatch, quotient_becomes_product)
    program = fxonnx.export(Function(tied), (scores,))
    example = program.record.proof.runs[0]
    assert (example.status, example.message.partition(":")[0]) == ("skipped", "unstable")
    # Scores that tie explain no other difference.
    patched(monkeypatch, sub_one_becomes_two)
    with pytest.raises(fxonnx.CaptureError, match="the captured program does not compute"):
        fxonnx.export(Function(tied), (scores,))


class TiedWeights(nn.Module):
    """The order of scores of equal weights: no change of the input, whole numbers, separates them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((64,), 0.1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.sum() > 0:
            x = x * 2
        return (x * 0 + self.weight).argsort(stable=True), x - 1


def order_is_reversed(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        if node.target is torch.ops.aten.argsort.stable:
            with graph.inserting_after(node):
                reverse = graph.call_function(torch.ops.aten.flip.default, (node, [0]))
            reverse.meta = dict(node.meta)
            node.replace_all_uses_with(reverse, delete_user_cb=lambda user, kept=reverse: user is not kept)


def test_orders_of_scores_that_tie_through_the_weights_are_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, order_is_reversed)
    x = torch.ones(64)
    program = fxonnx.export(TiedWeights(), (x,))
    example = program.record.proof.runs[0]
    assert (example.status, example.message.partition(":")[0]) == ("skipped", "unstable")
    patched(monkeypatch, sub_one_becomes_two)
    with pytest.raises(fxonnx.CaptureError, match="the captured program does not compute"):
        fxonnx.export(TiedWeights(), (x,))
    # Weights that do not tie determine the order.
    patched(monkeypatch, order_is_reversed)
    model = TiedWeights()
    nn.init.uniform_(model.weight)
    with pytest.raises(fxonnx.CaptureError, match="the captured program does not compute"):
        fxonnx.export(model, (x,))


class ForExport(nn.Module):
    """A model that returns something else while it is exported, which is what its author wants."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_exporting() else x - 1


def test_branches_for_exports_are_kept() -> None:
    program = fxonnx.export(ForExport(), (X,))
    torch.testing.assert_close(program(X)[0], X * 2)


def test_models_without_values_are_not_run() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), Doubling())
    program = fxonnx.export(model, (X,))
    assert program.record.proof.skipped == "the weights or inputs have no values"
    assert program.record.proof.runs == ()
    assert {one.kind for one in program.record.proof.unexercised} == {fxonnx.AssumptionKind.UNPROVED}
    assert "nothing: the weights" in str(program.record.proof)


def test_long_forwards_are_not_run() -> None:
    calls: list[None] = []

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 64, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_exporting():
                calls.append(None)
            y = self.layer(x)
            return y * 2 if y.sum() > 0 else y

    program = fxonnx.export(Large(), (torch.rand(1, 3, 448, 448),))
    assert program.record.proof.skipped == "a forward takes longer than the export"
    assert not calls


def test_sizes_at_which_a_forward_takes_longer_than_the_export_are_skipped() -> None:
    class Filtered(Doubling):
        def __init__(self) -> None:
            super().__init__()
            self.filters = nn.Sequential(nn.Conv2d(8, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.filters(super().forward(x))

    program = fxonnx.export(Filtered().eval(), (torch.rand(1, 8, 64, 64),), dynamic_shapes=({0: "n"},))
    status = {run.inputs: (run.status, run.message) for run in program.record.proof.runs}
    assert status["example"][0] == status["negated"][0] == status["n = 2"][0] == "equal"
    assert status["n = 17"] == ("skipped", "a forward takes longer than the export")


def test_plain_captures_have_no_record_in_the_file() -> None:
    program = fxonnx.export(nn.Linear(2, 2), (X,))
    assert program.record.proof.is_plain
    assert str(program.record.proof) == "the capture is that of plain torch.export"
    assert "pkg.fxonnx.proof" not in program.model.metadata_props


def test_the_record_is_in_the_file(tmp_path: Path) -> None:
    program = fxonnx.export(
        Doubling(),
        (X,),
        dynamic_shapes=({0: "n"},),
        diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path),
    )
    content = json.loads(program.model.metadata_props["pkg.fxonnx.proof"])
    assert content["departures"][0]["line"].startswith("tests/program/test_proof.py:")
    assert content["runs"][0] == {"inputs": "example", "status": "equal", "difference": "0.0"}
    program.save(tmp_path / "model.onnx")
    done = CliRunner().invoke(app, ["check", str(tmp_path / "model.onnx")])
    assert "departures from torch.export:\n  rewritten control flow: if on a tensor's value" in done.stdout
    assert "compared with the model:\n  example: equal" in done.stdout
    (page,) = tmp_path.glob("*.html")
    assert "compared with the model" in page.read_text()


def test_other_metadata_is_refused(tmp_path: Path) -> None:
    program = fxonnx.export(Doubling(), (X,))
    program.model.metadata_props["pkg.fxonnx.proof"] = '{"departures": 1}'
    program.save(tmp_path / "model.onnx")
    done = CliRunner().invoke(app, ["check", str(tmp_path / "model.onnx")])
    assert done.exit_code == 2
    assert "its metadata pkg.fxonnx.proof is not a record of fxonnx" in done.stderr


def doubling_example() -> tuple[Any, ...]:
    return Doubling(), (X,), {}, ({0: "n"},)


def test_the_command_verify_repeats_the_proof_from_the_file(tmp_path: Path) -> None:
    model, args, _, shapes = doubling_example()
    path = tmp_path / "model.onnx"
    fxonnx.export(model, args, path, dynamic_shapes=shapes)
    source = "tests.program.test_proof:doubling_example"
    done = CliRunner().invoke(app, ["verify", str(path), source])
    assert done.exit_code == 0, done.output
    for expected in (
        "departures from torch.export:",
        "at the example:",
        "at negated:",
        "at n = 1:",
        "at n = 7, negated:",
    ):
        assert expected in done.stdout
    other = CliRunner().invoke(app, ["verify", str(path), "tests.program.test_proof:tripling_example"])
    assert other.exit_code == 1
    assert "ONNX Runtime and eager torch disagree" in other.stderr


def tripling_example() -> tuple[Any, ...]:
    return Function(lambda x: x * 2 if x.sum() > 0 else x - 3), (X,)


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))
        return result


def compiled_graphs() -> int:
    """The number of graphs that TorchDynamo has compiled in this process."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_the_model_runs_without_compilation() -> None:
    """In eager mode, torch compiles the branches of cond for each kind of input; here once, by torch.export."""
    before = compiled_graphs()
    program = fxonnx.export(Branches().eval(), (X,), dynamic_shapes=({0: "n"},))
    for n in (2, 3, 5):
        program.verify((torch.rand(n, *X.shape[1:]),))
    assert compiled_graphs() == before + 1
    Branches()(X)
    assert compiled_graphs() == before + 2


def test_the_file_is_compared_if_torch_cannot_run_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel")

    def wrong(op: Any, self: Any, other: Any) -> Any:
        return op.Add(self, other)

    class Branching(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x.clone()

    monkeypatch.setattr("fxonnx._program.proof.runs.CapturedRunner.run", failing)
    example = (torch.ones(3) * 3,)
    program = fxonnx.export(Branching().eval(), example)
    assert "cannot run the captured program" in str(program.record.proof)
    with pytest.raises(fxonnx.VerificationError, match="ONNX Runtime and eager torch disagree"):
        fxonnx.export(Branching().eval(), example, custom_translation_table={torch.ops.aten.mul.Tensor: wrong})
