"""A headless Chromium, driven over its debugging pipe: network requests, console messages and behaviour of a page.

Needs nothing but the browser. Messages are JSON with a zero byte after each, on descriptors 3 (to the browser) and 4
(from it).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
TIMEOUT_S = 60.0
EXEC_BROWSER = """\
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """Return the path of a Chromium; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """Tab with the URLs of its `requests` and its error and console messages (`complaints`)."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def open(self, path: Path) -> None:
        """Load a file and wait for it."""
        self._ask("Page.navigate", url=path.as_uri())
        self.value("new Promise(done => document.readyState === 'complete' ? done(1) : onload = () => done(1))")

    def value(self, script: str) -> Any:
        """Evaluate an expression in the page."""
        response = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in response, response
        return response["result"].get("value")

    def look(self, *, width: int, dark: bool = False, media: str = "screen") -> None:
        """Set the width, the colour scheme and the medium."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        shot = self._ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])
            self._notice(answer)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self._from, 1 << 20) if ready else b""
            assert chunk, "the browser closed its pipe or timed out"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _notice(self, event: dict[str, Any]) -> None:
        method, details = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(details["exceptionDetails"]))
        if method == "Runtime.consoleAPICalled":
            self.complaints.append(str(details["args"]))
        if method == "Log.entryAdded":
            self.complaints.append(details["entry"]["text"])


def _high(descriptor: int) -> int:
    """Return a duplicate descriptor with a number above 3 and 4."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


@contextmanager
def open_browser(profile: Path) -> Iterator[Page]:
    """Start a browser with its own profile, and end it afterwards."""
    program = find_browser()
    assert program
    browser_in, own_out = map(_high, os.pipe())
    own_in, browser_out = map(_high, os.pipe())
    # The browser expects descriptors 3 and 4: a small process duplicates them and executes the browser.
    command = [program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", EXEC_BROWSER, str(browser_in), str(browser_out), *command],
        pass_fds=(browser_in, browser_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(browser_in)
    os.close(browser_out)
    try:
        yield Page(own_out, own_in)
    finally:
        process.kill()
        process.wait()
        os.close(own_out)
        os.close(own_in)
