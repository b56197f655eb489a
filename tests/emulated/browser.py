"""A headless Chromium, driven through a pipe by the DevTools protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import needs

NAMES = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """One page.  `said` has its console's messages and uncaught exceptions."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0)
        self._rest, self._number, self._session = b"", 0, dict[str, str]()
        self.said: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, path: Path, width: int, scheme: str) -> None:
        """Shows a file on a screen of a width, without a network, to who prefers light or dark."""
        self._ask("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._ask("Page.navigate", url=path.as_uri())
        while self.value("document.readyState") != "complete":
            pass

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives, as JSON has it."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _ask(self, method: str, **params: Any) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._hear()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _hear(self) -> dict:
        while b"\0" not in self._rest:
            data = self._read.read(1 << 16)
            assert data, "the browser is gone"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        if message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.said.append(json.dumps(message["params"]))
        return message


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Chromium with its files in a folder.  Where there is none the test is skipped, except in CI: there it fails."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        needs.absent("no Chromium: apt-get install chromium")
    from_test, to_browser = os.pipe()
    from_browser, to_test = os.pipe()

    def pipes() -> None:  # the protocol's file descriptors are 3 and 4
        os.dup2(os.dup(from_test), 3)
        os.dup2(os.dup(to_test), 4)

    command = [
        program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
        "--disable-dev-shm-usage", f"--user-data-dir={folder}", "--no-first-run",
    ]  # fmt: skip
    with subprocess.Popen(
        command, close_fds=False, preexec_fn=pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        os.close(from_test)
        os.close(to_test)
        try:
            yield Browser(from_browser, to_browser)
        finally:
            process.terminate()
