"""A headless Chromium, driven through a pipe by its own protocol; for tests that look at a page as a reader does.

Source: https://chromedevtools.github.io/devtools-protocol/
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
_PATIENCE = 120.0  # seconds
#: It reads from file 3 and writes to file 4, which may be taken here.
_START = (
    "import fcntl, os, sys; found = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 20) for fd in sys.argv[1:3]];"
    " os.dup2(found[0], 3); os.dup2(found[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """One tab. `faults` holds every error that the console or the page's code reported."""

    def __init__(self, sent: int, got: int) -> None:
        self._sent, self._got = sent, got
        self._number, self._left = 0, b""
        self.faults: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    _session = None

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        request |= {"sessionId": self._session} if self._session else {}
        os.write(self._sent, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            for message in self._read():
                self._note(message)
                if message.get("id") == self._number:
                    assert "error" not in message, (method, message["error"])
                    result: dict[str, Any] = message["result"]
                    return result
        raise TimeoutError(method)

    def _read(self) -> Iterator[dict[str, Any]]:
        got = os.read(self._got, 1 << 20)
        assert got, "the browser has ended"
        *whole, self._left = (self._left + got).split(b"\0")
        return map(json.loads, whole)

    def _note(self, message: Mapping[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(told["exceptionDetails"].get("exception", told))[:500])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.faults.append(told["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.faults.append(json.dumps(told["args"])[:500])

    def run(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str) -> None:
        self.wait(lambda: self.run(script), script)

    def wait(self, check: Callable[[], bool], name: str = "a check") -> None:
        deadline = time.monotonic() + _PATIENCE
        while not check():
            assert time.monotonic() < deadline, f"never true: {name}"
            time.sleep(0.02)

    def drag(self, start: Sequence[float], end: Sequence[float]) -> None:
        moves = [("Moved", start, 0), ("Pressed", start, 1), ("Moved", end, 1), ("Released", end, 0)]
        for kind, (x, y), pressed in moves:
            place = {"x": x, "y": y, "button": "none" if kind == "Moved" and not pressed else "left"}
            self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", buttons=pressed, clickCount=1, **place)

    def open(self, page: Path, place: str = "", *, width: int = 1280, dark: bool = False) -> None:
        """Open a page, or an entry of it (`/3`), at a width of the window, and wait until it is there."""
        self.call("Page.navigate", url="about:blank")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=page.resolve().as_uri() + (f"#{place}" if place else ""))
        self.until("location.protocol === 'file:' && !!document.documentElement?.dataset.ready")

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "ArrowDown": 40, "ArrowRight": 39, "End": 35}
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    there, sent = os.pipe()
    got, back = os.pipe()
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
               "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe")  # fmt: skip
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        command = [sys.executable, "-c", _START, str(there), str(back), PROGRAM, *options, f"--user-data-dir={home}"]
        silent: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        process = subprocess.Popen(command, pass_fds=(there, back), **silent)
        os.close(there)
        os.close(back)
        try:
            yield Browser(sent, got)
        finally:
            process.terminate()
            process.wait(30)
            os.close(sent)
            os.close(got)
