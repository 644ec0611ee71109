"""Make the pictures of the report in docs/images: python -m docs.pictures. Needs Chromium and Pillow."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from PIL import Image
from torch import nn

import fxonnx
from tests.web.devtools import Page, browse

IMAGES = Path(__file__).parent / "images"
WIDTH, NARROW = 1280, 400
# Select the attention of the first block, at the top of the window.
SELECT = """
const attention = graphs[0].nodes.find(node => node.type === "Attention");
jump(attention);
document.activeElement.blur();
document.getElementById("sections").hidden = true;
document.documentElement.style.scrollPaddingTop = 0;
document.getElementById("graph").scrollIntoView();
"""
SHOW_PICTURE = f"""
{SELECT}
showView("picture", viewOf(attention));
showInPicture(attention);
document.activeElement.blur();
document.getElementById("graph").scrollIntoView();
"""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (one.unflatten(-1, (4, 16)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        weights = (query @ key.transpose(-1, -2) / 4).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.attention = Attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(self.norm(x))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.positions = nn.Parameter(torch.rand(32, 64))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(64, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Routed(Classifier):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        scores = self.head(x.mean(1)).softmax(-1)
        scale = {True: 1.0, False: 0.5}[bool(scores.max() > 0.5)]
        return self.blocks[0](x) * scale


def page_of(model: nn.Module, directory: Path) -> Path:
    """Write the report on an export that succeeds or fails."""
    shapes = ({0: "batch", 1: "length"},)
    with suppress(fxonnx.ExportError):  # the report on the error is the subject
        fxonnx.export(
            model.eval(),
            (torch.randint(0, 100, (2, 8)),),
            dynamic_shapes=shapes,
            opset_version=23,
            verify=True,
            diagnostics=fxonnx.Diagnostics(profile_runtime=True, artifacts_dir=directory),
        )
    (page,) = directory.glob("*.html")
    page.write_text(page.read_text().replace(str(Path(__file__).parent), "/home/user"))
    return page


def picture(browser: Page, name: str) -> None:
    """Write a picture of the window, with few colours."""
    path = IMAGES / f"{name}.png"
    browser.screenshot(path)
    few = Image.open(path).convert("RGB").quantize(96, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with browse() as browser, tempfile.TemporaryDirectory() as success, tempfile.TemporaryDirectory() as failure:
        page = page_of(Classifier(), Path(success))
        browser.open(page, WIDTH, 2130)
        picture(browser, "report-success")
        browser.open(page, WIDTH, 1300)
        browser.evaluate(SELECT)
        picture(browser, "report-graph")
        browser.open(page, NARROW, 800, dark=True)
        browser.evaluate(SELECT)
        browser.evaluate("attention.row.scrollIntoView({block: 'center'})")
        picture(browser, "report-narrow")
        browser.open(page, WIDTH, 900)
        browser.evaluate(SHOW_PICTURE)
        browser.wait("canvas.getAttribute('aria-busy') === 'false'")
        picture(browser, "report-picture")
        browser.open(page_of(Routed(), Path(failure)), WIDTH, 1100)
        picture(browser, "report-failure")


if __name__ == "__main__":
    main()
