"""A headless Chromium, controlled over a pipe with the DevTools protocol.

The messages are JSON, and each ends with a NUL byte. Source:
https://chromedevtools.github.io/devtools-protocol
"""

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final

from s3fs_meta.mount.http_server import ACCEPTED
from tests.browse.serving import Served
from tests.polling import PROCESS_S_MAX

PROGRAM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


class CallError(AssertionError):
    """The browser answered a call with an error, for example because the page was replaced."""


class Browser:
    """A page in a running browser."""

    def __init__(self, replies: BinaryIO, requests: BinaryIO) -> None:
        self._replies = replies
        self._requests = requests
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._frame = ""  # The main frame of the page, which may contain other frames.
        self.messages: list[str] = []  # Console messages, such as security policy violations.
        self.loads = 0  # The number of loaded pages, except "please wait" pages.
        self._waits = False  # True while a "please wait" page is shown.
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._frame = target
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _receive(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._replies.read(1)) not in {b"", b"\0"}:
            text += byte
        found = json.loads(text)
        assert isinstance(found, dict)
        params = found.get("params", {})
        is_document = found.get("method") == "Network.responseReceived" and (
            (params["type"], params.get("frameId")) == ("Document", self._frame)
        )
        if is_document:
            self._waits = params["response"]["status"] == ACCEPTED
        if found.get("method") == "Page.loadEventFired" and not self._waits:
            self.loads += 1
        if found.get("method") == "Log.entryAdded":
            entry = found["params"]["entry"]
            self.messages.append(f"{entry['text']} {entry.get('url', '')}".rstrip())
        if found.get("method") in {"Runtime.exceptionThrown", "Page.javascriptDialogOpening"}:
            self.messages.append(json.dumps(found["params"]))
        return found

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        number = next(self._numbers)
        session = {} if self._session is None else {"sessionId": self._session}
        message = {"id": number, "method": method, "params": params, **session}
        self._requests.write(json.dumps(message).encode() + b"\0")
        self._requests.flush()
        while (reply := self._receive()).get("id") != number:
            pass
        if "error" in reply:
            raise CallError(reply["error"])
        result = reply["result"]
        assert isinstance(result, dict)
        return result

    def go(self, url: str) -> None:
        """Load a page and wait until it is complete."""
        self.call("Page.navigate", url=url)
        self.wait_for_load()
        while self.run("location.href") == "about:blank":  # The empty first page is still loading.
            self.wait_for_load()

    def wait_for_load(self, after: int | None = None) -> None:
        """Wait until the next page is loaded, or until more than *after* pages have been loaded."""
        after = self.loads if after is None else after
        while self.loads <= after:
            self._receive()

    @property
    def address(self) -> str:
        """Return the URL of the page, even while it is being loaded."""
        return str(self.call("Page.getFrameTree")["frameTree"]["frame"]["url"])

    def run(self, script: str) -> Any:
        """Run a script to which the page's security policy does not apply; return its value."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for_text(self, text: str) -> None:
        """Wait until the current page, or a page that replaces it, contains *text*."""
        script = "document.body === null ? '' : document.body.textContent"
        found = ""
        while text not in found:
            time.sleep(0.01)
            with suppress(CallError):
                found = self.run(script)

    def log_in(self, served: Served) -> None:
        """Set the cookie of a running browse command in the browser."""
        name, _, value = served.cookie.partition("=")
        url = served.url("/")
        self.call("Network.setCookie", name=name, value=value, url=url, path=served.root)

    def look(self, width: int, height: int, scheme: str) -> None:
        """Set the size of the window and the light or dark colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self) -> bytes:
        """Return the content of the window as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


def _end_group(group: int) -> None:
    """Kill the remaining processes of a browser, which still write into its profile."""
    deadline_s = time.monotonic() + PROCESS_S_MAX
    while True:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return
        assert time.monotonic() < deadline_s, "the processes of the browser did not exit in time"
        time.sleep(0.01)


@contextmanager
def started() -> Iterator[Browser]:
    """Run a browser until the context ends."""
    assert PROGRAM is not None
    their_reading, writing = os.pipe()
    reading, their_writing = os.pipe()
    with tempfile.TemporaryDirectory() as profile:
        words = [
            "bash", "-c", f'exec "$@" 3<&{their_reading} 4>&{their_writing}', "bash",
            PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ]  # fmt: skip
        with subprocess.Popen(
            words,
            pass_fds=(their_reading, their_writing),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            os.close(their_reading)
            os.close(their_writing)
            try:
                with os.fdopen(reading, "rb") as replies, os.fdopen(writing, "wb") as requests:
                    yield Browser(replies, requests)
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                _end_group(process.pid)
