"""The output of a command that waits until a mount has uploaded its changes.

Owns: the texts and times of the output lines. Does not know: uploads, the waiting command.
A mount answers ``status`` without the bucket, so lines appear even while the bucket is silent.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import trio

from s3fs_meta.background_task import background_task
from s3fs_meta.console.interruption import Remains
from s3fs_meta.console.output import human_bytes, human_duration
from s3fs_meta.console.ui import Front
from s3fs_meta.counted import counted
from s3fs_meta.errors import ControlError
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.limits import (
    SILENCE_SHOWN_S_MIN,
    UPLOAD_AWAY_S_MIN,
    UPLOAD_FORCE_S_MIN,
    UPLOAD_LINE_PAUSE_S_MAX,
    UPLOAD_LINE_PAUSE_S_MIN,
    UPLOAD_POLL_S,
)
from s3fs_meta.mount.requests.control_api import request_status
from s3fs_meta.mount_errors import NotMountedError, UnansweredError


class RemainingUpload(NamedTuple):
    """The changes of a mount that are not in the bucket, and the state of the bucket."""

    where: str  # URL of the bucket, with the server
    content_bytes: int
    blocks: int
    packs: int  # number of packs that the content would fill uncompressed; 0 if unknown
    has_changes: bool  # True if metadata changes have not been uploaded
    rate: tuple[str, ...]  # speed and remaining time of the upload, as text
    unreachable_s: float  # time since the bucket began to fail; 0 if it does not fail
    silent_s: float  # time since the last response of the bucket, counted while requests wait
    why: str  # last error of the bucket or of an upload; "" after a successful upload
    ships: bool  # False if the mount uploads nothing more, for example because it is fenced

    @classmethod
    def of(cls, figures: Mapping[str, Any]) -> "RemainingUpload":
        """Return the description of a mount's upload, from the statistics of the mount."""
        upload, chain = figures["upload"], figures["chain"]
        # An older version of the daemon reports neither outages nor the endpoint.
        outage, endpoint = figures.get("outage", {}), figures.get("endpoint", "")
        return cls(
            where=f"{figures['url']} at {endpoint}" if endpoint else figures["url"],
            content_bytes=upload["pending_bytes"],
            blocks=upload["pending_blocks"],
            packs=upload.get("pending_packs", 0),
            has_changes=bool(chain["unshipped_since_ns"]),
            rate=rate_of(upload),
            unreachable_s=outage.get("age_s", 0.0),
            silent_s=outage.get("silent_s", 0.0),
            why=outage.get("why") or upload["last_error"] or chain["last_error"],
            ships=figures.get("ships", True),  # an older version of the daemon does not report it
        )

    @property
    def described(self) -> str:
        """Return a description of the changes as a plural noun phrase."""
        if self.blocks:
            blocks = counted(self.blocks, "block")
            packs = f" (about {counted(self.packs, 'pack')})"
            return f"{human_bytes(self.content_bytes)} in {blocks}{packs if self.packs else ''}"
        return "changes of the metadata" if self.has_changes else "the last changes"

    @property
    def is_anything(self) -> bool:
        """Return whether the daemon has changes to upload."""
        return bool(self.blocks or self.has_changes)

    @property
    def is_silent(self) -> bool:
        """Return whether the bucket has not responded for SILENCE_SHOWN_S_MIN."""
        return self.silent_s >= SILENCE_SHOWN_S_MIN

    @property
    def is_unreachable(self) -> bool:
        """Return whether an outage exceeds UPLOAD_AWAY_S_MIN, or the bucket refused an upload."""
        return bool(self.why) and not 0 < self.unreachable_s < UPLOAD_AWAY_S_MIN


def rate_of(upload: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the speed and the remaining time of the upload as texts; empty if unknown."""
    per_s = upload.get("sent_bytes_per_s")
    if per_s is None:
        return ()
    speed, left_s = f"{human_bytes(per_s)}/s", upload["left_s"]
    # Without content to upload, only metadata of unknown size remains.
    return (speed, f"about {human_duration(left_s)}") if left_s else (speed,)


class UploadWatch:
    """Prints the progress of the upload, or the reason why nothing is uploaded."""

    def __init__(
        self, place: Target, front: Front, remains: Remains | None = None, advice: str = ""
    ) -> None:
        """Prepare to report the upload; print nothing yet.

        Args:
            place: the filesystem of the mount.
            front: shows the lines.
            remains: receives a description of the changes that are not uploaded.
            advice: last sentence of the description, with the mount's state and the next command.
        """
        self._place = place
        self._front = front
        self._remains = remains or Remains("")
        # Result of the last poll; None before the first poll.
        self._left: RemainingUpload | None = None
        self._is_announced = False
        self._is_unreachable = False
        self._is_mute = False  # True if the daemon did not answer the last poll
        self._next_line_s = -math.inf
        self._pause_s = UPLOAD_LINE_PAUSE_S_MIN
        self._advice = advice
        self._give_up: Callable[[], None] = _wait_longer
        self._describe_remains()

    def advise(self, advice: str) -> None:
        """Replace the advice at the end of the description of unuploaded changes."""
        self._advice = advice
        self._describe_remains()

    def on_outage(self, give_up: Callable[[], None]) -> None:
        """Make each poll call *give_up* if an outage has lasted UPLOAD_FORCE_S_MIN."""
        self._give_up = give_up

    def running(self) -> AbstractAsyncContextManager[None]:
        """Print lines until the context ends; print nothing if it ends before the first poll."""
        return background_task(self._run)

    async def _run(self) -> None:
        while True:
            await trio.sleep(UPLOAD_POLL_S)
            try:
                figures = await request_status(self._place)
            except NotMountedError:
                return  # the daemon has exited, and the waiting command reports the outcome
            except UnansweredError:
                continue  # the next poll shows whether the daemon has exited
            except ControlError as exc:
                if not self._is_mute:
                    self._front.notice(exc.message)
                self._is_mute = True
            else:
                self._is_mute = False
                self.note(RemainingUpload.of(figures))

    def note(self, left: RemainingUpload) -> None:
        """Process the result of a poll; print a line if one is due. Never yields to other tasks."""
        now_s = trio.current_time()
        self._left = left
        self._describe_remains()
        if left.unreachable_s >= UPLOAD_FORCE_S_MIN:
            self._give_up()
        if not left.ships:
            return  # the outcome of the mount says so
        if not self._is_announced and left.is_anything:
            self._is_announced = True
            self._print(f"uploading {left.described} to {left.where}")
        if left.is_unreachable is not self._is_unreachable:
            self._is_unreachable = left.is_unreachable
            self._pause_s = UPLOAD_LINE_PAUSE_S_MIN
            self._print(
                _waiting(left) if left.is_unreachable else f"the bucket {left.where} responds again"
            )
        elif now_s >= self._next_line_s and (left.is_anything or left.is_silent):
            self._print(_waiting(left) if left.is_unreachable else _progress(left))

    def _print(self, text: str) -> None:
        self._front.notice(text)
        self._next_line_s = trio.current_time() + self._pause_s
        self._pause_s = min(2 * self._pause_s, UPLOAD_LINE_PAUSE_S_MAX)

    def _describe_remains(self) -> None:
        left = self._left
        if left is None or not left.is_anything:
            what = "the last changes may be only on this host"
        else:
            what = f"not in the bucket yet, only on this host: {left.described}"
        self._remains.change(f"{what}. {self._advice}" if self._advice else what)


def _wait_longer() -> None:
    """Do nothing: by default, the command waits for the bucket without a limit."""


def _progress(left: RemainingUpload) -> str:
    parts = [f"{left.described} to upload", *left.rate]
    if left.is_silent:
        parts.append(f"no response from {left.where} for {left.silent_s:.0f} s")
    return ", ".join(parts)


def _waiting(left: RemainingUpload) -> str:
    """Return the line about an outage, with the server, the reason and advice."""
    problem = f"waiting for {left.where}"
    if left.unreachable_s:
        problem = f"requests to {left.where} have failed for {left.unreachable_s:.0f} s"
    return (
        f"{problem}: {left.why}; {left.described} to upload; no change is lost, and the mount will"
        " retry"
    )
