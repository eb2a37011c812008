"""``s3fs-meta umount``: unmount, and wait until the bucket has all changes."""

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Annotated

import trio
import typer

from s3fs_meta.background_task import in_thread
from s3fs_meta.bucket_errors import LostLeaseError
from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.cli.limits import BUSY_ATTEMPTS_MAX, BUSY_PAUSE_S
from s3fs_meta.console import interruption
from s3fs_meta.console.exits import ExitStatus, is_kind
from s3fs_meta.console.ui import Front, TerminalFront
from s3fs_meta.errors import (
    ControlError,
    FencedError,
    LostBlockError,
    ReadOnlyStateError,
    S3fsError,
    SettingsError,
    StoreError,
)
from s3fs_meta.mount.existing import killed_state, mount_table, targets
from s3fs_meta.mount.existing.mount_table import Mounted
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests.control_api import (
    DETACHED,
    KILLED,
    READ_ONLY,
    UNREACHED,
    request_end,
    request_flush,
    request_status,
    used_by,
    wait_finished,
)
from s3fs_meta.mount.requests.upload_watch import UploadWatch
from s3fs_meta.mount_errors import (
    InUseError,
    KilledMountError,
    NotMountedError,
    OtherUserError,
    SilentDaemonError,
    UnreachedDaemonError,
)

HELP = CommandHelp(
    name="umount",
    summary="Unmount, and return when all changes are in the bucket.",
    description=(
        "Uploads first, with a progress bar, then unmounts and waits for the daemon to exit. "
        "fusermount3 -u and umount(8) return immediately, and the daemon uploads in the "
        "background; this command then waits for the upload. If the command is interrupted while "
        "it uploads, the filesystem stays mounted. Changes that could not be uploaded stay in the "
        "local state, and the next mount on this host uploads them.",
        "If the filesystem is also mounted in another mount namespace (a container, a unit with "
        "private mounts), the command lists the processes there and exits; the daemon continues to "
        "serve them. With --force the daemon accepts no more changes, uploads and exits; programs "
        "that use the filesystem get errors.",
    ),
    examples=(
        Example("s3fs-meta umount /mnt/home", "upload, unmount, and wait for the daemon"),
        Example("s3fs-meta umount --force /mnt/home", "unmount even if a container uses the mount"),
        Example("fusermount3 -u /mnt/home; s3fs-meta umount /mnt/home", "wait for the upload"),
    ),
    exits=exits_of(
        ExitStatus.SETTINGS,
        ExitStatus.NOT_MOUNTED,
        ExitStatus.STORE,
        ExitStatus.STORE_ACCESS,
        ExitStatus.CORRUPTION,
        ExitStatus.FENCED,
        ExitStatus.CONTROL,
        ExitStatus.IN_USE,
    ),
)


def umount(
    mountpoint: options.Mountpoint,
    cachedir: options.Cachedir = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Unmount even if programs or other mount namespaces use the filesystem (they get "
            "errors), or if changes cannot be uploaded (the next mount on this host uploads them).",
        ),
    ] = False,
) -> None:
    """Run ``s3fs-meta umount``: unmount, and wait until the bucket has all changes."""
    place = targets.of_mountpoint(mountpoint, cachedir)
    where = place.mountpoint or mountpoint
    again = options.command("umount", *(["--force"] if force else []), where, cachedir=cachedir)
    with interruption.explained("") as remains, TerminalFront() as front:
        watch = UploadWatch(place, front, remains)
        trio.run(_umount, place, front, force, watch, again)


async def _umount(place: Target, front: Front, force: bool, watch: UploadWatch, again: str) -> None:
    if place.outcome is not None:
        await judge(place.outcome, place)
        return
    if place.successor:  # the daemon on the control socket serves another mount
        await in_thread(_unmount, place.mountpoint, force, abandon_on_cancel=True)
        front.notice(
            "unmounted; the daemon had been killed, and the filesystem is now mounted on"
            f" {place.successor}"
        )
        return
    where, left = place.mountpoint or place.url, ""
    async with watch.running():
        if place.mounted or await _is_detached(place):
            watch.advise(
                f"{where} stays mounted and continues to upload; to unmount it, run: {again}"
                + ("" if force else " (with --force it does not wait for an unavailable bucket)")
            )
            found = await _flush(place, front, force, watch)
            if found is None:
                await in_thread(_unmount, place.mountpoint, force, abandon_on_cancel=True)
                raise _unreached(place)
            left = found
        watch.advise(f"The daemon of {where} continues to upload; to wait for it, run: {again}")
        await _unmount_and_wait(place, front, force, left, watch)


async def _unmount_and_wait(
    place: Target, front: Front, force: bool, left: str, watch: UploadWatch
) -> None:
    """Unmount, and wait until the daemon has exited.

    Raises:
        InUseError: processes still use the filesystem, and *force* is not set.
        StoreError, ControlError: the last upload of the mount was incomplete.
        ControlError: the daemon is stopped or hangs.
    """
    waiting = trio.Event()
    result: dict[str, object] = {}
    asking, keeping, used, outage = trio.CancelScope(), trio.CancelScope(), "", trio.Event()
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            result.update(await _finished(place, front, waiting))
            asking.cancel()
            keeping.cancel()

        async def keep() -> None:
            # NotMountedError and ControlError mean that the daemon has just exited.
            with keeping, contextlib.suppress(NotMountedError, ControlError):
                await outage.wait()
                await request_end(place, keep=True)

        nursery.start_soon(wait)
        await waiting.wait()
        mounted = mount_table.find(place.mountpoint) if place.mountpoint else None
        if place.mounted:
            # If the daemon hangs, the unmount hangs too. Then wait() raises an error.
            await in_thread(_unmount, place.mountpoint, force, abandon_on_cancel=True)
        if force:
            watch.on_outage(outage.set)
            nursery.start_soon(keep)
        used = _other_mountpoints(mounted)
        with asking:
            used = used or await used_by(place)
        if used and not force:
            if left:
                front.notice(left)
            raise InUseError(used, str(place.mountpoint))
        if used:
            front.notice(
                f"the filesystem is in use {used}; the daemon is ended anyway, because of --force"
            )
            await request_end(place)
    if result.get("kind") == UNREACHED:
        raise _unreached(place)
    if result.get("kind") == KILLED:
        await in_thread(_judge_killed, place, front)
        return
    await _judge_after(left, result, place, front)


async def _finished(place: Target, front: Front, waiting: trio.Event) -> dict[str, object]:
    """Call ``wait_finished``; if the daemon hangs, report whether the filesystem stays mounted."""
    try:
        return await wait_finished(place, front, waiting)
    except SilentDaemonError as exc:
        if place.mountpoint is None or mount_table.find(place.mountpoint) is None:
            raise
        raise _stays_mounted(place, exc) from exc


def _judge_killed(place: Target, front: Front) -> None:
    """Report what a killed daemon left behind; raise StoreError if the bucket lacks changes."""
    found = killed_state.unshipped(place.state)
    again = targets.mount_command(place)
    if found is not None and found.is_nothing:
        front.notice(
            f"unmounted; the daemon had been killed, and {found.described}. This host still holds"
            f" the lease: mount and unmount the filesystem here before another host mounts it: {again}"
        )
        return
    rest = killed_state.described(place.state)
    raise StoreError(
        f"unmounted; the daemon had been killed ({rest}); the next mount uploads the changes: {again}"
    )


def _unreached(place: Target) -> ControlError:
    """Return the error of an unmount whose daemon runs, but does not use the state directory."""
    again = options.command("umount", place.mountpoint or place.url)
    return ControlError(
        "ControlError",
        f"unmounted, but the bucket may lack changes: the daemon does not listen in {place.state}."
        f" To get the result of its last upload, run: {again}",
    )


async def _is_detached(place: Target) -> bool:
    try:
        return bool((await request_status(place))["state"] == DETACHED)
    except (NotMountedError, ControlError):
        return False


def _other_mountpoints(mounted: Mounted | None) -> str:
    """Return a description of the filesystem's other mountpoints on this host, or ""."""
    found = [] if mounted is None else mount_table.same_filesystem(mounted)
    if not found:
        return ""
    also = "; ".join(options.command("umount", one.mountpoint) for one in found)
    places = " and ".join(one.mountpoint for one in found)
    return f"at {places}, where it is also mounted (bind mount): {also}"


async def judge(outcome: Mapping[str, object], place: Target) -> None:
    """Raise an error with the reason if the last upload of the mount was incomplete."""
    kind, why = outcome.get("kind"), outcome["why"]
    if outcome["complete"]:
        return
    if kind == LostBlockError.__name__:
        raise ControlError(LostBlockError.__name__, f"unmounted; {why}")
    lost = ""
    if await in_thread(killed_state.is_removed, place.state, abandon_on_cancel=True):
        lost = f"the rest is lost, because the state directory {place.state} was removed"
    if kind == FencedError.__name__:
        kept = (
            "changes that are not in the bucket stay on this host. If the other host has written "
            "since then, the next mount quarantines the changes and prints their directory"
        )
        raise ControlError(
            FencedError.__name__,
            f"unmounted, but another host has taken over the filesystem ({why}); {lost or kept}",
        )
    if kind == READ_ONLY and not lost:
        raise StoreError(f"unmounted; {why}")
    kept = "the rest stays on this host, and the next mount uploads it"
    raise StoreError(f"unmounted, but not everything is in the bucket ({why}); {lost or kept}")


async def _judge_after(
    left: str, outcome: Mapping[str, object], place: Target, front: Front
) -> None:
    """Raise an error if the last upload was incomplete; print *left*, an earlier upload's error."""
    try:
        await judge(outcome, place)
    except S3fsError as exc:
        why = str(outcome.get("why") or exc)
        if left and why not in left and left not in why:
            front.notice(left)
        raise
    if left:
        front.notice(left)


async def _flush(place: Target, front: Front, force: bool, watch: UploadWatch) -> str | None:
    """Upload changes before the unmount; return an error that does not prevent the unmount.

    With *force*, the wait stops if the bucket is unavailable. Return None if the daemon runs, but
    does not listen in the state directory.
    """
    try:
        with trio.CancelScope() as scope:
            if force:
                watch.on_outage(scope.cancel)
            await request_flush(place, front)
    except NotMountedError as exc:
        is_unreached = isinstance(exc, UnreachedDaemonError)
        if isinstance(exc, OtherUserError) or (is_unreached and not force):
            raise  # do not unmount without waiting for the upload
        if is_unreached:
            return None
        _notice_unanswered(exc, front)
    except SilentDaemonError as exc:
        # A silent daemon cannot unmount. If it is killed, the next mount uploads its changes.
        raise _stays_mounted(place, exc) from exc
    except ControlError as exc:
        goes_on = (FencedError, LostLeaseError, ReadOnlyStateError, LostBlockError)
        if is_kind(exc, *goes_on):
            return exc.message
        if place.mounted and place.mountpoint and mount_table.find(place.mountpoint) is None:
            return exc.message  # another process has unmounted the filesystem
        if not force:
            why = f"still mounted: {exc.message}; --force unmounts and keeps the rest on this host"
            raise ControlError(exc.kind, why) from exc
        front.notice(exc.message)
    return ""


def _notice_unanswered(exc: NotMountedError, front: Front) -> None:
    if not isinstance(exc, KilledMountError):  # the unmount reports a killed daemon
        front.notice(exc.message)


def _stays_mounted(place: Target, exc: SilentDaemonError) -> ControlError:
    """Return the error of an unmount that a silent daemon prevents."""
    where = place.mountpoint or place.url
    why = f"{where} stays mounted: {exc.message}; if it hangs, kill it, and mount again"
    return ControlError(exc.kind, why)


def _unmount(mountpoint: str | None, force: bool) -> None:
    assert mountpoint is not None, "a mounted filesystem must have a mountpoint"
    # Root needs no fusermount3(1), which may not be installed.
    command, lazily = (["umount"], "-l") if os.geteuid() == 0 else (["fusermount3", "-u"], "-z")
    why = _why_not([*command, "--", mountpoint])
    for _ in range(BUSY_ATTEMPTS_MAX):
        if not is_busy(why, mountpoint):
            break
        time.sleep(BUSY_PAUSE_S)  # the mount can be busy while dirty pages are collected
        why = _why_not([*command, "--", mountpoint])
    if force and is_busy(why, mountpoint):
        why = _why_not([*command, lazily, "--", mountpoint])
    if is_busy(why, mountpoint):
        why += (
            " A process has a file open or its working directory there, or another filesystem is "
            f"mounted below it: fuser -vm {shlex.quote(mountpoint)} lists the processes"
        )
    # If the filesystem is no longer in the mount table, another process has unmounted it meanwhile.
    if why and mount_table.find(mountpoint) is not None:
        raise SettingsError(f"the filesystem on {mountpoint} is still mounted: {why}")


def is_busy(why: str, mountpoint: str) -> bool:
    """Return whether an error message of umount(8) or fusermount3(1) means EBUSY."""
    return "busy" in why.replace(mountpoint, "")


def _why_not(command: Sequence[str]) -> str:
    """Run a command; return its error message in English, or "" if it succeeded."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="surrogateescape",  # the message contains the path of the mountpoint
        check=False,
        env=os.environ | {"LC_ALL": "C"},
    )
    if done.returncode == 0:
        return ""
    return " ".join(done.stderr.split()) or f"{command[0]} failed"
