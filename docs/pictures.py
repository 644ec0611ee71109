"""Make the pictures of the report in docs/images: python docs/pictures.py. Needs Chromium and Pillow."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from PIL import Image
from torch import nn

import fxonnx

IMAGES = Path(__file__).parent / "images"
WIDTH = 1150
# Show the graph alone, and select the attention of the first block.
GRAPH = """<script>
for (const part of all("header, nav, section")) if (part.id != "graph") part.remove();
const opened = ["blocks", "0", "attention"];
for (const part of all(".module")) if (opened.includes(part.querySelector("b").textContent)) part.open = true;
const node = all(".node").find(row => row.querySelector("b")?.textContent == "Attention");
setTimeout(() => node.click(), 0);
</script>"""


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


def picture(page: Path, path: Path, height: int) -> None:
    """Render a page in Chromium."""
    browser = shutil.which("chromium") or "google-chrome"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={WIDTH},{height}"]
    subprocess.run([browser, *flags, f"--screenshot={path}", page.as_uri()], check=True, capture_output=True)
    Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(path, optimize=True)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, model, height in (("report-success", Classifier(), 2130), ("report-failure", Routed(), 1150)):
        with tempfile.TemporaryDirectory() as directory:
            page = page_of(model, Path(directory))
            picture(page, IMAGES / f"{name}.png", height)
            if isinstance(model, Routed):
                continue
            page.write_text(page.read_text().replace("</body>", f"{GRAPH}</body>"))
            picture(page, IMAGES / "report-graph.png", 1130)


if __name__ == "__main__":
    main()
