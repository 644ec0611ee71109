"""Values of weights that Python reads: constants of the file, which other weights must not change."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import fxonnx
from fxonnx import ArgumentError, ONNXProgram

from ..saved import run_from_file

Weights = Mapping[str, Any]
KEY = "pkg.fxonnx.weight_reads"


class Network(nn.Module):
    """Weights that its forward, a function, may read."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(2.0))
        self.gates = nn.Parameter(torch.tensor([1.0, -1.0]))
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.tied = self.gates
        self.register_buffer("count", torch.tensor(2))
        self.register_buffer("kept", torch.tensor([True, False, True, False]))
        self.register_buffer("hidden", torch.tensor(1.0), persistent=False)
        self.inner = nn.Linear(4, 4)
        self.held = [self.alpha, self.inner.weight]
        self.product = lambda x, weight=self.inner.weight: x @ weight.t()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x) * self.scale.sum()


def branch(self: Any, x: Tensor) -> Tensor:
    return x + 1 if self.alpha > 0 else x - 1


def truth(self: Any, x: Tensor) -> Tensor:
    return x + 1 if bool((self.gates > 0).any()) else x - 1


def number(self: Any, x: Tensor) -> Tensor:
    alpha = float(self.alpha)
    return x * alpha if alpha > 0 else x


def trips(self: Any, x: Tensor) -> Tensor:
    for _ in range(int(self.count)):
        x = self.inner(x)
    return x


def items(self: Any, x: Tensor) -> Tensor:
    first, second = self.gates.tolist()
    return x * first + second if first > second else x


def equal(self: Any, x: Tensor) -> Tensor:
    return x + 1 if torch.equal(self.gates, torch.tensor([1.0, -1.0])) else x * 2


def every(self: Any, x: Tensor) -> Tensor:
    return x + 1 if (self.gates == 0).all() else x * 2


def written(self: Any, x: Tensor) -> Tensor:
    values = torch.zeros(3)
    values[0] = self.alpha
    return x + 1 if values.sum() > 0 else x - 1


def selected(self: Any, x: Tensor) -> Tensor:
    y = x[:, self.kept]
    return y.sum(1, True) + x if y.shape[1] > 1 else x


def size(self: Any, x: Tensor) -> Tensor:
    return x + 1 if x.shape[0] > self.count else x - 1


def not_persistent(self: Any, x: Tensor) -> Tensor:
    return x + 1 if self.hidden.item() == 1 else x - 1


def held(self: Any, x: Tensor) -> Tensor:
    return x * float(self.held[0]) + self.product(x)


def looked_up(self: Any, x: Tensor) -> Tensor:
    return x + 1 if torch.arange(3.0).index_select(0, self.count.reshape(1)) > 0 else x - 1


def check(self: Any, x: Tensor) -> Tensor:
    if torch.isnan(self.scale).any():
        raise ValueError("NaN")
    return x * self.scale


def product(self: Any, x: Tensor) -> Tensor:
    return x + 1 if torch.tensor(x.shape[0]) * self.count >= 4 else x - 1


def conversion(self: Any, x: Tensor) -> Tensor:
    return x[:, : int(torch.ceil(torch.tensor(x.shape[0]) * self.alpha))].sum(1, True) + x


READS: tuple[tuple[Any, Weights, Weights, str], ...] = (
    (branch, {"alpha": 0.5}, {"alpha": -3.0}, "True at export, False"),
    (truth, {"gates": [5.0, 0.0]}, {"gates": [0.0, -3.0]}, "True at export, False"),
    (truth, {"tied": [5.0, 0.0]}, {"tied": [0.0, -3.0]}, "True at export, False"),
    (number, {"alpha": 2.0}, {"alpha": 3.0}, r"2\.0 at export, 3\.0"),
    (trips, {"count": 2}, {"count": 3}, "2 at export, 3"),
    (items, {"gates": [1.0, -1.0]}, {"gates": [1.0, -2.0]}, r"-1\.0 at export, -2\.0"),
    (equal, {"gates": [1.0, -1.0]}, {"gates": [1.0, -2.0]}, "True at export, False"),
    (every, {"gates": [7.0, 0.0]}, {"gates": [0.0, 0.0]}, "False at export, True"),
    (written, {"alpha": 0.5}, {"alpha": -0.5}, "True at export, False"),
    (selected, {"kept": [False, True, True, False]}, {"kept": [True] * 4}, r"\[\[2, 1\]\] at export, \[\[4, 1\]\]"),
    (not_persistent, {"hidden": 1.0}, {"hidden": 0.0}, r"1\.0 at export, 0\.0"),
    (held, {"alpha": 2.0, "inner.weight": torch.eye(4).tolist()}, {"alpha": 3.0}, r"2\.0 at export, 3\.0"),
    (looked_up, {"count": 1}, {"count": 9}, r"True at export, an error \(index out of range.*\)"),
    (check, {"scale": [9.0, 1.0, 2.0, 0.0]}, {"scale": [float("nan")] * 4}, "False at export, True"),
)


def exported(run: Any, **options: Any) -> tuple[nn.Module, ONNXProgram]:
    model = Network(run).eval()
    return model, fxonnx.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "batch"},), **options)


def tensors(model: nn.Module, values: Weights) -> dict[str, Tensor]:
    """Values in the dtypes of the weights."""
    own = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {name: torch.tensor(value, dtype=own[name].dtype) for name, value in values.items()}


@pytest.mark.parametrize(("run", "same", "other", "text"), READS)
def test_other_weights_are_refused_where_python_reads_another_value(
    run: Any, same: Weights, other: Weights, text: str, tmp_path: Path
) -> None:
    model, program = exported(run)
    name = next(iter(other))
    line = rf"Python read '{name}' during the capture, and the value is a constant.*\n  .*test_weights_read_by_python.py:\d+ in {run.__name__}: .* -> {text} with"
    refused = tensors(model, other)
    save_file(refused, tmp_path / "other.safetensors")
    before = io.BytesIO()
    program.save(before)
    with pytest.raises(ArgumentError, match=f"state_dict: {line}"):
        program.apply_weights({"inner.bias": torch.zeros(4), **refused})
    for weights in (refused, tmp_path / "other.safetensors"):
        with pytest.raises(ArgumentError, match=f"weights: {line}"):
            program.save(tmp_path / "m.onnx", weights=weights)
    after = io.BytesIO()
    program.save(after)
    assert before.getvalue() == after.getvalue()
    assert not (tmp_path / "m.onnx").exists()

    # The values that Python reads are the same, and other weights change freely.
    new = tensors(model, {"scale": [0.5, 1.0, 2.0, 8.0], **same}) | {"inner.bias": torch.ones(4)}
    program.save(tmp_path / "m.onnx", weights=new)
    program.apply_weights(new)
    own = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    with torch.no_grad():
        for key, tensor in new.items():
            own[key].copy_(tensor)
    for x in (torch.randn(3, 4), torch.randn(5, 4)):
        expected = model(x)
        torch.testing.assert_close(program(x)[0], expected.detach())
        session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
        torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), expected.detach())


def symbolic_size(self: Any, x: Tensor) -> Tensor:
    return x * (self.alpha * x.shape[0]) if x.sum() > 0 else x


def unread(self: Any, x: Tensor) -> Tensor:
    return torch.where(self.alpha > 0, x, -x)


def held_tensors(self: Any, x: Tensor) -> Tensor:
    return self.product(x * self.held[0]) + torch.stack([self.held[0], self.alpha]).sum() + self.held[1].sum()


def item_as_value(self: Any, x: Tensor) -> Tensor:
    first, second = self.gates.tolist()
    return x * first + second


@pytest.mark.parametrize("run", [symbolic_size, unread, held_tensors, item_as_value, conversion, size, product])
def test_weights_that_stay_values_of_the_graph_may_change(run: Any) -> None:
    model, program = exported(run)
    assert not program.record.capture.weight_reads.reads
    assert KEY not in program.model.metadata_props
    values = {"alpha": 0.5, "inner.weight": [[1.0] * 4] * 4, "gates": [0.0, 4.0], "scale": [0.5, 1.0, 2.0, 8.0]}
    new = tensors(model, {**values, "count": 4})
    program.apply_weights(new)
    model.load_state_dict({**model.state_dict(), "tied": new["gates"], **new})
    run_from_file(program)
    for x in (torch.randn(5, 4), torch.rand(2, 4)):
        torch.testing.assert_close(program(x)[0], model(x).detach())


class Trained(nn.Module):
    """Modules of torch whose own code may read their parameters and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4, padding_idx=0)
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.second = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.norm = nn.BatchNorm1d(4)
        self.rounded = torch.ao.quantization.FakeQuantize(
            torch.ao.quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=255
        )
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(self.second(self.first(self.table(ids))).transpose(1, 2)).transpose(1, 2)
        return self.rounded(self.attention(x, x, x, key_padding_mask=mask)[0])


def test_what_torch_reads_of_its_own_modules_refuses_no_weights() -> None:
    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = Trained()
        model(torch.randint(0, 8, (3, 5)), torch.zeros(3, 5, dtype=torch.bool))
        model.rounded.apply(torch.ao.quantization.disable_observer)
        return model.eval()

    given = torch.randint(0, 8, (3, 5)), torch.arange(5).expand(3, 5) > 3
    program = fxonnx.export(make(0), given)
    other = make(1)
    program.apply_weights(other.state_dict())
    torch.testing.assert_close(program(*given)[0], other(*given).detach(), atol=0.02, rtol=0)


def test_the_file_lists_what_was_read() -> None:
    def many(self: Any, x: Tensor) -> Tensor:
        table = torch.linspace(0, 1, 40) * self.alpha
        for index in range(len(table)):
            x = x + float(table[index]) if float(table[index]) >= 0 else x
        return branch(self, x)

    _, program = exported(many)
    file = io.BytesIO()
    program.save(file, metadata="none")
    (entry,) = [one.value for one in onnx.load_from_string(file.getvalue()).metadata_props if one.key == KEY]
    first, last = json.loads(entry)[0], json.loads(entry)[-1]
    assert first["weights"] == ["alpha"]
    assert len(first["sha256"]) == 64
    assert last["weights"] == ["alpha"]
    assert last["values"] == [True]
    assert last["line"].startswith("test_weights_read_by_python.py") or "/test_weights_read" in last["line"]


@pytest.mark.parametrize(("pattern", "name"), [("alpha", "alpha"), ("*", "alpha"), (["scale", "al*"], "alpha")])
def test_weights_that_python_reads_are_no_inputs(pattern: Any, name: str) -> None:
    text = rf"adapters: Python read '{name}' during the capture, and its value is a constant of the program:\n  .* in branch: .*"
    with pytest.raises(ArgumentError, match=text + "-> True\nhint: compute the result with operators of torch"):
        exported(branch, adapters=pattern)


def test_adapters_for_other_values_of_weights_that_python_reads_are_refused(tmp_path: Path) -> None:
    _, program = exported(branch, adapters=["scale"])
    state = {"scale": torch.ones(4), "alpha": torch.tensor(0.5)}
    program.save_adapter(tmp_path / "a.onnx_adapter", state)
    with pytest.raises(ArgumentError, match="weights: Python read 'alpha' during the capture"):
        program.save_adapter(tmp_path / "b.onnx_adapter", {**state, "alpha": torch.tensor(-0.5)})
    assert not (tmp_path / "b.onnx_adapter").exists()


@pytest.mark.parametrize(
    ("run", "values"), [(branch, {"alpha": -1.0}), (branch, {"alpha": 1.0}), (trips, {"count": 3}), (items, {})]
)
def test_weights_without_values_stay_values_of_the_graph(run: Any, values: Weights, tmp_path: Path) -> None:
    model = Network(run).eval()
    with torch.device("meta"):
        empty = Network(run).eval()
    new = {**model.state_dict(), **tensors(model, values)}
    if run is items:
        with pytest.raises(fxonnx.CaptureError, match="asks for the value of a tensor"):
            fxonnx.export(empty, (torch.randn(3, 4),))
        return
    fxonnx.export(empty, (torch.randn(3, 4),)).save(tmp_path / "m.onnx", weights=new)
    model.load_state_dict(new)
    x = torch.randn(3, 4)
    (computed,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(computed), model(x).detach())


def test_weights_of_another_shape_that_only_python_uses_are_refused() -> None:
    _, program = exported(branch)
    with pytest.raises(ArgumentError, match=r"state_dict: 'alpha' has the shape \[2\], expected \[\]\nhint: re-export"):
        program.apply_weights({"alpha": torch.ones(2)})


def test_a_model_that_is_trained_further_is_compared_with_what_was_read() -> None:
    model, program = exported(branch)
    with torch.no_grad():
        model.alpha.neg_()
    with pytest.raises(ArgumentError, match="Python read 'alpha' during the capture"):
        program.apply_weights(model.state_dict())
