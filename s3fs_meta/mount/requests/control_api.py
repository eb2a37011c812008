"""The client side of control requests to a running mount.

Owns: the commands of the control socket, except ``remove`` (``mount_paths``). Each line shows a
command, its arguments and its response; progress events may precede the response.

    status    → statistics (``figures``)
    requesters {"within_s": seconds} → {"span_s": seconds, "requests": number, "processes":
                [{"pid", "name", "uid", "requests"}]}, see ``requesters``
    flush     {"image": bool} → {"published": bool, "txg": number, "uncollected": reason why the
                kernel may have earlier data of open files, or ""}, with progress; with an image
                also {"image_txg": number}
    promote   {"takeover": bool} → {"txg": number, "epoch": number}
    counts    → {"state": path}; the mount first saves its request counts (``request_log``)
    end       {"keep": bool} → {}; the mount then refuses further changes and ends, even while
                programs use it
    unshipped → {"paths": [text], "complete": bool}; paths with changes that are not in the bucket
    remount, remounted  see ``remount``
    reclaim   {"dry_run": bool} → {"floor": txg, "deleted": bool,
                "objects": {kind: {"count", "bytes"}}}, with progress
    remove    {"parent": inode, "name": text, "ino": inode, "locked": bool, "wait": bool} → {},
                with progress if "wait" is true
    lock      {"parent": inode, "name": text, "ino": inode} → {"entries": number}, with progress
    clone     {"source": as remove, "target": {"parent", "name"}} → {"entries": number}, with
                progress
    clone_past {"source": see ``past_sources``, "target": as clone} → {"entries": number, "txg":
                number}, with progress
    finished  → {"complete": bool, "why": text, "kind": class of the error}, after the last upload
                of a mount that is ending; one empty event immediately, then progress
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import trio

from s3fs_meta.background_task import run_concurrently
from s3fs_meta.console.ui import Front
from s3fs_meta.control import client
from s3fs_meta.control.plain_call import no_report
from s3fs_meta.control.protocol import Message, Report
from s3fs_meta.errors import BusyError, ControlError
from s3fs_meta.mount.existing import mount_holders
from s3fs_meta.mount.existing.mount_holders import Holder
from s3fs_meta.mount.existing.mount_paths import REMOVE, Entry, entry_message, removal
from s3fs_meta.mount.existing.targets import Target, is_alive, outcome_of
from s3fs_meta.mount.existing.unanswered import named
from s3fs_meta.mount.limits import (
    CONTROL_ANSWER_S_MAX,
    FLUSH_PAUSE_S,
    HELD_PAUSE_S,
    HELD_S_MAX,
    MOUNTS_ASKED_MAX,
)
from s3fs_meta.mount.stores import naming_store, options_of_mount
from s3fs_meta.mount_errors import NotMountedError, SilentDaemonError
from s3fs_meta.sync.host_state.state_dir import LockWatch

STATUS: Final = "status"
REQUESTERS: Final = "requesters"
FLUSH: Final = "flush"
RECLAIM: Final = "reclaim"
FINISHED: Final = "finished"
UNSHIPPED: Final = "unshipped"
PROMOTE: Final = "promote"
END: Final = "end"
COUNTS: Final = "counts"
CLONE: Final = "clone"
CLONE_PAST: Final = "clone_past"
KILLED: Final = "killed"  # kind of outcome: the daemon was killed
UNREACHED: Final = "unreached"  # kind of outcome: the daemon runs, but cannot be reached
LOCK: Final = "lock"

ENDING: Final = "ending"  # state of an unmounted filesystem whose daemon still uploads
DETACHED: Final = "detached"  # state of a filesystem mounted only in other mount namespaces
# Kind of outcome: a read-only mount left changes of an earlier mount without uploading them.
READ_ONLY: Final = "read_only"
_Reply = TypeVar("_Reply")


class PastSource(NamedTuple):
    """A file or tree at a past point in time."""

    place: Target
    message: Message  # the source as fields of a request; ``past_sources`` documents them


async def request_status(place: Target) -> dict[str, Any]:
    """Return the statistics of a mount.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the daemon did not answer in time.
    """
    return await _ask_at_once(place, STATUS)


async def ask_each(
    places: Sequence[Target], request: Callable[[Target], Awaitable[_Reply]]
) -> list[_Reply]:
    """Send a request to all mounts concurrently; return the replies in the order of *places*.

    If several daemons do not answer, the command waits for CONTROL_ANSWER_S_MAX only once. The
    first error of a request cancels all other requests, and is raised.
    """
    replies: dict[int, _Reply] = {}
    limiter = trio.CapacityLimiter(MOUNTS_ASKED_MAX)

    async def ask_one(number: int) -> None:
        async with limiter:
            replies[number] = await request(places[number])

    await run_concurrently(partial(ask_one, number) for number in range(len(places)))
    return [replies[number] for number in range(len(places))]


async def request_requesters(place: Target, within_s: float) -> dict[str, Any]:
    """Return the processes that sent the most requests to a mount in the last *within_s* seconds.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the mount runs an older version without these counts, or did not answer in
            time.
    """
    return await _ask_at_once(place, REQUESTERS, {"within_s": within_s})


async def request_unshipped(place: Target) -> dict[str, Any]:
    """Return the paths of files whose changes are not yet in the bucket.

    Raises:
        NotMountedError: the filesystem is not mounted.
    """
    return await ask(place, UNSHIPPED)


async def request_promotion(place: Target, *, takeover: bool) -> dict[str, Any]:
    """Turn a follower into the writer.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the promotion failed; the mount remains a follower.
    """
    return await ask(place, PROMOTE, {"takeover": takeover})


async def request_end(place: Target, *, keep: bool = False) -> None:
    """Make a mount refuse further changes and end, even if programs are using it.

    Args:
        place: the filesystem of the mount.
        keep: True to end the mount without its last upload; the changes stay on this host.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the mount is still starting; nothing was changed.
    """
    await ask(place, END, {"keep": keep})


async def request_counts(place: Target) -> Path:
    """Make a mount save its request counts; return the state directory with the counts.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the mount runs an older version, which does not count requests.
    """
    return Path((await ask(place, COUNTS))["state"])


async def used_by(place: Target) -> str:
    """Return a description of the processes that use an unmounted filesystem, or "".

    A process in another mount namespace is reported without delay. Otherwise the function waits
    briefly for the daemon to exit, because the kernel may report the unmount to the daemon late.
    """
    deadline_s = trio.current_time() + HELD_S_MAX
    while True:
        try:
            found = await request_status(place)
        except (NotMountedError, ControlError):
            return ""
        if found["state"] == ENDING:
            return ""
        holders = [Holder(**one) for one in found.get("holders", ())]
        if holders or trio.current_time() >= deadline_s:
            return mount_holders.described(holders, found.get("kernel", {}).get("open_files", 0))
        await trio.sleep(HELD_PAUSE_S)


async def request_flush(place: Target, front: Front, image: bool = False) -> dict[str, Any]:
    """Make a mount upload all changes, and an image if *image* is set.

    If too many requests wait, the mount refuses this request. It is then repeated until the mount
    accepts it, so that an unmount does not fail.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the upload failed.
    """
    while True:  # ends when the mount accepts the request, or has ended
        try:
            return await ask(place, FLUSH, {"image": image}, front)
        except ControlError as exc:
            if exc.kind != BusyError.__name__:
                raise
        await trio.sleep(FLUSH_PAUSE_S)


async def request_reclaim(place: Target, front: Front, *, dry_run: bool) -> dict[str, Any]:
    """Make a mount delete unreferenced objects, or list them if *dry_run* is set.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: an object could not be listed or deleted.
    """
    return await ask(place, RECLAIM, {"dry_run": dry_run}, front)


async def request_removal(
    entry: Entry, front: Front, *, locked: bool = False, wait: bool = False
) -> dict[str, Any]:
    """Make a mount remove an entry and the tree below it.

    Args:
        entry: the entry.
        front: shows the progress of the background removal.
        locked: True to remove locked files, too.
        wait: True to return only after the background removal.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the mount refused, and nothing was changed; or, with *wait*, the mount became
            read-only before the background removal ended.
    """
    return await ask(entry.place, REMOVE, removal(entry, locked=locked, wait=wait), front)


async def request_lock(entry: Entry, front: Front) -> dict[str, Any]:
    """Make a mount lock an entry and the tree below it.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the mount refused or failed; part of the tree may be locked.
    """
    return await ask(entry.place, LOCK, entry_message(entry), front)


async def request_clone(source: Entry, target: Entry, front: Front) -> dict[str, Any]:
    """Make a mount copy an entry and the tree below it.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the mount refused; no copy exists.
    """
    arguments = {"source": entry_message(source), "target": entry_message(target)}
    return await ask(source.place, CLONE, arguments, front)


async def request_past_clone(source: PastSource, target: Entry, front: Front) -> dict[str, Any]:
    """Make a mount copy a past or present state of a file or tree.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the mount refused; no copy exists.
    """
    arguments = {"source": source.message, "target": entry_message(target)}
    return await ask(source.place, CLONE_PAST, arguments, front)


async def wait_finished(place: Target, front: Front, waiting: trio.Event) -> dict[str, Any]:
    """Wait until a mount has ended; return the outcome of its last upload.

    Args:
        place: the filesystem of the mount.
        front: shows the progress of the last upload.
        waiting: is set as soon as the daemon has registered this client, or has ended.

    Returns:
        ``complete``: True if the bucket has all changes; ``why``: the error that prevented the
        upload; ``kind``: the class of the error, or KILLED or UNREACHED. UNREACHED means that
        *place* was mounted, and that its daemon still runs.

    Raises:
        SilentDaemonError: the daemon is stopped or hangs.
    """
    show = _shown(front)

    def report(event: Message) -> None:
        waiting.set()
        show(event)

    result: dict[str, Any] | None = None
    with LockWatch(place.state) as watch:
        try:
            result = await client.call(place.state, FINISHED, report=report)
        except SilentDaemonError:
            raise
        except (NotMountedError, ControlError):
            pass  # the daemon is exiting
        finally:
            waiting.set()
        await watch.wait_until_free()
    return result or await _noted_outcome(place, front)


async def _noted_outcome(place: Target, front: Front) -> dict[str, Any]:
    """Return the outcome in a daemon's note; wait for the daemon to write it or to exit.

    The daemon does not answer, and no process holds the lock of the state directory. If the
    filesystem was mounted, the wait ends after HELD_S_MAX; otherwise a line says what it waits for.
    """
    line_s = trio.current_time() + HELD_S_MAX
    while (found := outcome_of(place)) is None and is_alive(place.note, place.started):
        if trio.current_time() >= line_s:
            if place.mounted:
                return {"complete": False, "why": "its daemon cannot be reached", "kind": UNREACHED}
            assert place.note is not None, "the note of a running daemon must exist"
            front.notice(
                f"waiting for process {place.note.name} to exit: it does not listen in {place.state}"
            )
            line_s = math.inf
        await trio.sleep(HELD_PAUSE_S)
    return found or {"complete": False, "why": "its daemon did not answer", "kind": KILLED}


async def ask(
    place: Target, command: str, arguments: Message | None = None, front: Front | None = None
) -> dict[str, Any]:
    """Send a request to the mount of a filesystem; return the reply.

    Commands in errors are completed as ``with_options`` does.

    Args:
        place: the filesystem.
        command: the name of the command.
        arguments: the arguments of the command.
        front: shows the progress of the request.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the mount refused the request, or the request failed.
    """
    report = no_report if front is None else _shown(front)
    with naming_store(place.url, options_of_mount(place), place.state), named(place):
        return await client.call(place.state, command, arguments, report)


async def _ask_at_once(
    place: Target, command: str, arguments: Message | None = None
) -> dict[str, Any]:
    """Send a request that a daemon answers without delay; raise ControlError after a timeout."""
    try:
        with trio.fail_after(CONTROL_ANSWER_S_MAX):
            return await ask(place, command, arguments)
    except trio.TooSlowError as exc:
        raise ControlError(
            "ControlError",
            f"the daemon that serves {place.mountpoint or place.url} did not answer within "
            f"{CONTROL_ANSWER_S_MAX:.0f} s: the daemon is stopped, hangs or is overloaded; see its "
            "log",
        ) from exc


def _shown(front: Front) -> Report:
    def show(event: Message) -> None:
        if "what" in event:
            front.progress(event["what"], event["done"], event["total"])

    return show
