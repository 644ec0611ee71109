"""The built documentation: every page works from disk, and fits on narrow and wide screens."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs", reason="make docs installs MkDocs")
pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parent.parent
BROWSER = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)

# Loads each page in a frame of the given width, and lists the pages that are wider.
MEASURE = """<body><script>
(async () => {
  const wide = [];
  for (const page of PAGES) {
    const frame = document.createElement("iframe");
    frame.style.width = "WIDTHpx";
    frame.src = page;
    await new Promise(resolve => { frame.onload = resolve; document.body.appendChild(frame); });
    if (frame.contentDocument.documentElement.scrollWidth > frame.contentWindow.innerWidth) wide.push(page);
    frame.remove();
  }
  document.title = JSON.stringify({pages: PAGES.length, wide});
})();
</script></body>"""

# Loads each page in the same way, and lists the blocks of code that are wider than their column.
CUT = """<body><script>
(async () => {
  const cut = [];
  for (const page of PAGES) {
    const frame = document.createElement("iframe");
    frame.style.width = "WIDTHpx";
    frame.src = page;
    await new Promise(resolve => { frame.onload = resolve; document.body.appendChild(frame); });
    for (const code of frame.contentDocument.querySelectorAll("pre, pre > code")) {
      if (code.scrollWidth > code.clientWidth) cut.push(`${page}: ${code.textContent.slice(0, 60)}`);
    }
    frame.remove();
  }
  document.title = JSON.stringify(cut);
})();
</script></body>"""

SEARCH = """<body><iframe src="index.html" style="width: 1280px"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument;
  const query = page.querySelector("[data-md-component=search-query]");
  query.focus();
  query.value = "dynamic_axes";
  query.dispatchEvent(new frame.contentWindow.KeyboardEvent("keyup", {bubbles: true}));
  setInterval(() => {
    const found = page.querySelectorAll(".md-search-result__item").length;
    if (found) document.title = JSON.stringify(found);
  }, 100);
};
</script></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as ``make docs`` does."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def targets(page: Path) -> list[str]:
    """The addresses in the links, scripts, styles and images of a page."""
    return [html.unescape(address) for address in re.findall(r'\b(?:href|src)="([^"]+)"', page.read_text())]


def test_links_are_files(site: Path) -> None:
    """A browser that reads pages from disk opens no directories, and knows no root of the site."""
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    missing = [
        f"{page.relative_to(site)}: {address}"
        for page in pages
        for address in targets(page)
        if not urlsplit(address).scheme
        and not (page.parent / unquote(urlsplit(address).path) if urlsplit(address).path else page).is_file()
    ]
    assert len(pages) > 50
    assert missing == []


def test_nothing_is_loaded_from_other_servers(site: Path) -> None:
    loaded = r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)"|<link[^>]+rel="stylesheet"[^>]+href="(https?:[^"]+)"'
    assert [(page.name, found) for page in site.rglob("*.html") for found in re.findall(loaded, page.read_text())] == []


def shown(site: Path, script: str) -> object:
    """The title, as JSON, of a page with this script beside the pages of the site."""
    harness = site / "harness.html"
    harness.write_text(script)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    command = [str(BROWSER), *options, "--window-size=1400,900", "--virtual-time-budget=20000", harness.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    harness.unlink()
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    return json.loads(html.unescape(title[1]))


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [400, 1280])
def test_no_page_scrolls_sideways(site: Path, width: int) -> None:
    pages = sorted(str(page.relative_to(site)) for page in site.rglob("*.html"))
    script = MEASURE.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(width))
    assert shown(site, script) == {"pages": len(pages), "wide": []}


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_search_works_from_disk(site: Path) -> None:
    assert shown(site, SEARCH)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_no_code_is_cut(site: Path) -> None:
    pages = sorted(str(page.relative_to(site)) for page in site.rglob("*.html"))
    assert shown(site, CUT.replace("PAGES", json.dumps(pages)).replace("WIDTH", "1400")) == []


def test_every_page_names_the_version_and_links_to_the_changes(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    links = {page: re.search(r'fxonnx [\d.a-z]+ · <a href="([^"]+)">Changes</a>', page.read_text()) for page in pages}
    assert all(link and (page.parent / link[1]).is_file() for page, link in links.items())
    assert "[Unreleased]" in (site / "changelog.html").read_text()
