"""The HTML page of ``report=True``, ``fxonnx.report`` and ``fxonnx report``."""

from __future__ import annotations

import email.message
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx
import onnx.helper
import pytest
import torch
from onnxscript import ir
from torch import nn
from typer.testing import CliRunner

import fxonnx
from fxonnx._cli.commands import app

VOID = {"meta", "input", "br", "path"}
X = torch.rand(2, 3, 8, 8)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.hidden = nn.Linear(8, 16)
        self.out = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(nn.functional.gelu(self.hidden(self.norm(x))))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            y = block(y)
        return y[:, :3]


class Asks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x).relu()
        return y * {True: 1.0, False: 2.0}[bool(y.sum() > 0)]


class Lacks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._standard_gamma_grad.default(x.sigmoid(), x)


class Outline(HTMLParser):
    """The ids of sections and the elements of a page; unbalanced elements are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sections: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "section":
            self.sections.append(str(dict(attrs)["id"]))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def page_of(directory: Path) -> str:
    (path,) = directory.glob("onnx_export_*.html")
    assert path.with_suffix(".md").is_file()
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def success(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("success")
    shapes = ({0: "batch", 2: "height"},)
    fxonnx.export(
        Network().eval(),
        (X,),
        dynamic_shapes=shapes,
        verify=True,
        diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=directory),
    )
    return page_of(directory)


def test_sections_of_a_successful_export(success: str) -> None:
    sections = ["summary", "stages", "interface", "constraints", "fusions", "differences", "operators", "graph"]
    assert Outline(success).sections == [*sections, "captured"]
    text = html.unescape(re.sub(r"<[^>]+>", "", success))
    for part in (
        "The export succeeded.",
        "All outputs agree:",
        "blocks.0.hidden.bias: FLOAT[16]",
        "296 parameters",  # of a block
        "height",
        "LayerNormalization",
        "test_report.py:",
        "call_function[target=torch.ops.aten",
    ):
        assert part in text


def test_the_page_needs_nothing_else(success: str) -> None:
    elements = Outline(success).elements
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in elements}
    assert not any("src" in attributes for _, attributes in elements)
    assert "http" not in success.replace("http-equiv", "")
    assert "default-src 'none'" in success


def test_nodes_and_weights_are_in_their_module(success: str) -> None:
    found = re.search(r"<b>hidden</b>.*?</details>", success, re.DOTALL)
    assert found is not None
    assert "blocks.0.hidden.weight" in found[0]
    assert ">MatMul<" in found[0]
    assert "144 parameters, 576 bytes" in found[0]


def test_a_constraint_shows_its_source(tmp_path: Path) -> None:
    class Splits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 2:
                return x * 2
            return x

    fxonnx.export(
        Splits(),
        (torch.rand(4, 3),),
        dynamic_shapes=({0: "batch"},),
        diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path),
    )
    page = page_of(tmp_path)
    found = re.findall(r'class="named">\s*\d+ +if x.shape\[0\] &gt; 2:', page)
    assert len(found) == 1  # below all messages about the line


def test_fusions_and_near_misses(tmp_path: Path) -> None:
    class Norm(nn.Module):
        def __init__(self, axis: int) -> None:
            super().__init__()
            self.axis = axis

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.pow(2).mean(self.axis, keepdim=True) + 1e-6)

    program = fxonnx.export(nn.Sequential(*[Norm(-1), *(Norm(1) for _ in range(5))]).eval(), (X,), opset_version=23)
    text = re.sub(r"(<[^>]+>|\s)+", " ", fxonnx.report(program, tmp_path / "page.html").read_text())
    assert re.search(r"rms_norm 1 0 ", text)
    assert "rms_norm the normalized axis is not the last one in 1, 2, 3 and 2 more" in text
    assert re.search(r"\d+ +return x \* torch.rsqrt", text)


def test_a_failed_capture_shows_the_code_and_the_graph_before(tmp_path: Path) -> None:
    with pytest.raises(fxonnx.CaptureError, match=r"report: .*_error\.html$"):
        fxonnx.export(
            Asks().eval(), (torch.rand(2, 3),), diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path)
        )
    page = page_of(tmp_path)
    assert Outline(page).sections == ["error", "inputs", "summary", "stages", "captured"]
    assert "The export failed." in page
    assert re.search(r'class="named">\s*\d+ +return y \* {True', page)
    assert "torch.ops.aten.relu" in page
    assert "Traceback (most recent call last)" in page


def test_a_failed_export_shows_its_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments as they were passed, and the page about the error: linked once the project has an address."""

    class Mixed(Asks):
        def forward(self, x: torch.Tensor, scales: dict[str, Any], flag: bool = True) -> torch.Tensor:
            return super().forward(x) * scales["a"][0]

    args, shapes = (torch.rand(2, 3), {"a": [torch.rand(3), 2.5]}), {"x": {0: torch.export.Dim("batch", max=8)}}
    options = fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path)
    entries = ["Repository, https://example.org", "Documentation, https://example.org/docs"]
    found = email.message.Message()
    for entry in entries:
        found["Project-URL"] = entry
    monkeypatch.setattr("fxonnx._public.metadata", lambda name: found)
    with pytest.raises(fxonnx.CaptureError):
        fxonnx.export(Mixed().eval(), args, kwargs={"flag": False}, dynamic_shapes=shapes, diagnostics=options)
    page = page_of(tmp_path)
    assert '<a href="https://example.org/docs/errors/FX002.html">' in page
    rows = ["x float32 [2, 3]", "scales['a'][0] float32 [3]", "scales['a'][1] float 2.5", "flag bool False"]
    text = re.sub(r"(<[^>]+>|\s)+", " ", page)
    assert " ".join(rows) in html.unescape(text)
    assert "dynamic_shapes = {'x': {0: Dim('batch', min=0, max=8" in html.unescape(text)
    (markdown,) = tmp_path.glob("*.md")
    assert "| x | float32 | [2, 3] |" in markdown.read_text()
    assert "dynamic_shapes = {'x': {0: Dim('batch', min=0, max=8" in markdown.read_text()


def test_arguments_that_are_refused_are_shown_as_well(tmp_path: Path) -> None:
    inner: list[Any] = []
    inner.append(inner)
    for number, (model, args, text) in enumerate(
        (
            (nn.Linear(3, 3), [torch.rand(2, 3)], "input[0] float32 [2, 3]"),
            (nn.Linear(3, 3), (inner,), "input list"),
            (nn.Linear(3, 3), (torch.rand(2, 3), object()), "args[1] object"),
            (torch.jit.script(nn.Linear(3, 3)), (torch.rand(2, 4),), "float32 [2, 4]"),
        )
    ):
        options = fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path / str(number))
        with pytest.raises(fxonnx.ExportError):
            fxonnx.export(model, args, diagnostics=options)
        page = html.unescape(re.sub(r"(<[^>]+>|\s)+", " ", page_of(tmp_path / str(number))))
        assert text in page, number
        assert "Causes and remedies: docs/errors/FX00" in page
        assert "dynamic_shapes = None" in page


def test_constants_come_after_the_modules(tmp_path: Path) -> None:
    class Reshapes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(3))
            self.layer = nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x * self.scale).reshape(-1, 2, 2)

    program = fxonnx.export(Reshapes().eval(), (torch.rand(2, 3),), dynamic_shapes=({0: "batch"},))
    page = fxonnx.report(program, tmp_path / "page.html").read_text().partition('id="graph"')[2]
    text = re.sub(r"<[^>]+>", "", page)
    places = [text.index(part) for part in ("scale: FLOAT[3]", "layer.bias: ", "Gemm mul", "= [-1, 2, 2]")]
    assert places == sorted(places)


def test_a_failed_translation_shows_the_captured_graph(tmp_path: Path) -> None:
    with pytest.raises(fxonnx.UnsupportedOperatorError, match="report: "):
        fxonnx.export(Lacks(), (torch.rand(3, 3),), diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path))
    page = page_of(tmp_path)
    assert Outline(page).sections == ["error", "inputs", "summary", "stages", "captured"]
    assert re.search(r'class="named">.*_standard_gamma_grad', page)
    assert "torch.ops.aten.sigmoid" in page


def test_a_failed_verification_shows_the_first_difference(tmp_path: Path) -> None:
    table = {torch.ops.aten.relu.default: lambda op, self: op.Abs(self)}
    with pytest.raises(fxonnx.VerificationError, match="report: "):
        fxonnx.export(
            nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval(),
            (torch.rand(2, 3) - 2,),
            custom_translation_table=table,
            verify=True,
            diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path),
        )
    page = page_of(tmp_path)
    assert {"error", "differences", "graph"} <= set(Outline(page).sections)
    assert "First difference:" in page
    assert re.search(r'<i class="failed">error \d', page)


def test_files_and_programs(tmp_path: Path) -> None:
    program = fxonnx.export(Network().eval(), (X,), f=tmp_path / "model.onnx")
    page = fxonnx.report(program, tmp_path / "program.html", compare=True)
    assert "All outputs agree" in page.read_text()
    assert "<h1>Network</h1>" in page.read_text()
    result = CliRunner().invoke(app, ["report", str(tmp_path / "model.onnx")])
    assert result.exit_code == 0, result.output
    assert "Example: fxonnx report" in CliRunner().invoke(app, ["report", "--help"]).stdout
    text = (tmp_path / "model.html").read_text()
    assert Outline(text).sections == ["summary", "interface", "operators", "graph"]
    assert "model.onnx" in text
    assert "blocks.1.out.weight" in text


def test_models_of_other_exporters_and_hostile_names(tmp_path: Path) -> None:
    name = "</details><script>alert(1)</script>"
    node = onnx.helper.make_node("Relu", [name], ["y"])
    ends = [onnx.helper.make_tensor_value_info(one, onnx.TensorProto.FLOAT, ["n", 3]) for one in (name, "y")]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ends[:1], ends[1:]))
    text = fxonnx.report(model, tmp_path / "page.html").read_text()
    assert "<script>alert" not in text
    assert Outline(text).sections == ["summary", "interface", "operators", "graph"]


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        (ir.AttrFloat32("a", 1e-5), "1e-05"),
        (ir.AttrInt64s("a", [0, 2, 1]), "[0, 2, 1]"),
        (ir.AttrInt64s("a", range(1000)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … 988 more]"),
        (ir.AttrString("a", "x" * 1000), "x" * 400 + "…"),
        (ir.AttrTensor("a", ir.tensor([[1, 2]])), "INT64[1, 2] = [[1, 2]]"),
        (ir.AttrTensor("a", ir.tensor([0.5] * 100)), "FLOAT[100]"),
        (ir.AttrGraph("a", ir.Graph([], [], nodes=[ir.node("Identity", [])])), "subgraph with 1 node"),
        (ir.RefAttr("a", "alpha", ir.AttributeType.FLOAT), "@alpha"),
    ],
    ids=["float", "list", "long list", "string", "tensor", "large tensor", "subgraph", "reference"],
)
def test_attributes_are_short(tmp_path: Path, attribute: ir.Attr, text: str) -> None:
    graph = ir.Graph([], [], nodes=[ir.Node("", "A", [], [attribute])], opset_imports={"": 20})
    page = fxonnx.report(ir.Model(graph, ir_version=10), tmp_path / "page.html").read_text(encoding="utf-8")
    found = re.search('id="data">(.*?)</script>', page)
    assert found is not None
    data = json.loads(found[1])
    assert data["texts"][data["graphs"][0]["nodes"][0]["attributes"]["a"]] == text


def test_time_of_modules(tmp_path: Path) -> None:
    fxonnx.export(
        Network().eval(),
        (X,),
        tmp_path / "m.onnx",
        diagnostics=fxonnx.Diagnostics(profile_runtime=True, artifacts_dir=tmp_path / "pages"),
    )
    text = re.sub(r"(<[^>]+>|\s)+", " ", page_of(tmp_path / "pages"))
    assert "Time in ONNX Runtime" in text
    assert re.search(r"Conv \d\.\d{3} ms \d+ %", text)
    assert re.search(r"hidden Linear .{1,60}? \d\.\d{3} ms 32\.8 kFLOPs 16\.0 KiB activations 144 parameters", text)
    result = CliRunner().invoke(
        app, ["report", str(tmp_path / "m.onnx"), "--profile-runtime", "-o", str(tmp_path / "p.html")]
    )
    assert result.exit_code == 0, result.output
    assert Outline((tmp_path / "p.html").read_text()).sections == [
        "summary",
        "interface",
        "runtime",
        "operators",
        "graph",
    ]


def test_functions_and_subgraphs(tmp_path: Path) -> None:
    class Repeats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y * 2, (x,))

    program = fxonnx.export(Repeats().eval(), (torch.rand(2, 8),), options=fxonnx.ExportOptions(functions="repeated"))
    text = fxonnx.report(program, tmp_path / "page.html").read_text()
    assert text.count('<div class="graph"') == 2
    assert 'style="margin-left: 1.5em"' in text  # nodes of the branches


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d: fxonnx.report(d / "none.onnx", d / "p.html"), fxonnx.ArgumentError, "none.onnx does not exist"),
        (lambda d: fxonnx.report(ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 20}), ir_version=10), d / "no/p.html"), fxonnx.SaveError, "the report cannot be written to"),
        (lambda d: fxonnx.report(ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 20}), ir_version=10), d / "p.html", compare=True), fxonnx.ArgumentError, "compare: only a program"),
    ],
    ids=["missing", "directory", "compare"],
)  # fmt: skip
def test_errors(tmp_path: Path, call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(tmp_path)
    assert not list(tmp_path.iterdir())


def test_functions_of_one_name(tmp_path: Path) -> None:
    """Functions of two domains may have the same name; modules may have names of JavaScript's objects."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20, "one": 1, "two": 1]>
        main (float[3] x) => (float[3] z) { y = one.Apply(x) z = two.Apply(y) }
        <domain: "one", opset_import: ["": 20]> Apply (x) => (y) { y = Neg(x) }
        <domain: "two", opset_import: ["": 20]> Apply (x) => (y) { y = Abs(x) }"""
    )
    text = fxonnx.report(model, tmp_path / "page.html").read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert [(graph["domain"], graph["name"]) for graph in data["graphs"]] == [
        ("", ""),
        ("one", "Apply"),
        ("two", "Apply"),
    ]
    assert [graph["nodes"][0]["type"] for graph in data["graphs"][1:]] == ["Neg", "Abs"]
