"""Chromium without a window, over its DevTools protocol: enough to look at a page and touch it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Page", "chromium", "opened"]

#: Seconds that the browser may take for any one thing, on a busy machine.
PATIENCE = 60
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    """The browser's path, or ``""``."""
    return next((path for name in _NAMES if (path := shutil.which(name))), "")


class Page:
    """One tab: what it said on its console and which requests it made, from the beginning."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._count = socket, 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of one command of the protocol."""
        self._count += 1
        wanted = self._count
        self._socket.send(json.dumps({"id": wanted, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == wanted:
                assert "error" not in message, message
                return message["result"]
            self._heard(message)

    def _heard(self, message: Any) -> None:
        method, found = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"a dialog: {found['message']}")
        elif method == "Runtime.exceptionThrown":
            details = found["exceptionDetails"]
            thrown = details.get("exception", {})
            self.complaints.append(thrown.get("description", details["text"])[:500])
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning"):
            self.complaints.append(str([a.get("value") for a in found["args"]]))
        elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.complaints.append(found["entry"]["text"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What the expression is in the page, as JSON; a promise is waited for."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Waits for the expression to be true."""
        end = time.monotonic() + PATIENCE
        while not self.value(f"!!({expression})"):
            assert time.monotonic() < end, f"never came true: {expression}"
            time.sleep(0.05)

    def media(self, **features: str) -> None:
        """``prefers_color_scheme="dark"``."""
        listed = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.call("Emulation.setEmulatedMedia", features=listed)

    def screen(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def pointer(self, kind: str, x: float, y: float) -> None:
        """``kind``: ``mouseMoved``, ``mousePressed``, ``mouseReleased``."""
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def click(self, selector: str) -> None:
        """On the middle of the first element that the selector finds, by the mouse."""
        x, y = self.middle(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.pointer(kind, x, y)

    def middle(self, selector: str) -> tuple[float, float]:
        box = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return box[0], box[1]

    def key(self, name: str) -> None:
        text = {"Enter": "\r", " ": " "}.get(name)
        code = {"Tab": 9, "Enter": 13, " ": 32}[name]
        more = {"text": text} if text else {}
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", key=name, windowsVirtualKeyCode=code, **more
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, windowsVirtualKeyCode=code)

    def picture(self, path: Path) -> None:
        found = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def opened() -> Iterator[Page]:
    """An empty tab of a browser of its own, which ends with it."""
    import websocket

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            chromium(),
            "--headless=new",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            # The page is our own, and a container's root cannot have the sandbox.
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "about:blank",
        ]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                port = _port(Path(folder) / "DevToolsActivePort", process)
                direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
                with direct.open(f"http://127.0.0.1:{port}/json", timeout=PATIENCE) as answer:
                    tab = next(t for t in json.load(answer) if t["type"] == "page")
                socket = websocket.create_connection(
                    tab["webSocketDebuggerUrl"], timeout=PATIENCE, suppress_origin=True
                )
                with contextlib.closing(socket):
                    yield Page(socket)
            finally:
                process.terminate()
                process.wait(PATIENCE)


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            return int(file.read_text().splitlines()[0])
        time.sleep(0.05)
    raise AssertionError("the browser did not open its port")
