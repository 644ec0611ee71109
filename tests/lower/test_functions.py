"""Repeated modules as ONNX functions: ``export(functions="repeated")``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import fxonnx
from fxonnx import ArgumentError, ONNXProgram

from .repeated_models import (
    DOMAIN,
    IDS,
    MODELS,
    OTHER_ROWS,
    ROWS,
    Counting,
    X,
    calls_of,
    dynamic,
    encoder,
    llama,
    made,
    node_count,
    saved,
    without_weights,
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_repeated_modules(name: str) -> None:
    model, args, others, calls = made(name)
    flat, program = (
        # Names only: TorchDynamo numbers the functions in the stack traces of torch.cond throughout a process.
        fxonnx.export(
            model,
            args,
            dynamic_shapes=dynamic(args, others),
            options=fxonnx.ExportOptions(functions=functions, metadata="names"),
        )  # type: ignore[arg-type]
        for functions in ("none", "repeated")
    )
    assert not flat.model.functions
    assert calls_of(program) == calls
    onnx.checker.check_model(program.model_proto, full_check=True)
    for inputs in (args, others or args):
        expected = flat(*inputs)
        for one, two in zip(program(*inputs), expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
        program.verify(inputs)
    assert program.weights == flat.weights
    assert saved(program, inline=True) == saved(flat)
    if calls:
        assert node_count(program) < node_count(flat) + 20
        assert without_weights(program) < without_weights(flat)


@pytest.mark.parametrize("opset", [15, 17, 23])
@pytest.mark.parametrize("name", ["encoder", "llama", "branches"])
@pytest.mark.filterwarnings("ignore")
def test_opsets(name: str, opset: int) -> None:
    model, args, others, calls = made(name)
    program = fxonnx.export(
        model,
        args,
        dynamic_shapes=dynamic(args, others),
        options=fxonnx.ExportOptions(functions="repeated"),
        opset_version=opset,
    )
    assert calls_of(program) == calls
    assert all(function.opset_imports[""] == opset for function in program.model.functions.values())
    onnx.checker.check_model(program.model_proto, full_check=True)
    program.verify(others)


@pytest.mark.filterwarnings("ignore")
def test_half_precision() -> None:
    model = llama().half().eval()
    program = fxonnx.export(model, (IDS,), options=fxonnx.ExportOptions(functions="repeated"))
    assert calls_of(program) == {"LlamaDecoderLayer": 4}
    program.verify()


def test_a_fifth_of_the_nodes_and_of_the_file() -> None:
    model = encoder(12).eval()
    flat = fxonnx.export(model, (X,), dynamic_shapes=({0: "batch", 1: "time"},))
    program = fxonnx.export(
        model, (X,), dynamic_shapes=({0: "batch", 1: "time"},), options=fxonnx.ExportOptions(functions="repeated")
    )
    assert calls_of(program) == {"TransformerEncoderLayer": 12}
    assert len(program.model.functions) == 1
    assert node_count(program) * 5 < node_count(flat)
    assert without_weights(program) * 5 < without_weights(flat)
    assert len(program.model_proto.SerializeToString()) < len(flat.model_proto.SerializeToString())


def test_names_and_metadata() -> None:
    program = fxonnx.export(encoder(3).eval(), (X,), options=fxonnx.ExportOptions(functions="repeated"))
    (function,) = program.model.functions.values()
    assert (function.domain, function.name) == (DOMAIN, "TransformerEncoderLayer")
    assert program.model.opset_imports[DOMAIN] == 1
    inputs = [value.name for value in function.inputs]
    assert inputs[:2] == ["src", "self_attn.in_proj_weight::transposed"]
    calls = list(program.model.graph)
    assert [call.inputs[1].name for call in calls if call.inputs[1] is not None] == [
        f"layers.{index}.self_attn.in_proj_weight::transposed" for index in range(3)
    ]
    metadata = calls[1].metadata_props
    assert metadata["pkg.torch.onnx.name_scopes"].startswith("['', 'layers.1', ")
    assert metadata["pkg.torch.onnx.class_hierarchy"].endswith(", 'fxonnx.repeated::TransformerEncoderLayer']")
    assert metadata["pkg.torch.onnx.stack_trace"].splitlines()[0].endswith("in forward")
    assert program.model.graph.outputs[0].name in [value.name for value in calls[2].outputs]
    plain = fxonnx.export(encoder(3).eval(), (X,), options=fxonnx.ExportOptions(functions="repeated", metadata="none"))
    assert not next(iter(plain.model.graph)).metadata_props


def test_dims_are_known_where_all_calls_agree() -> None:
    class Cached(nn.Module):
        class Layer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                past = torch.cat([past, self.linear(x).relu()])
                return x + past.sum(0).tanh(), past

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(self.Layer() for _ in range(3))

        def forward(self, x: torch.Tensor, pasts: list[torch.Tensor]) -> Any:
            present = []
            for layer, past in zip(self.layers, pasts, strict=True):
                x, new = layer(x, past)
                present.append(new)
            return x, present

    pasts = [torch.ones(size, 4) for size in (2, 3, 4)]
    sizes = ({0: "n"}, [{0: f"past_{index}"} for index in range(3)])
    program = fxonnx.export(
        Cached().eval(), (ROWS, pasts), dynamic_shapes=sizes, options=fxonnx.ExportOptions(functions="repeated")
    )
    assert calls_of(program) == {"Layer": 3}
    (function,) = program.model.functions.values()
    shapes = {value.name: value.shape for value in function.inputs}
    assert [str(dim) for dim in shapes["x"] or ()] == ["n", "4"]
    assert str((shapes["pasts_0"] or [0])[0]) in ("None", "?")
    program.verify((OTHER_ROWS, [torch.ones(size, 4) for size in (5, 1, 7)]))
    program.rename_axes({"n": "rows"})
    assert [str(dim) for dim in shapes["x"] or ()] == ["rows", "4"]
    assert [str(dim) for dim in program.model.graph.inputs[0].shape or ()] == ["rows", "4"]


def test_weights_can_be_replaced() -> None:
    model, other = encoder(3).eval(), encoder(3).eval()
    torch.manual_seed(1)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    program = fxonnx.export(model, (X,), options=fxonnx.ExportOptions(functions="repeated"))
    program.apply_weights(other.state_dict())
    torch.testing.assert_close(program(X)[0], other(X), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("external_data", [False, True, "safetensors"])
def test_saved_files(external_data: Any, tmp_path: Path) -> None:
    model = encoder(3).eval()
    program = fxonnx.export(model, (X,), options=fxonnx.ExportOptions(functions="repeated"))
    path = tmp_path / "model.onnx"
    program.save(path, external_data=external_data)
    onnx.checker.check_model(path, full_check=True)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"src": X.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(X), rtol=1e-5, atol=1e-5)


def test_the_flat_form_has_the_changes_of_the_program(tmp_path: Path) -> None:
    torch.manual_seed(2)
    weights = encoder(3).state_dict()
    programs = [
        fxonnx.export(
            encoder(3).eval(),
            (X,),
            dynamic_shapes=({0: "batch", 1: "time"},),
            options=fxonnx.ExportOptions(functions=functions),
        )  # type: ignore[arg-type]
        for functions in ("none", "repeated")
    ]
    for program in programs:
        program.apply_weights(weights)
        program.rename_axes({"time": "steps", "batch": "n"})
    flat, program = programs
    assert saved(program, inline=True) == saved(flat)
    assert saved(program) == saved(program)
    paths = [tmp_path / "one.onnx", tmp_path / "two.onnx"]
    flat.save(paths[0], external_data=True)
    program.save(paths[1], external_data=True, inline=True)
    assert paths[0].with_name("one.onnx.data").read_bytes() == paths[1].with_name("two.onnx.data").read_bytes()


def test_files_with_references(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(encoder(3).state_dict(), tmp_path / "weights.safetensors")
    program = fxonnx.export(encoder(3).eval(), (X,), options=fxonnx.ExportOptions(functions="repeated"))
    for inline in (False, True):
        path = tmp_path / f"{inline}.onnx"
        program.save(path, weights=tmp_path / "weights.safetensors", external_data=fxonnx.REFERENCE, inline=inline)
        onnx.checker.check_model(path, full_check=True)
        assert bool(onnx.load(path, load_external_data=False).functions) != inline
    one, two = fxonnx.save_all({"flat": fxonnx.export(encoder(3).eval(), (X,)), "calls": program}, tmp_path)[:2]
    assert [len(onnx.load(path, load_external_data=False).functions) for path in (one, two)] == [0, 1]


def test_nodes_added_after_the_export() -> None:
    program = fxonnx.export(encoder(3).eval(), (X,), options=fxonnx.ExportOptions(functions="repeated"))
    graph = program.model.graph
    (old,) = graph.outputs
    node = ir.node("Neg", [old])
    graph.append(node)
    node.outputs[0].name = "negative"
    node.outputs[0].type, node.outputs[0].shape = old.type, old.shape
    graph.outputs.append(node.outputs[0])
    session = onnxruntime.InferenceSession(saved(program, inline=True))
    positive, negative = session.run(None, {"src": X.numpy()})
    assert (positive == -negative).all()
    assert not onnx.load_from_string(saved(program, inline=True)).functions


@pytest.mark.parametrize(
    "options",
    [
        {"compat": "torchscript"},
        {"numerics": "exact"},
        {"target": "onnxruntime"},
        {"metadata": "none"},
        {"optimize": False},
        {"do_constant_folding": False},
        {"operator_export_type": torch.onnx.OperatorExportTypes.ONNX_ATEN_FALLBACK},
    ],
    ids=lambda options: "-".join(options),
)
def test_other_options(options: dict[str, Any]) -> None:
    model = encoder(3).eval()
    flat = fxonnx.torch_onnx_export(model, (X,), **options)
    program = fxonnx.torch_onnx_export(model, (X,), functions="repeated", **options)
    assert calls_of(program) == {"TransformerEncoderLayer": 3}
    onnx.checker.check_model(program.model_proto, full_check=True)
    program.verify()
    assert saved(program, inline=True) == saved(flat)


def test_operators_of_a_custom_domain() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu().erf()

    def erf(op: Any, self: Any) -> Any:
        return op.verbatim("Gelu", [self], {}, [self.dtype], domain="com.microsoft")[0]

    program = fxonnx.export(
        nn.Sequential(Layer(), Layer(), Layer()).eval(),
        (ROWS,),
        options=fxonnx.ExportOptions(functions="repeated"),
        custom_translation_table={torch.ops.aten.erf.default: erf},
    )
    (function,) = program.model.functions.values()
    assert function.opset_imports == {"": 20, "com.microsoft": 1}
    assert program(ROWS)[0].shape == (3, 4)


def test_the_drop_in() -> None:
    with fxonnx.installed():
        program = torch.onnx.export(encoder(3).eval(), (X,), dynamo=True, functions="repeated")  # type: ignore[call-arg]
    assert isinstance(program, ONNXProgram)
    assert calls_of(program) == {"TransformerEncoderLayer": 3}


def test_optimized_sessions(tmp_path: Path) -> None:
    """ONNX Runtime inlines functions and then applies the same optimizations."""
    counts = []
    for functions in ("none", "repeated"):
        program = fxonnx.export(made("bert")[0], (IDS,), options=fxonnx.ExportOptions(functions=functions))  # type: ignore[arg-type]
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(saved(program), options)
        counts.append(Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node))
    assert counts[0] == counts[1]


def test_state() -> None:
    program = fxonnx.export(Counting().eval(), (ROWS,), options=fxonnx.ExportOptions(functions="repeated"), state="io")
    assert calls_of(program) == {"Layer": 3}
    torch.manual_seed(0)
    model = Counting().eval()
    program.apply_weights(model.state_dict())
    session = program.stateful_session()
    for rows in (ROWS, ROWS + 1):
        torch.testing.assert_close(session(rows)[0], model(rows))


def test_downstream(tmp_path: Path) -> None:
    program = fxonnx.export(
        encoder(3).eval(),
        (X,),
        options=fxonnx.ExportOptions(functions="repeated"),
        diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path),
    )
    (page,) = tmp_path.glob("*.md")
    assert "| fxonnx.repeated::TransformerEncoderLayer | 40 | 3 |" in page.read_text()
    assert "1 functions" in repr(program)
    assert not [finding for finding in fxonnx.check(program.model, "onnxruntime") if finding.severity == "fails"]
    torch.testing.assert_close(program.call_reference(X)[0], program(X)[0], rtol=1e-4, atol=1e-5)
    name = str(next(iter(program.model.graph)).outputs[0].name)
    assert program.compute_values([name], (X,))[0].shape == X.shape
    program.optimize()
    program.verify()


def test_printed_graph(capsys: pytest.CaptureFixture[str]) -> None:
    fxonnx.export(
        encoder(3).eval(),
        (X,),
        options=fxonnx.ExportOptions(functions="repeated"),
        diagnostics=fxonnx.Diagnostics(verbose=True),
    )
    assert "function fxonnx.repeated::TransformerEncoderLayer (" in capsys.readouterr().out


def test_older_opsets() -> None:
    with pytest.raises(ArgumentError, match=r"functions: functions require IR version 8(?s:.*)opset_version=15"):
        fxonnx.export(encoder(3).eval(), (X,), options=fxonnx.ExportOptions(functions="repeated"), opset_version=14)
    program = fxonnx.export(
        encoder(3).eval(), (X,), options=fxonnx.ExportOptions(functions="repeated", ir_version=8), opset_version=14
    )
    program.verify()


def test_unknown_choice() -> None:
    with pytest.raises(ArgumentError, match=r"functions: expected one of 'none', 'regions', 'repeated', got"):
        fxonnx.export(encoder(3).eval(), (X,), options=fxonnx.ExportOptions(functions="repeat"))  # type: ignore[arg-type]
