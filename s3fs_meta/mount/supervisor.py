"""Messages of a mount to its service manager: status, requests for time, watchdog.

A service manager such as systemd passes a socket in NOTIFY_SOCKET. Without the variable, nothing
is sent.

Owns: the texts and the times of messages. Does not know: how statistics are computed.
A mount requests more time while its start makes progress, and while the bucket accepts the last
upload. An unreachable bucket delays a shutdown by at most the unit's TimeoutStopSec=.
Sources: sd_notify(3); sd_watchdog_enabled(3); systemd.service(5), "TimeoutStopSec=".
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from s3fs_meta.console import output
from s3fs_meta.console.ui import Front
from s3fs_meta.mount import process
from s3fs_meta.mount.limits import (
    SUPERVISED_CHARS_MAX,
    SUPERVISED_END_S,
    SUPERVISED_START_S,
    SUPERVISED_STATUS_S,
)
from s3fs_meta.mount.statistics import health

Figures = Callable[[], Mapping[str, Any]]
_EVERYTHING: Final = "everything is in the bucket"


def watchdog_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Return the interval at which the watchdog expects messages; None without a watchdog."""
    value = environment.get("WATCHDOG_USEC", "")
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(value) / 1e6 if value.isdecimal() and int(value) > 0 else None


def status_text(figures: Mapping[str, Any]) -> str:
    """Return one line for ``systemctl status``: state, reason, outage, changes to upload."""
    found = health.exposure(figures)
    parts = [figures["state"], figures["why"], figures["offline"], *_outage(figures)]
    if found.content_bytes:
        parts.append(f"{output.human_bytes(found.content_bytes)} to upload")
    if found.age_s:
        parts.append(f"the oldest change is {found.age_s:.0f} s old")
    elif not found.content_bytes:
        parts.append(_EVERYTHING)
    return _one_line("; ".join(filter(None, parts)))


def _outage(figures: Mapping[str, Any]) -> list[str]:
    errors = [figures[part]["last_error"] for part in ("upload", "chain")]
    return [f"the bucket accepts no upload: {error}" for error in errors if error][:1]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:SUPERVISED_CHARS_MAX]


def _more_time(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


class Supervisor:
    """Sends the messages of a mount while it serves and while it ends."""

    def __init__(self, figures: Figures) -> None:
        """Prepare messages; send nothing.

        Args:
            figures: returns the current statistics of the mount, including its state.
        """
        self._figures = figures
        self._is_ending = False
        self._text = ""
        self._owed: list[str] = []  # lines that could not be sent to systemd yet

    async def run(self) -> None:
        """Send the status if it has changed, at intervals, and a sign of life to the watchdog.

        The task runs on the event loop, so a stalled loop sends nothing.
        """
        if process.ENVIRONMENT_NAME not in os.environ:
            return
        limit_s = watchdog_s(os.environ, os.getpid())
        every_s = SUPERVISED_STATUS_S if limit_s is None else min(SUPERVISED_STATUS_S, limit_s / 2)
        while True:
            self.report(*([] if limit_s is None else ["WATCHDOG=1"]))
            await trio.sleep(every_s)

    def ready(self) -> None:
        """Report that the filesystem can be used. Never yields to other tasks."""
        self.report("READY=1")

    def ending(self) -> None:
        """Report that the mount is ending; from now on, request more time. Never yields."""
        if not self._is_ending:
            self._is_ending = True
            self.report("STOPPING=1")

    def report(self, *lines: str) -> None:
        """Send *lines*, the status if it has changed, and a request for time if the mount ends.

        If the service manager does not read its messages, the next call sends *lines* again.
        """
        if process.ENVIRONMENT_NAME not in os.environ:
            return
        figures, owed = self._figures(), list(dict.fromkeys([*self._owed, *lines]))
        text, sent = status_text(figures), list(owed)
        if text != self._text:
            sent.append(f"STATUS={text}")
        if self._is_ending and not _outage(figures):
            sent.append(_more_time(SUPERVISED_END_S))
        if not sent or process.notify("\n".join(sent)):
            self._text, self._owed = text, []
        else:
            self._owed = owed


class SupervisedFront:
    """A front that also sends the progress of a mount's start to the service manager."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._text = ""

    def notice(self, text: str) -> None:
        """Show one line to the user."""
        self._front.notice(text)

    def progress(self, what: str, done: int, total: int) -> None:
        """Update a progress bar and the status, and request more time."""
        self._front.progress(what, done, total)
        text = _one_line(f"{what}: {done * 100 // max(total, 1)} %")
        if text != self._text:
            self._text = text
            process.notify(f"STATUS={text}\n{_more_time(SUPERVISED_START_S)}")

    def ask(self, prompt: str) -> str:
        """Ask the user for a secret on the terminal."""
        return self._front.ask(prompt)

    def ready(self) -> None:
        """Stop showing the progress of the mount's start."""
        self._front.ready()


def supervised(front: Front) -> Front:
    """Return a front that also reports to the service manager, if one supervises the mount."""
    return SupervisedFront(front) if process.ENVIRONMENT_NAME in os.environ else front
