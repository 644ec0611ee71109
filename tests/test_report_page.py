"""The report page in Chromium: keyboard, search, side panel and picture, driven by real keys and clicks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from torch import nn

import fxonnx
from tests.web.devtools import CHROMIUM, Page, browse

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

HOSTILE = "<img src=x onerror=alert(1)>"


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
        return torch.cond(y.sum() > 0, lambda z: z + 1, lambda z: z * 2, (y,))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pages")
    x = torch.rand(2, 3, 8, 8)
    program = fxonnx.export(Network().eval(), (x,), dynamic_shapes=({0: "batch", 2: "height"},))
    fxonnx.report(program, directory / "page.html")
    repeated = nn.Sequential(*(Block() for _ in range(3))).eval()
    options = fxonnx.ExportOptions(functions="repeated")
    program = fxonnx.export(repeated, (torch.rand(2, 8),), options=options)
    fxonnx.report(program, directory / "functions.html")
    return directory


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with browse() as page:
        yield page


@pytest.fixture
def page(browser: Page, reports: Path) -> Iterator[Page]:
    browser.open(reports / "page.html")
    yield browser
    assert not browser.errors


def focused(page: Page) -> str:
    """The text of the focused element, or its id."""
    text: str = page.evaluate("document.activeElement.id || document.activeElement.textContent.replace(/\\s+/g, ' ')")
    return text.strip()


def drawn(page: Page) -> set[str]:
    """The labels of the boxes in the picture, once it is laid out."""
    page.wait("canvas.getAttribute('aria-busy') === 'false'")
    return set(page.evaluate("all('.box', canvas).map(box => box.getAttribute('aria-label'))"))


def crumbs(page: Page) -> str:
    text: str = page.evaluate("document.getElementById('crumbs').textContent")
    return text


def box(label: str) -> str:
    return f"canvas.querySelector('.box[aria-label=\"{label}\"] rect')"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window(page: Page, reports: Path, width: int, dark: bool) -> None:
    page.open(reports / "page.html", width, dark=dark)
    page.evaluate("for (const part of all('details')) part.open = true")
    fits = "document.documentElement.scrollWidth <= innerWidth && innerWidth === " + str(width)
    assert page.evaluate(fits)
    page.evaluate("jump(graphs[0].nodes.find(node => node.type === 'Gelu'))")
    assert page.evaluate(fits)
    page.evaluate("showView('picture')")
    assert drawn(page)
    assert page.evaluate(fits)
    box = page.evaluate("(box => [box.left, box.right, box.top, box.bottom])(panel.getBoundingClientRect())")
    assert box[1] == width
    assert box[3] == 900
    assert (box[0] == 0) == (width == 400)  # a sheet at the bottom of narrow windows
    # Texts have a contrast of at least 4.5 to their background, of WCAG 2 AA.
    luminance = """(name => {
      const probe = element("i");
      probe.style.color = `var(--${name})`;
      document.body.append(probe);
      const parts = getComputedStyle(probe).color.match(/\\d+/g).map(part => part / 255);
      probe.remove();
      const [r, g, b] = parts.map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    })"""
    for text in ("text", "muted", "accent", "ok", "failed", "weight"):
        for back in ("back", "soft", "mark"):
            low, high = sorted(page.evaluate(f"[{luminance}('{text}'), {luminance}('{back}')]"))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, back)


def test_keys_of_the_list(page: Page) -> None:
    page.press("/")
    assert focused(page) == "search"
    page.write("gelu")
    page.press("Escape")
    assert page.evaluate("[search.value, items.filter(item => item.matches('.hidden')).length]") == ["", 0]
    assert page.evaluate("[...graphs[0].modules.values()].find(part => part.name === 'stem').row.parentElement.open")
    page.press("Tab", "Tab")
    assert focused(page).startswith("model Network")
    page.press("End", "ArrowLeft", "ArrowLeft")  # to the module, and close it
    closed = focused(page)
    assert page.evaluate("document.activeElement.parentElement.open") is False
    page.press("ArrowRight", "ArrowDown", "ArrowUp")
    assert focused(page) == closed
    page.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open") is False
    page.press("Home", "ArrowRight")
    for _ in range(20):
        if not focused(page).startswith("Conv"):
            page.press("ArrowDown")
    assert focused(page).startswith("Conv")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("Enter")
    assert page.evaluate("[selected.type, document.activeElement.ariaPressed, panel.hidden]") == ["Conv", "true", False]
    page.press("Tab")
    assert page.evaluate("panel.contains(document.activeElement)")
    page.press("Escape")
    assert page.evaluate("panel.hidden")
    assert focused(page).startswith("Conv")
    assert page.evaluate("items.filter(item => item.tabIndex === 0).length") == 1


@pytest.mark.parametrize(
    ("text", "rows", "others"),
    [
        ("gelu", ["Gelu", "MatMul"], ["Conv"]),  # the nodes, and those that use their outputs
        ("conv2d", ["Conv", "stem.weight"], ["Gelu"]),  # a class
        ("kernel_shape = [3, 3]", ["Conv"], ["Gelu", "stem.weight"]),
        ("[16, 8]", ["blocks.0.out.weight", "MatMul"], ["Gelu", "Conv"]),  # of an input
        ("BOOL", ["Greater", "If"], ["Gelu"]),
        ("stem", ["Conv", "stem.bias"], ["Gelu"]),  # a module
        ("test_report_page.py", ["Conv", "Gelu"], ["stem.bias"]),
        ("no such thing", [], ["Conv"]),
    ],
)
def test_search(page: Page, text: str, rows: list[str], others: list[str]) -> None:
    page.press("/")
    page.write(text)
    shown = page.evaluate("all('.row', list).filter(row => row.checkVisibility()).map(row => row.textContent)")
    assert all(any(row.startswith(one) for row in shown) for one in rows)
    assert not any(row.startswith(one) for row in shown for one in others)
    found = page.evaluate("document.getElementById('found').textContent")
    assert (found == "0 found") == (not rows)


def test_the_side_panel(page: Page) -> None:
    page.click("graphs[0].nodes.find(node => node.type === 'Conv').row")
    text = " ".join(page.evaluate("panel.innerText").split())
    assert text.startswith("Conv ")
    for part in (
        "domain ai.onnx ",
        "module stem class Conv2d",
        "test_report_page.py:",
        "pads [1, 1, 1, 1]",
        "x FLOAT[batch, 3, height, 8] input",
        "stem.weight FLOAT[8, 3, 3, 3] weight, 864 bytes",
        "FLOAT[batch, 8, height, 8] used by Reshape",
        "FX node %conv2d",
        "y = self.stem(x)",
    ):
        assert part in text, part
    assert page.evaluate("all('.graph path').length") >= 1
    page.click("all('.link', panel).find(link => link.textContent.startsWith('Reshape'))")
    assert page.evaluate("selected.type") == "Reshape"
    assert focused(page).startswith("Reshape")
    page.click("all('.link', panel).find(link => link.textContent.startsWith('Conv'))")
    page.click("all('.link', panel).find(link => link.textContent === 'stem.weight')")
    text = " ".join(page.evaluate("panel.innerText").split())
    assert text.startswith("stem.weight ")
    assert "Used by Conv" in text
    page.click("selected.row")  # a second click clears
    assert page.evaluate("panel.hidden && all('.graph path').length === 0")


def test_the_picture(page: Page) -> None:
    page.click("document.getElementById('picture-tab')")
    boxes = drawn(page)
    assert {"module stem", "module blocks", "x"} <= boxes
    assert not any(one.startswith("Conv ") for one in boxes)
    assert crumbs(page) == "model"
    page.click(box("module blocks"), 2)
    assert {"module blocks.0", "module blocks.1"} <= drawn(page)
    page.click(box("module blocks.0"))
    assert page.evaluate("[selected.name, panel.innerText.includes('Block')]") == ["blocks.0", True]
    page.press("Enter")
    assert "module blocks.0.hidden" in drawn(page)
    assert crumbs(page) == "model / blocks / 0"
    gelu = next(one for one in drawn(page) if one.startswith("Gelu"))
    page.click(box(gelu))
    assert page.evaluate("[selected.type, canvas.querySelector('.selected').getAttribute('aria-label')]") == [
        "Gelu",
        gelu,
    ]
    page.press("Shift+ArrowUp")
    assert page.evaluate("selected.name") == "blocks.0.hidden"
    page.press("Shift+ArrowDown")
    page.click("document.getElementById('list-tab')")
    assert page.evaluate("selected.row.matches('.selected') && selected.row.checkVisibility()")
    page.click("document.getElementById('picture-tab')")
    page.click("all('button', crumbs)[0]")
    assert "module stem" in drawn(page)
    # The box that has the selected node is marked.
    assert page.evaluate("canvas.querySelector('.selected').getAttribute('aria-label')") == "module blocks"
    page.press("Enter", "Backspace")
    assert crumbs(page) == "model"


def test_zoom_and_pan(page: Page) -> None:
    page.click("document.getElementById('picture-tab')")
    drawn(page)
    page.evaluate("canvas.focus()")
    before = page.evaluate("({...camera})")
    page.press("+", "ArrowRight")
    after = page.evaluate("({...camera})")
    assert after["scale"] > before["scale"]
    page.press("-")
    page.click("document.getElementById('zoom-in')")
    page.click("document.getElementById('zoom-out')")
    page.press("0")
    assert page.evaluate("camera.scale <= 1")
    x, y = page.evaluate("(box => [box.x + 5, box.y + 5])(canvas.getBoundingClientRect())")
    page.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-200)
    page.wait("camera.scale > 1.2")
    at = page.evaluate("camera.x")
    for kind, offset in (("mousePressed", 0), ("mouseMoved", 30), ("mouseReleased", 30)):
        page.send("Input.dispatchMouseEvent", type=kind, x=x + offset, y=y, button="left", buttons=1, clickCount=1)
    assert page.evaluate("camera.x") == pytest.approx(at + 30)
    assert page.evaluate("selected") is None  # a drag does not select


def test_the_picture_opens_fitted(page: Page, tmp_path: Path) -> None:
    """All of it is in sight, however long the chain of nodes is."""
    program = fxonnx.export(nn.Sequential(*(nn.ReLU() for _ in range(40))).eval(), (torch.rand(2, 3),))
    page.open(fxonnx.report(program, tmp_path / "page.html"))
    page.click("document.getElementById('picture-tab')")
    assert len(drawn(page)) == 42
    outside = "box.top < at.top || box.bottom > at.bottom || box.left < at.left || box.right > at.right"
    boxes = "all('.box', canvas).map(box => box.getBoundingClientRect())"
    assert page.evaluate(f"(at => {boxes}.filter(box => {outside}).length)(canvas.getBoundingClientRect())") == 0


def found(page: Page) -> set[str]:
    """The labels of the boxes that the search marks."""
    return set(page.evaluate("all('.box.found', canvas).map(box => box.getAttribute('aria-label'))"))


def test_search_marks_the_picture(page: Page, reports: Path) -> None:
    page.click("document.getElementById('picture-tab')")
    drawn(page)
    page.press("/")
    page.write("gelu")
    assert page.evaluate("isPictureShown()")
    assert found(page) == {"module blocks"}
    assert page.evaluate("getComputedStyle(canvas.querySelector('.box[aria-label=\"module stem\"]')).opacity") == "0.4"
    page.press("Enter")  # the first match, in its module
    assert any(one.startswith("Gelu ") for one in drawn(page))
    assert page.evaluate("selected.type") == "Gelu"
    assert crumbs(page) == "model / blocks / 0"
    first = found(page)
    assert {one.partition(" ")[0] for one in first} == {"Gelu", "module"}  # the layer reads the result of Gelu
    assert focused(page) == "search"
    page.press("Enter", "Enter")
    drawn(page)
    assert crumbs(page) == "model / blocks / 1"
    page.press("Shift+Enter", "Shift+Enter")
    drawn(page)
    assert crumbs(page) == "model / blocks / 0"
    page.press("Escape")
    assert not found(page)
    assert page.evaluate("getComputedStyle(canvas.querySelector('.box')).opacity") == "1"
    page.write("stem.weight")
    page.evaluate("show(viewAt(graphs[0], null, ''))")
    drawn(page)
    assert found(page) == {"module stem"}
    page.open(reports / "functions.html")
    page.click("document.getElementById('picture-tab')")
    calls = drawn(page)
    page.press("/")
    page.write("gelu")
    assert found(page) == {one for one in calls if one.startswith("module ")}


def test_subgraphs_are_entered(page: Page) -> None:
    page.click("document.getElementById('picture-tab')")
    (branch,) = (one for one in drawn(page) if one.startswith("If "))
    page.click(box(branch), 2)
    inner = drawn(page)
    assert any(one.startswith("then_branch: ") for one in inner)
    assert any(one.startswith("else_branch: ") for one in inner)
    assert any(one.startswith("Add ") for one in inner)
    assert crumbs(page) == f"model / {branch}"
    page.press("Backspace")
    assert branch in drawn(page)


def test_functions_are_entered(page: Page, reports: Path) -> None:
    page.open(reports / "functions.html")
    page.click("document.getElementById('picture-tab')")
    calls = drawn(page)
    page.evaluate("enter(graphs[0].nodes.find(functionOf))")
    function = page.evaluate("graphs[1].name")
    assert {"module 0", "input", "hidden.weight"} <= drawn(page)
    page.click(box("module 0"), 2)
    assert "module 0.norm" in drawn(page)
    assert crumbs(page) == f"model / 0 / {function} / 0"
    page.press("Backspace", "Backspace", "Backspace")
    assert drawn(page) == calls


def test_a_large_module_has_a_message_instead_of_a_picture(page: Page, tmp_path: Path) -> None:
    value = ir.val("x", ir.DataType.FLOAT, [2])
    nodes = []
    for index in range(1501):
        nodes.append(ir.node("Relu", [value if not nodes else nodes[-1].outputs[0]], name=f"n{index}"))
        nodes[-1].outputs[0].name = f"y{index}"
    graph = ir.Graph([value], [nodes[-1].outputs[0]], nodes=nodes, opset_imports={"": 20})
    page.open(fxonnx.report(ir.Model(graph, ir_version=10), tmp_path / "page.html"))
    page.click("document.getElementById('picture-tab')")
    assert not drawn(page)
    assert "1,503 items are too many" in page.evaluate("notice.textContent")


def test_names_are_texts_and_nothing_is_loaded(page: Page, tmp_path: Path) -> None:
    value = ir.val(HOSTILE, ir.DataType.FLOAT, [2])
    weight = ir.val(f"{HOSTILE}.weight", const_value=ir.tensor([1.0, 2.0]))
    keys = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.fx_node")
    texts = (f"['', '{HOSTILE}', 'n']", f"['A', 'B{HOSTILE}', 'n']", f"</script>{HOSTILE}")
    node = ir.node(HOSTILE, [value, weight], domain=HOSTILE, attributes={HOSTILE: HOSTILE}, name=HOSTILE)
    node.metadata_props.update(zip(keys, texts, strict=True))
    node.outputs[0].name = f"{HOSTILE}y"
    graph = ir.Graph(
        [value], list(node.outputs), nodes=[node], initializers=[weight], opset_imports={"": 20, HOSTILE: 1}
    )
    page.requests.clear()
    page.open(fxonnx.report(ir.Model(graph, ir_version=10), tmp_path / "page.html"))
    page.evaluate("for (const entry of entries.values()) jump(entry)")
    page.evaluate("jump(graphs[0].nodes[0])")
    assert page.evaluate("panel.innerText").count(HOSTILE) >= 6  # operator, name, domain, module, class, attribute
    page.press("/")
    page.write(HOSTILE)
    assert page.evaluate("document.getElementById('found').textContent") != "0 found"
    page.evaluate("showView('picture')")
    assert f"module {HOSTILE}" in drawn(page)
    page.evaluate(f"enter(graphs[0].modules.get({HOSTILE!r}))")
    assert any(one.startswith(f"{HOSTILE}::{HOSTILE}") for one in drawn(page))
    assert page.evaluate("all('img').length") == 0
    assert all(one.startswith(("file:", "blob:")) for one in page.requests)


def test_a_module_with_the_name_of_a_javascript_object(page: Page, tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("constructor", nn.Linear(3, 2))
    program = fxonnx.export(model.eval(), (torch.rand(2, 3),))
    for node in program.model.graph:
        # As a file of an exporter that writes no classes.
        node.metadata_props.pop("pkg.torch.onnx.class_hierarchy")
    page.open(fxonnx.report(program.model, tmp_path / "page.html"))
    page.evaluate("document.querySelector('[data-node]').click()")
    panel = page.evaluate("document.getElementById('panel').textContent")
    assert "constructor" in panel
    assert "native code" not in panel
