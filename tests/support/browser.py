"""A headless Chromium of the system, driven by its DevTools protocol over a pipe: no package, and no port."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60.0
# Chromium reads commands from descriptor 3 and writes answers to 4.
LAUNCH = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def chromium() -> str | None:
    """Where it is, None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page. troubles: what went wrong in it: exceptions, and what its security policy or the network refused."""

    def __init__(self, program: str, profile: Path) -> None:
        self.troubles: list[str] = []
        self._last, self._answers, self._held = 0, {}, b""
        theirs_in, self._commands = _pipe()
        self._events, theirs_out = _pipe()
        options = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run"]
        options += ["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync"]
        options += ["--no-sandbox"] if os.geteuid() == 0 else []  # root has no sandbox
        command = [sys.executable, "-c", LAUNCH, str(theirs_in), str(theirs_out), program, *options, "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._session: str | None = None
        target = self._page()
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def _page(self) -> str:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for target in self.call("Target.getTargets")["targetInfos"]:
                if target["type"] == "page":
                    return str(target["targetId"])
            time.sleep(0.05)
        raise AssertionError("the browser opened no page")

    def call(self, method: str, **params: Any) -> Any:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while self._last not in self._answers:
            self._read(end - time.monotonic())
        answer = self._answers.pop(self._last)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _read(self, timeout: float) -> None:
        assert select.select([self._events], [], [], max(timeout, 0))[0], "the browser does not answer"
        data = os.read(self._events, 1 << 20)
        assert data, "the browser has ended"
        *messages, self._held = (self._held + data).split(b"\0")
        for text in messages:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            elif message["method"] == "Runtime.exceptionThrown":
                self.troubles.append(json.dumps(message["params"]["exceptionDetails"])[:1000])
            elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.troubles.append(message["params"]["entry"]["text"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, or of its promise."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until it is true."""
        end = time.monotonic() + PATIENCE
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"it never came: {expression}; {self.troubles}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """At the place where it shows, so that what is hidden or covered cannot be clicked."""
        where = self.evaluate(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{ block: "center" }});
                const box = element.getBoundingClientRect();
                const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
                const there = document.elementFromPoint(x, y);
                return element.contains(there) ? [x, y] : null;
            }})()"""
        )
        assert where is not None, f"{selector} cannot be clicked"
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def press_enter(self) -> None:
        key: dict[str, Any] = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        self.call("Input.dispatchKeyEvent", type="keyDown", **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def screen(self, width: int, height: int, dark: bool = False) -> None:
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._commands)
        os.close(self._events)


def _pipe() -> tuple[int, int]:
    """Descriptors above those that the browser's own are made of."""
    found = os.pipe()
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in found]
    for one in found:
        os.close(one)
    return high[0], high[1]
