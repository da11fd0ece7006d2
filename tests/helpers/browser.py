"""A headless Chromium that is told what to do over two pipes (the DevTools protocol)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0


def browser() -> str | None:
    """The program, where there is one."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Tab:
    """One page."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._number, self._session = to, back, 0, ""
        self._left = b""

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            part = os.read(self._back, 1 << 16)
            assert part, "the browser has gone"
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        made: dict[str, Any] = json.loads(message)
        return made

    def open(self, address: str) -> None:
        target = self.ask("Target.createTarget", url=address)["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.ask("Page.bringToFront")

    def value(self, script: str) -> Any:
        """Of a JavaScript expression."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Until an expression is true."""
        until = time.monotonic() + PATIENCE_S
        while not self.value(script):
            assert time.monotonic() < until, script
            time.sleep(0.05)

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key, as a person presses it: what it does by itself is done."""
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **more,
            )

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`, as the system says it."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", features=features)


@contextmanager
def tab(folder: Path, address: str) -> Iterator[Tab]:
    """A page at `address`; `folder` takes the browser's profile."""
    program = browser()
    assert program is not None
    ours, theirs = os.pipe(), os.pipe()
    words = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    words += [f"--user-data-dir={folder / 'profile'}", "--window-size=1200,900", "about:blank"]
    # The protocol's pipes are file descriptors 3 and 4.
    shell = f'exec "$@" 3<&{ours[0]} 4>&{theirs[1]}'
    made = subprocess.Popen(
        ["bash", "-c", shell, "browser", *words],
        pass_fds=(ours[0], theirs[1]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(ours[0])
    os.close(theirs[1])
    try:
        page = Tab(ours[1], theirs[0])
        page.open(address)
        yield page
    finally:
        os.close(ours[1])
        os.close(theirs[0])
        made.terminate()
        made.wait(timeout=30)
