"""Chromium, spoken to over a pipe: opens pages, asks them, takes pictures of them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One tab. Messages are JSON with a NUL at the end, as --remote-debugging-pipe has them."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._kept, self._count, self._session = b"", 0, ""
        self.said: list[str] = []
        self.asked: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, path: Path) -> None:
        self.go(path.as_uri())

    def go(self, url: str) -> None:
        self._call("Page.navigate", url=url)
        self.ask(
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))"
        )

    def show(self, *, width: int, media: str = "screen", scheme: str = "light") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media=media, features=features)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def ask(self, script: str) -> Any:
        """What an expression is worth in the page; AssertionError with what it threw."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def picture(self, path: Path) -> None:
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(taken["data"]))

    def allow_downloads(self, folder: Path) -> None:
        self._call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def move_to(self, x: float, y: float) -> None:
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def _call(self, method: str, **parameters: Any) -> Any:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled":
                self.said.append(json.dumps(event["params"]))
            case "Network.requestWillBeSent":
                self.asked.append(event["params"]["request"]["url"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._kept:
            received = os.read(self._from, 1 << 20)
            assert received, "the browser ended"
            self._kept += received
        whole, _, self._kept = self._kept.partition(b"\0")
        message: dict[str, Any] = json.loads(whole)
        return message


@contextmanager
def started_browser(profile: Path) -> Iterator[Browser]:
    program = chromium()
    assert program is not None
    browser_reads, we_write = os.pipe()
    we_read, browser_writes = os.pipe()
    # The browser takes its messages from 3 and answers on 4.
    shell = f'exec 3<&{browser_reads} 4>&{browser_writes}; exec "$0" "$@"'
    process = subprocess.Popen(
        ["bash", "-c", shell, program, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(browser_reads, browser_writes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(browser_reads)
    os.close(browser_writes)
    try:
        yield Browser(we_write, we_read)
    finally:
        os.close(we_write)
        os.close(we_read)
        process.terminate()
        process.wait(timeout=30)
