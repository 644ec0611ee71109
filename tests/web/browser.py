"""Pages on the loopback, opened in headless Chromium."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["MODULES", "Site", "has_modules", "serve"]

MODULES = Path(__file__).parent / "node_modules"
_WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")


def has_modules() -> bool:
    """Whether ``make web`` has installed transformers.js and onnxruntime-web."""
    return (MODULES / "@huggingface" / "transformers").is_dir()


@dataclass
class Site:
    """A server of directories, and the last body that a page sent to ``/results``.

    Attributes:
        port: The port on the loopback.
    """

    port: int
    _body: str = ""
    _done: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """The URL of the site's root."""
        return f"http://127.0.0.1:{self.port}/"

    def receive(self, body: str) -> None:
        """Keep the results of a page."""
        self._body = body
        self._done.set()

    def open(self, page: str, *, webgpu: bool = False, seconds: float = 120) -> Any:
        """Open a page, and return the JSON that it sends to ``/results``.

        Args:
            page: Path of the page, relative to the root.
            webgpu: Whether the page needs WebGPU, for which Chromium has an adapter in software.
            seconds: The time limit.

        Raises:
            TimeoutError: If the page sends nothing.
        """
        self._done.clear()
        profile = tempfile.mkdtemp()
        options = ["--headless=new", "--no-sandbox", *(_WEBGPU if webgpu else ("--disable-gpu",))]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = ["chromium", *options, f"--user-data-dir={profile}", f"{self.url}{page}"]
        with subprocess.Popen(command, **quiet) as browser:
            try:
                if not self._done.wait(seconds):
                    raise TimeoutError(f"{page} sent no results in {seconds} s")
            finally:
                browser.kill()
        shutil.rmtree(profile, ignore_errors=True)
        return json.loads(self._body)


@contextmanager
def serve(places: Mapping[str, Path]) -> Iterator[Site]:
    """Serve directories on the loopback.

    Args:
        places: Start of the path in an URL to directory; the first that fits is used. ``/modules/`` are the packages of
            ``make web``.
    """
    site = Site(0)
    every = {"/modules/": MODULES, **places}

    class Handler(http.server.SimpleHTTPRequestHandler):
        def guess_type(self, path: str | os.PathLike[str]) -> str:
            return "text/javascript" if str(path).endswith(".mjs") else super().guess_type(path)

        def translate_path(self, path: str) -> str:
            path = path.split("?")[0]
            prefix = next((each for each in every if path.startswith(each)), None)
            return "" if prefix is None else str(every[prefix] / path.removeprefix(prefix))

        def end_headers(self) -> None:
            # Threads of WebAssembly need an isolated page.
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            super().end_headers()

        def do_POST(self) -> None:
            site.receive(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler)) as server:
        site.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield site
        finally:
            server.shutdown()
