"""Options of torch.onnx.export: each has its effect or is rejected with a reason."""

from __future__ import annotations

import inspect
import math
import re
import threading
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch.onnx import OperatorExportTypes, TrainingMode

import fxonnx
from fxonnx import ArgumentError, UnsupportedOperatorError
from fxonnx._request import LegacyOptions, Request

LIBRARY = torch.library.Library("fxonnx_options", "DEF")
LIBRARY.define(
    "scaled(Tensor x, Tensor? bias, float scale, int[] axes, str mode='a', *, ScalarType? dtype=None) -> Tensor"
)
LIBRARY.impl("scaled", lambda x, bias, scale, axes, mode="a", *, dtype=None: x * scale, "CompositeExplicitAutograd")
LIBRARY.define("halves(Tensor x) -> (Tensor, Tensor)")
LIBRARY.impl("halves", lambda x: (x[:2].clone(), x[2:].clone()), "CompositeExplicitAutograd")


class Custom(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        y = torch.ops.fxonnx_options.scaled(x, None, 2.0, [0, 1], dtype=torch.float32)
        return torch.ops.fxonnx_options.halves(y.relu())


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.ReLU())
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean(2).transpose(1, 2))


X = torch.randn(2, 2, 6, 5)


def operators(program: fxonnx.ONNXProgram) -> list[str]:
    return [f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in program.model.graph]


def test_the_drop_in_has_all_parameters_of_torch_onnx_export() -> None:
    ours = inspect.signature(fxonnx.torch_onnx_export).parameters
    theirs = inspect.signature(torch.onnx.export).parameters
    assert [name for name in theirs if name not in ours] == []
    assert list(ours)[:3] == list(theirs)[:3]
    # Older versions accept some by position as well.
    assert all(ours[name].kind in (theirs[name].kind, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in theirs)


def test_export_and_its_program_are_small() -> None:
    assert len(inspect.signature(fxonnx.export).parameters) <= 24
    program = fxonnx.export(nn.ReLU().eval(), (X,))
    assert len([name for name, _ in inspect.getmembers(program) if not name.startswith("_")]) <= 20


def test_all_members_of_its_program_exist() -> None:
    members = [name for name in dir(torch.onnx.ONNXProgram) if not name.startswith("_")]
    program = fxonnx.export(nn.ReLU().eval(), (X,))
    assert {*members, "model", "exported_program"} <= {*dir(program)}


def test_every_keyword_of_the_drop_in_has_one_place() -> None:
    """Those that ``export`` does not have are rejected with the place that has them."""
    direct = inspect.signature(fxonnx.export).parameters.keys()
    options, diagnostics = ({field.name for field in fields(one)} for one in (fxonnx.ExportOptions, fxonnx.Diagnostics))
    legacy = inspect.signature(fxonnx.torch_onnx_export).parameters.keys() - direct - diagnostics - {"further"}
    assert not direct & (options | diagnostics | legacy)
    assert not options & diagnostics
    places = [
        (options, r"pass it as options=fxonnx\.ExportOptions\({}=\.\.\.\)$"),
        (diagnostics, r"pass it as diagnostics=fxonnx\.Diagnostics\({}=\.\.\.\)$"),
        (legacy, r"fxonnx\.torch_onnx_export takes it, and torch\.onnx\.export after fxonnx\.install\(\)$"),
    ]
    for names, place in places:
        for name in names:
            with pytest.raises(TypeError, match=rf"^export\(\) got the keyword '{name}': {place.format(name)}"):
                fxonnx.export(nn.ReLU().eval(), (X,), **{name: None})


def test_keywords_of_the_drop_in_reach_their_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages: list[str] = []
    program = fxonnx.torch_onnx_export(
        nn.ReLU().eval(),
        (X,),
        metadata="none",
        options=fxonnx.ExportOptions(numerics="exact", metadata="names"),
        report=True,
        on_stage=stages.append,
        diagnostics=fxonnx.Diagnostics(profile=True, artifacts_dir=tmp_path),
        state="error",
    )
    assert (program.record.options.numerics, program.record.options.metadata) == ("exact", "none")
    assert program.record.options.state == "error"
    assert stages == ["capture", "prepare", "lower", "prove"]
    assert capsys.readouterr().out.startswith("capture")
    assert {path.suffix for path in tmp_path.iterdir()} == {".html", ".md"}


@pytest.mark.parametrize("export", [fxonnx.export, fxonnx.torch_onnx_export], ids=lambda function: function.__name__)
def test_records_of_options_are_checked(export: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"options: expected an fxonnx\.ExportOptions, got \{'numerics': 'exact'\}\nhint: write"
    ):
        export(nn.ReLU().eval(), (X,), options={"numerics": "exact"})
    with pytest.raises(
        ArgumentError, match=r"diagnostics: expected an fxonnx\.Diagnostics or a bool, got 'report'\nhint"
    ):
        export(nn.ReLU().eval(), (X,), diagnostics="report")


def test_diagnostics_true_is_a_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    fxonnx.export(nn.ReLU().eval(), (X,), diagnostics=True)
    assert {path.suffix for path in tmp_path.iterdir()} == {".html", ".md"}


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("run", "program(*args, **kwargs)"),
        ("check", "fxonnx.check(program.model)"),
    ],
)
def test_names_that_people_look_for(name: str, place: str) -> None:
    program = fxonnx.export(nn.Linear(3, 2).eval(), (X[0, 0, :4, :3],))
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; it is {re.escape(place)}$"):
        getattr(program, name)
    with pytest.raises(AttributeError, match=r"'ONNXProgram' object has no attribute 'exmaple_inputs'$"):
        _ = program.exmaple_inputs


@pytest.mark.parametrize("dynamo", [True, False])
def test_dynamo_true_and_false(dynamo: bool) -> None:
    assert operators(fxonnx.torch_onnx_export(nn.ReLU().eval(), (X,), dynamo=dynamo)) == ["Relu"]


def test_verbose_prints_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    fxonnx.export(Network().eval(), (X,), dynamic_shapes=({0: "batch"},), diagnostics=fxonnx.Diagnostics(verbose=True))
    text = capsys.readouterr().out
    assert text.startswith("graph main_graph (\n  %x : FLOAT[batch, 2, 6, 5]\n")
    assert "  %head.bias : FLOAT[2]  # initializer\n" in text
    assert "Conv[" in text
    assert ", scope: layers.0  # test_options.py:" in text
    assert "  return %linear : FLOAT[batch, 3, 2]\n}\n" in text
    fxonnx.export(nn.ReLU().eval(), (X,))
    assert capsys.readouterr().out == ""


def test_verbose_prints_subgraphs(capsys: pytest.CaptureFixture[str]) -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cumprod(x, 0)

    fxonnx.export(Branch().eval(), (torch.rand(3, 2),), diagnostics=fxonnx.Diagnostics(verbose=True))
    assert "    body (" in capsys.readouterr().out


def test_profile_prints_the_stages(capsys: pytest.CaptureFixture[str]) -> None:
    fxonnx.export(nn.ReLU().eval(), (X,), diagnostics=fxonnx.Diagnostics(profile=True))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["capture", "prepare", "lower", "prove", "total"]
    assert all(line.endswith(" s") for line in lines)


def test_reports(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    fxonnx.export(
        Network().eval(),
        (X,),
        dynamic_shapes=({0: "batch"},),
        options=fxonnx.ExportOptions(numerics="exact"),
        diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=directory),
    )
    (page,) = directory.glob("onnx_export_*_success.md")
    text = page.read_text()
    for part in (
        "The export succeeded.",
        ", exact numerics, ",
        "| capture | ",
        "| input | x | FLOAT[batch, 2, 6, 5] |",
        "| Conv | 1 |",
        "| rms_norm | 0 |",
        "class GraphModule",
    ):
        assert part in text
    with pytest.raises(UnsupportedOperatorError, match=r"fxonnx_options\.scaled(?s:.*)\nreport: .*_error\.html$"):
        fxonnx.export(
            Custom().eval(), (torch.rand(4, 3),), diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=directory)
        )
    (page,) = directory.glob("onnx_export_*_error.md")
    text = page.read_text()
    for part in (
        "The export failed.",
        "FX004 UnsupportedOperatorError",
        "fxonnx_options.scaled",
        "Traceback",
        "| lower | ",
    ):
        assert part in text
    (tmp_path / "file").touch()
    with pytest.raises(fxonnx.SaveError, match=r"artifacts_dir .*file cannot be created"):
        fxonnx.export(
            nn.ReLU().eval(), (X,), diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path / "file")
        )


def test_the_captured_program_is_saved(tmp_path: Path) -> None:
    fxonnx.export(
        nn.ReLU().eval(), (X,), diagnostics=fxonnx.Diagnostics(dump_exported_program=True, artifacts_dir=tmp_path)
    )
    (path,) = tmp_path.glob("onnx_export_*.pt2")
    assert torch.equal(torch.export.load(path).module()(X), X.relu())


def test_without_optimization() -> None:
    model = Network().eval()
    program = fxonnx.export(model, (X,))
    assert "BatchNormalization" not in operators(program)
    plain = fxonnx.export(model, (X,), optimize=False)
    assert "BatchNormalization" in operators(plain)
    runtime = fxonnx.torch_onnx_export(model, (X,), do_constant_folding=False)
    assert len(operators(runtime)) > len(operators(program))
    assert not any("::folded" in name for name in runtime.model.graph.initializers)
    for one in (program, plain, runtime):
        torch.testing.assert_close(one(X)[0], model(X), rtol=1e-4, atol=1e-5)


def test_training_modes() -> None:
    model = Network().train()
    model.layers[1].eval()
    before = {name: module.training for name, module in model.named_modules()}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the model is in training mode")
        warnings.filterwarnings("ignore", message="forward writes to")
        evaluated = fxonnx.torch_onnx_export(
            model, (X,), training=TrainingMode.EVAL, verify="auto", dynamic_shapes=({0: "n"},)
        )
        kept = fxonnx.torch_onnx_export(model, (X,), training=TrainingMode.PRESERVE)
        trained = fxonnx.torch_onnx_export(Network().eval(), (X,), training=TrainingMode.TRAINING)
    assert "Dropout" not in " ".join(operators(evaluated))
    assert "RandomUniformLike" in operators(kept) or "Dropout" in operators(kept) or "Bernoulli" in operators(kept)
    assert not any(
        node.op_type == "BatchNormalization" and "training_mode" in node.attributes for node in kept.model.graph
    )
    assert len(operators(trained)) > len(operators(evaluated))
    assert {name: module.training for name, module in model.named_modules()} == before
    with pytest.raises(ArgumentError, match=r"training: expected a torch.onnx.TrainingMode, got True\nhint: pass"):
        fxonnx.torch_onnx_export(model, (X,), training=True)  # type: ignore[arg-type]


def test_custom_operators_pass_through() -> None:
    x = torch.rand(4, 3)
    program = fxonnx.torch_onnx_export(Custom().eval(), (x,), custom_opsets={"fxonnx_options": 3})
    assert operators(program) == ["fxonnx_options::scaled", "Relu", "fxonnx_options::halves"]
    assert program.model.opset_imports["fxonnx_options"] == 3
    scaled, _, halves = program.model.graph
    assert {name: item.value for name, item in scaled.attributes.items()} == {
        "scale": 2.0, "axes": (0, 1), "mode": "a", "dtype": onnx.TensorProto.FLOAT
    }  # fmt: skip
    assert [value.name for value in scaled.inputs] == ["x"]
    assert len(halves.outputs) == 2
    onnx.checker.check_model(program.model_proto)


def test_passthrough_of_operators_without_a_translation() -> None:
    class Solved(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.fxonnx_options.scaled(torch.linalg.eigvals(x).abs(), None, 2.0, [0])

    x, model = torch.rand(3, 3), Solved().eval()
    export_types = OperatorExportTypes
    program = fxonnx.torch_onnx_export(
        Custom().eval(), (torch.rand(4, 3),), operator_export_type=export_types.ONNX_FALLTHROUGH
    )
    assert operators(program)[0] == "fxonnx_options::scaled"
    with pytest.raises(UnsupportedOperatorError, match="fxonnx_options"):
        fxonnx.torch_onnx_export(model, (x,), operator_export_type=export_types.ONNX_ATEN_FALLBACK)
    with pytest.raises(UnsupportedOperatorError, match="fxonnx_options"):
        fxonnx.export(model, (x,))


def test_passthrough_of_all_operators() -> None:
    program = fxonnx.torch_onnx_export(Network().eval(), (X,), operator_export_type=OperatorExportTypes.ONNX_ATEN)
    assert set(operators(program)) == {"org.pytorch.aten::ATen"}
    first = program.model.graph[0]
    assert (first.attributes["operator"].value, first.attributes["overload_name"].value) == ("conv2d", "")
    assert program.model.opset_imports["org.pytorch.aten"] == 1


# The fields of a request that follow from arguments; none from those about its destination.
RARE = {field.name for field in fields(fxonnx.ExportOptions)}
READ: dict[str, set[str]] = {
    **{name: set[str]() for name in ("f", "external_data", "diagnostics")},
    "options": RARE,
    "opset_version": {"opset"},
    "target": {"profile"},
    "custom_translation_table": {"registry"},
}


def test_each_option_is_one_field_of_the_request() -> None:
    arguments = inspect.signature(fxonnx.export).parameters
    expected = {"enabled_patterns"}.union(*(READ.get(name, {name}) for name in arguments))
    legacy = {field.name for field in fields(LegacyOptions)} - RARE
    assert {field.name for field in fields(Request)} - legacy == expected


def test_the_program_has_the_request() -> None:
    model = Network().eval()
    program = fxonnx.export(model, (X,), state="error", opset_version=18)
    request = program.record.options
    assert request.model is model
    assert request.args[0] is X
    assert (request.state, request.opset) == ("error", 18)
    assert "args=" not in repr(request)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dynamo": 1}, "dynamo: expected True or False, got 1"),
    ({"export_modules_as_functions": True}, "export_modules_as_functions: modules cannot be .*\nhint: leave it out"),
    ({"export_modules_as_functions": {nn.Linear}}, "export_modules_as_functions: modules cannot be"),
    ({"autograd_inlining": False}, "autograd_inlining: the forward of an autograd.Function is always"),
    ({"operator_export_type": "RAW"}, "operator_export_type: expected .*, got 'RAW'\nhint: there are ONNX, ONNX_ATEN,"),
    ({"custom_opsets": ["a"]}, r"custom_opsets: expected a dict from domain to version, got \['a'\]"),
    ({"custom_opsets": {"ai.onnx": 3}}, "custom_opsets: 'ai.onnx' is not a domain of custom operators"),
    ({"custom_opsets": {"a": 0}}, "custom_opsets: the version of 'a' is 0, not a positive int"),
]


@pytest.mark.parametrize(("options", "match"), REFUSED)
def test_unsupported_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        fxonnx.torch_onnx_export(nn.ReLU().eval(), (X,), **options)


class Told(nn.Module):
    """Branches on is_in_onnx_export() and exports another model in forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not fxonnx.is_in_onnx_export():
            return x
        seen: list[bool] = []
        thread = threading.Thread(target=lambda: seen.append(fxonnx.is_in_onnx_export()))
        thread.start()
        thread.join()
        return x + 1 if seen == [False] else x + 2


def test_is_in_onnx_export() -> None:
    assert not fxonnx.is_in_onnx_export()
    program = fxonnx.export(Told().eval(), (X,))
    assert torch.equal(program(X)[0], X + 1)
    assert not fxonnx.is_in_onnx_export()


@pytest.mark.parametrize(
    ("level", "keys"),
    [
        ("full", {"namespace", "class_hierarchy", "name_scopes", "fx_node", "stack_trace"}),
        ("names", {"namespace", "class_hierarchy", "name_scopes"}),
        ("none", set()),
    ],
)
def test_metadata(level: Any, keys: set[str]) -> None:
    program = fxonnx.export(Network().eval(), (X,), options=fxonnx.ExportOptions(metadata=level))
    for node in program.model.graph:
        assert {key.removeprefix("pkg.torch.onnx.") for key in node.metadata_props} == keys
    with pytest.raises(ArgumentError, match="metadata: expected one of 'full', 'names', 'none', got 'some'"):
        fxonnx.export(Network().eval(), (X,), options=fxonnx.ExportOptions(metadata="some"))  # type: ignore[arg-type]


class Extremes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax(1)


def test_numerics() -> None:
    default, exact = (
        fxonnx.export(Extremes(), (X,), options=fxonnx.ExportOptions(numerics=choice))
        for choice in ("default", "exact")
    )
    assert "pkg.fxonnx.numerics" not in default.model.metadata_props
    assert exact.model.metadata_props["pkg.fxonnx.numerics"] == "exact"
    x = X.clone()
    x[0] = math.nan
    assert exact(x)[0].isnan().tolist() == Extremes()(x).isnan().tolist()
    with pytest.raises(ArgumentError, match="numerics: expected one of 'default', 'exact', got 'fast'"):
        fxonnx.export(Extremes(), (X,), options=fxonnx.ExportOptions(numerics="fast"))  # type: ignore[arg-type]


def test_source_paths_in_metadata_are_relative(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def files() -> set[str]:
        program = fxonnx.export(Network().eval(), (X,))
        traces = "".join(node.metadata_props["pkg.torch.onnx.stack_trace"] for node in program.model.graph)
        return {line.split('"')[1] for line in traces.splitlines() if line.strip().startswith("File ")}

    found = files()
    assert {"torch/nn/modules/conv.py", "tests/test_options.py"} <= found
    monkeypatch.chdir(tmp_path)
    assert not any(Path(name).is_absolute() for name in found | files())


def test_user_metadata_is_kept() -> None:
    class Annotated(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.fx.traceback.annotate({"stage": 1}):
                x = x.exp()
            return x.sin()

    with torch.fx.traceback.preserve_node_meta():
        program = fxonnx.export(Annotated().eval(), (X,))
    notes = {node.op_type: node.metadata_props.get("pkg.fxonnx.custom") for node in program.model.graph}
    assert notes == {"Exp": '{"stage": 1}', "Sin": None}


def test_names_of_the_torchscript_exporter() -> None:
    model = Network().eval()
    for options in ({"dynamo": False}, {"compat": "torchscript", "metadata": "none"}):
        program = fxonnx.torch_onnx_export(model, (X,), output_names=["y"], verify=True, **options)
        graph = program.model.graph
        assert [node.name for node in graph][:2] == ["/layers/layers.0/Conv", "/layers/layers.3/Relu"]
        assert graph[0].outputs[0].name == "/layers/layers.0/Conv_output_0"
        assert [value.name for value in (*graph.inputs, *graph.outputs)] == ["x", "y"]
        names = [value.name for node in graph for value in node.outputs]
        assert len(set(names)) == len(names)
    assert "head.bias" in graph.initializers
    with pytest.raises(ArgumentError, match="compat: expected one of None, 'torchscript', got 'caffe2'"):
        fxonnx.torch_onnx_export(model, (X,), compat="caffe2")  # type: ignore[arg-type]
