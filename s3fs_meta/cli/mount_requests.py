"""What commands ask of a running mount, and what the mount answers to: names, forms, waiting.

Owns: the commands of the control socket.

    status    → figures (``mount_figures``)
    flush     → {"published": bool, "txg": number}, with progress
              and {"waits": why} when the bucket takes no uploads
    finished  one event at once, then the same, then
              {"complete": bool, "why": text, "kind": its class}; answered when the last flush of a
                mount that is ending is over
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, Final

import trio

from s3fs_meta.cli.front import Front
from s3fs_meta.cli.places import Place
from s3fs_meta.control import client
from s3fs_meta.control.protocol import Message, Report
from s3fs_meta.errors import ControlError, NotMountedError
from s3fs_meta.sync.state_dir import StateDir

STATUS: Final = "status"
FLUSH: Final = "flush"
FINISHED: Final = "finished"

ENDING: Final = "ending"  # state of a mount that is unmounted and still uploads


async def request_status(place: Place) -> dict[str, Any]:
    """Return the figures of a mount.

    Raises:
        NotMountedError: there is none.
    """
    with _named(place):
        return await client.call(place.state, STATUS)


async def request_flush(place: Place, front: Front) -> dict[str, Any]:
    """Have a mount carry everything to the bucket.

    Raises:
        NotMountedError: there is none.
        ControlError: it could not.
    """
    with _named(place):
        return await client.call(place.state, FLUSH, report=_shown(front))


async def wait_finished(place: Place, front: Front, waiting: trio.Event) -> dict[str, Any]:
    """Wait until a mount that is ending, or is about to, has ended; return how.

    Args:
        place: whose mount.
        front: is shown how far the last upload is.
        waiting: set when the mount knows that somebody waits, or is gone already.

    Returns:
        ``complete``: the bucket holds everything; ``why``: what was in the way; ``kind``: the
        class of that error, where there was one.
    """
    show = _shown(front)

    def report(event: Message) -> None:
        waiting.set()
        show(event)

    result: dict[str, Any] = {"complete": False, "why": "its last words were missed; see its log"}
    try:
        with contextlib.suppress(NotMountedError, ControlError):
            result = await client.call(place.state, FINISHED, report=report)
    finally:
        waiting.set()
    state_dir = StateDir(place.state)
    await state_dir.lock(wait_s=math.inf)
    state_dir.unlock()
    return result


def _shown(front: Front) -> Report:
    def show(event: Message) -> None:
        if "what" in event:
            front.progress(event["what"], event["done"], event["total"])
        elif "waits" in event:
            front.notice(f"waiting for the bucket, all is kept here: {event['waits']}")

    return show


@contextlib.contextmanager
def _named(place: Place) -> Iterator[None]:
    """Name the filesystem as the user does when nobody answers."""
    try:
        yield
    except NotMountedError as exc:
        raise NotMountedError(place.mountpoint or place.url) from exc
