"""Headless Chromium with a page, driven by real keys and clicks over the DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["CHROMIUM", "Page", "browse"]

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
"""Path of the browser, None if there is none."""
_CODES = {"Enter": 13, "Escape": 27, "Tab": 9, "Backspace": 8, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
_CODES |= {"ArrowDown": 40, "Home": 36, "End": 35}
_SHIFT = 8


class Page:
    """A page of a browser.

    Attributes:
        requests: The URLs that the page asked for.
        errors: The errors of its scripts.
    """

    def __init__(self, sending: int, receiving: int) -> None:
        self._sending, self._received = sending, os.fdopen(receiving, "rb")
        self._count = 0
        self._session = ""
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._sending, json.dumps(message).encode() + b"\0")
        while (reply := self._receive()).get("id") != self._count:
            pass
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def _receive(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._received.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("Chromium has ended")
            text += byte
        message: dict[str, Any] = json.loads(text)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        return message

    def open(self, path: Path, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Open a file in a window of a size and wait until its scripts have run."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait(f"location.href === {json.dumps(path.resolve().as_uri())} && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, through JSON."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def wait(self, condition: str, seconds: float = 20) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition} is not true after {seconds} s")
            time.sleep(0.05)

    def press(self, *keys: str) -> None:
        """Press keys: characters, or names as ``ArrowDown`` and ``Shift+ArrowDown``."""
        for key in keys:
            name = key.removeprefix("Shift+")
            event: dict[str, Any] = {"key": name, "modifiers": 0 if name == key else _SHIFT}
            event |= {"windowsVirtualKeyCode": _CODES[name]} if name in _CODES else {"text": name}
            if name == "Enter":
                event["text"] = "\r"
            self.send("Input.dispatchKeyEvent", type="keyDown", **event)
            self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def write(self, text: str) -> None:
        """Write text where the focus is."""
        self.send("Input.insertText", text=text)

    def click(self, expression: str, count: int = 1) -> None:
        """Click on the middle of an element, given as an expression of JavaScript."""
        middle = "(box => [box.x + box.width / 2, box.y + box.height / 2])(one.getBoundingClientRect())"
        x, y = self.evaluate(f"(one => {{one.scrollIntoView({{block: 'center'}}); return {middle}}})({expression})")
        for number in range(1, count + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=number)

    def screenshot(self, path: Path) -> None:
        """Write a picture of the window."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))


@contextmanager
def browse() -> Iterator[Page]:
    """Start headless Chromium with an empty page."""
    inner_in, sending = os.pipe()
    receiving, inner_out = os.pipe()
    # Chromium reads from descriptor 3 and writes to 4; higher copies of them cannot be overwritten by these.
    copies = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (inner_in, inner_out)]
    redirected = f'exec "$@" 3<&{copies[0]} 4>&{copies[1]}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        command = [str(CHROMIUM), *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            ["bash", "-c", redirected, "bash", *command],
            pass_fds=copies,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for one in (inner_in, inner_out, *copies):
            os.close(one)
        page = Page(sending, receiving)
        try:
            yield page
        finally:
            process.kill()
            process.wait()
            os.close(sending)
