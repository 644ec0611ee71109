"""Calls of torch.onnx.export with ``dynamo=False``, whose form is the TorchScript exporter's."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import fxonnx
from fxonnx import ArgumentError


def run(path: Any, feeds: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(found) for found in session.run(None, {name: x.numpy() for name, x in feeds.items()})]


def graph_inputs(path: Path) -> list[str]:
    return [value.name for value in onnxruntime.InferenceSession(path).get_inputs()]


class Ordered(nn.Module):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor, *, scale: torch.Tensor, **more: Any) -> torch.Tensor:
        return (ids - 2 * mask) * scale + sum(more.values())


INPUTS = {name: torch.randn(2, 3) for name in ("ids", "mask", "scale")}


@pytest.mark.parametrize(
    ("dynamo", "order", "names", "expected"),
    [
        # By name in both forms, whatever the order of the dict.
        (False, "scale mask ids", "ids mask scale", "ids mask scale"),
        (True, "scale mask ids", "ids mask scale", "ids mask scale"),
        (False, "ids mask scale", "mask scale ids", "mask scale ids"),
        (True, "mask ids scale", "ids", "ids mask scale"),
        (True, "ids scale mask", "ids mask s", "ids mask s"),
        # In the order of the signature, as TorchScript does.
        (False, "scale mask ids", "", "ids mask scale"),
        (False, "scale mask ids", "i m s", "i m s"),
        (False, "b scale a mask ids", "", "ids mask scale b a"),
        # In the order of the dict, as torch.export does.
        (True, "scale mask ids", "", "scale mask ids"),
        (True, "scale mask ids", "s m i", "s m i"),
    ],
)
@pytest.mark.parametrize("trailing", [False, True], ids=["kwargs", "trailing"])
def test_order_of_keyword_inputs(
    dynamo: bool, order: str, names: str, expected: str, trailing: bool, tmp_path: Path
) -> None:
    path, model = tmp_path / "m.onnx", Ordered().eval()
    given = {name: INPUTS.get(name, torch.full((2, 3), 7.0)) for name in order.split()}
    args, kwargs = ((given,), None) if trailing else ((), given)
    with fxonnx.installed():
        program = torch.onnx.export(model, args, path, kwargs=kwargs, input_names=names.split() or None, dynamo=dynamo)
    assert graph_inputs(path) == expected.split()
    values = {"i": "ids", "m": "mask", "s": "scale"}
    feeds = {name: given[values.get(name, name)] for name in expected.split()}
    torch.testing.assert_close(run(path, feeds)[0], model(**given))
    torch.testing.assert_close(program(**given)[0], model(**given))


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_replaced_forward_needs_fewer_inputs(dynamo: bool, tmp_path: Path) -> None:
    """As in optimum's export of a part of a model: the replacement has the signature of the original."""
    path, model = tmp_path / "m.onnx", Ordered().eval()
    original = model.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        return original(torch.ones(2, 3), *args, **kwargs)

    model.forward = forward
    given = {"scale": INPUTS["scale"], "mask": INPUTS["mask"]}
    names = ["mask", "scale"]
    with fxonnx.installed():
        program = torch.onnx.export(model, (given,), path, input_names=names, dynamo=dynamo)
    assert graph_inputs(path) == names
    torch.testing.assert_close(run(path, given)[0], forward(**given))
    torch.testing.assert_close(program(**given)[0], forward(**given))


class Cached(nn.Module):
    def forward(self, ids: torch.Tensor, past: Any, mask: torch.Tensor) -> torch.Tensor:
        return ids - 2 * past[0] + 3 * past[1] - 4 * mask


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("names", ["ids k v mask", "ids past.0 past.1 mask", "mask ids k v"])
def test_names_of_tensors_in_containers(dynamo: bool, names: str, tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", Cached().eval()
    ids, k, v, mask = (torch.randn(2, 3) for _ in range(4))
    given = {"mask": mask, "past": (k, v), "ids": ids}
    with fxonnx.installed():
        torch.onnx.export(model, (), path, kwargs=given, input_names=names.split(), dynamo=dynamo)
    assert graph_inputs(path) == names.split()
    feeds = {"ids": ids, "mask": mask, "k": k, "v": v, "past.0": k, "past.1": v}
    torch.testing.assert_close(run(path, {name: feeds[name] for name in names.split()})[0], model(**given))


def test_positional_inputs_are_named_in_order(tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", Cached().eval()
    ids, k, v, mask = (torch.randn(2, 3) for _ in range(4))
    with fxonnx.installed():
        torch.onnx.export(model, (ids, (k, v), mask), path, input_names=["mask", "k", "v", "ids"], dynamo=False)
    feeds = {"mask": ids, "k": k, "v": v, "ids": mask}
    torch.testing.assert_close(run(path, feeds)[0], model(ids, (k, v), mask))


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("total", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor, past: list[torch.Tensor]) -> Any:
        self.total += x
        return self.layer(x), x, [one + x for one in past], x.shape[0]


@pytest.mark.filterwarnings("ignore:forward writes to")
@pytest.mark.parametrize("state", ["warn", "outputs"])
def test_graph_inputs_and_outputs_have_no_metadata(state: Any, tmp_path: Path) -> None:
    """Tools that merge models compare their inputs and outputs."""
    path, x = tmp_path / "m.onnx", torch.randn(2, 3)
    args = (x, [x, x])
    program = fxonnx.torch_onnx_export(Steps().eval(), args, path, dynamo=False, state=state, output_names=["y"])
    graph = onnx.load(path).graph
    assert not any(value.metadata_props for value in (*graph.input, *graph.output))
    assert all(node.metadata_props for node in graph.node)
    assert any(value.metadata_props for value in (*graph.initializer, *graph.value_info))
    assert program.verify()
    expected = fxonnx.export(Steps().eval(), args, state=state, output_names=["y"]).model_proto.graph
    assert all(value.metadata_props for value in (*expected.input, *expected.output))


def declared(values: Any) -> dict[str, list[Any]]:
    return {value.name: value.shape for value in values}


class Apart(nn.Module):
    """Sizes with one name that nothing requires to be equal: an encoder's tokens and its longer mask."""

    def forward(self, mask: torch.Tensor, hidden: torch.Tensor, other: torch.Tensor) -> Any:
        return mask.cumsum(1), hidden * 2, hidden + other, torch.cat([hidden, hidden], 1)


@pytest.mark.parametrize("lengths", [(4, 4, 4), (4, 6, 6)], ids=["agree", "differ"])
def test_equal_names_do_not_join_dims(lengths: tuple[int, int, int], tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", Apart().eval()
    axes = {name: {0: "batch", 1: "s"} for name in ("mask", "hidden", "other", "a", "b", "c", "d")}
    inputs = tuple(torch.randn(2, length) for length in lengths)
    with fxonnx.installed(), warnings.catch_warnings():
        warnings.simplefilter("error")
        program = torch.onnx.export(
            *(model, inputs, path),
            input_names=["mask", "hidden", "other"],
            output_names=["a", "b", "c", "d"],
            dynamic_axes=axes,
            dynamo=False,
        )
    session = onnxruntime.InferenceSession(path)
    # Joined by the guard of the addition only.
    dims = {"mask": ["batch", "s"], "hidden": ["batch_1", "s_1"], "other": ["batch_1", "s_1"]}
    assert declared(session.get_inputs()) == dims
    # Callers look for the names that they asked for.
    assert declared(session.get_outputs()) == {name: ["batch", "s"] for name in "abcd"}
    assert json.loads(session.get_modelmeta().custom_metadata_map["pkg.fxonnx.output_dims"]) == {
        "b": {"0": "batch_1", "1": "s_1"},
        "c": {"0": "batch_1", "1": "s_1"},
        "d": {"0": "batch_1", "1": "2*s_1"},
    }
    assert not program.record.constraints
    mask, hidden, other = torch.randn(3, 60), torch.randn(5, 15), torch.randn(5, 15)
    feeds = {"mask": mask, "hidden": hidden, "other": other}
    for actual, expected in zip(run(path, feeds), model(**feeds), strict=True):
        torch.testing.assert_close(actual, expected)
    assert program.verify((mask, hidden, other))
    assert program.verify(sizes="auto")
    with pytest.raises(ArgumentError, match="other: the size of other axis 1 is s_1"):
        program(mask, hidden, other[:, :4])
    program.rename_axes({"s_1": "tokens"})
    assert json.loads(program.model.metadata_props["pkg.fxonnx.output_dims"])["d"] == {"0": "batch_1", "1": "2*tokens"}


def test_a_requested_output_name_of_a_computed_size(tmp_path: Path) -> None:
    """Half of the size, up to the multiple of two; a name that is not asked for remains an expression."""

    class Sampled(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            down = x[:, ::2]
            return torch.cat([down, down], 1), torch.cat([x, x], 1), x[:, 1:], x[x > 0]

    path, model = tmp_path / "m.onnx", Sampled().eval()
    axes = {"x": {0: "batch", 1: "height"}, "up": {0: "b", 1: "height"}, "twice": {1: "double"}, "found": [0]}
    names = ["up", "twice", "rest", "found"]
    given = {"input_names": ["x"], "output_names": names, "dynamic_axes": axes}
    with fxonnx.installed():
        torch.onnx.export(model, (torch.randn(2, 8),), path, dynamo=False, **given)
    session = onnxruntime.InferenceSession(path)
    assert declared(session.get_inputs()) == {"x": ["batch", "height"]}
    assert declared(session.get_outputs()) == {
        "up": ["b", "height"],
        "twice": ["batch", "double"],
        "rest": ["batch", "height - 1"],
        "found": ["found_dynamic_axes_1"],
    }
    x = torch.randn(3, 7)
    for actual, expected in zip(run(path, {"x": x}), model(x), strict=True):
        torch.testing.assert_close(actual, expected)
    program = fxonnx.torch_onnx_export(model, (torch.randn(2, 8),), **given)
    assert str(program.model.graph.outputs[0].shape) != "[b,height]"


class Unified(nn.Module):
    """Requires equal sizes of the axes 0, and one size of the axis 2 of ``x``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + y.sum(1)[:, None]


def test_unified_dims_are_not_a_change_of_shape(tmp_path: Path) -> None:
    """A static dim that the caller declares dynamic becomes static, also where other dims become equal."""
    path, model = tmp_path / "m.onnx", Unified().eval()
    inputs = {"x": torch.randn(2, 5, 4), "y": torch.randn(2, 6, 3)}
    axes = {"x": {0: "batch", 1: "s", 2: "size"}, "y": {0: "batch", 1: "s"}}
    with fxonnx.installed():
        torch.onnx.export(
            *(model, (inputs,), path), input_names=["x", "y"], output_names=["z"], dynamic_axes=axes, dynamo=False
        )
    assert declared(onnxruntime.InferenceSession(path).get_inputs()) == {
        "x": ["batch", "s", 4],
        "y": ["batch", "s_1", 3],
    }
    others = {"x": torch.randn(3, 7, 4), "y": torch.randn(3, 2, 3)}
    torch.testing.assert_close(run(path, others)[0], model(**others))


class TwoMasks(nn.Module):
    def forward(
        self, attention_mask: torch.Tensor, decoder_ids: torch.Tensor, decoder_attention_mask: torch.Tensor
    ) -> torch.Tensor:
        return decoder_ids * decoder_attention_mask + attention_mask.sum(1, keepdim=True)


def test_a_label_that_is_the_name_of_another_parameter(tmp_path: Path) -> None:
    """As in optimum's export of Pix2Struct: names are in the order of the signature."""
    path, model = tmp_path / "m.onnx", TwoMasks().eval()
    given = {
        "decoder_attention_mask": torch.randn(2, 3),
        "attention_mask": torch.randn(2, 5),
        "decoder_ids": torch.randn(2, 3),
    }
    labels = {
        "encoder_attention_mask": "attention_mask",
        "input_ids": "decoder_ids",
        "attention_mask": "decoder_attention_mask",
    }
    axes = {"encoder_attention_mask": {1: "source"}, "attention_mask": {1: "length"}, "input_ids": {1: "length"}}
    with fxonnx.installed():
        torch.onnx.export(model, (given,), path, input_names=[*labels], dynamic_axes=axes, dynamo=False)
    assert graph_inputs(path) == [*labels]
    other = {name: torch.randn(2, 7 if name == "attention_mask" else 4) for name in given}
    feeds = {label: other[name] for label, name in labels.items()}
    torch.testing.assert_close(run(path, feeds)[0], model(**other))


class WithOptions(nn.Module):
    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 2.0, both: bool | None = None
    ) -> tuple[torch.Tensor, ...]:
        x = scale * ids if mask is None else scale * ids * mask
        return (x, x - 1) if both else (x,)


@pytest.mark.parametrize("positional", [0, 1])
def test_a_replaced_forward_gets_the_defaults_of_the_original(positional: int, tmp_path: Path) -> None:
    """As in optimum's export of Gemma 3: the replacement sets an option only if it is among its arguments."""
    path, model = tmp_path / "m.onnx", WithOptions().eval()
    original, seen = model.forward, list[set[str]]()

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        seen.append({*kwargs})
        if "both" in kwargs:
            kwargs["both"] = True
        return original(*args, **kwargs)

    model.forward = forward
    ids = torch.randn(2, 3)
    args = (ids, {}) if positional else ({"ids": ids},)
    axes = {"ids": {0: "rows"}}
    with fxonnx.installed():
        program = torch.onnx.export(
            model, args, path, input_names=["ids"], output_names=["x", "y"], dynamic_axes=axes, dynamo=False
        )
    assert all({"mask", "both"} <= names for names in seen)
    other = torch.randn(5, 3)
    expected = original(other, both=True)
    torch.testing.assert_close(run(path, {"ids": other}), list(expected))
    torch.testing.assert_close(list(program(other)), list(expected))
    seen.clear()
    with fxonnx.installed():
        torch.onnx.export(model, args, tmp_path / "one.onnx")
    assert not any("both" in names for names in seen)
    torch.testing.assert_close(run(tmp_path / "one.onnx", {"ids": ids}), list(original(ids)))
