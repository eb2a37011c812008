"""One FUSE session: mount, serve requests, unmount.

Owns: the mountpoint and the request loop. Does not know: the meaning of requests.
A session ends when the filesystem is unmounted, when the daemon receives SIGTERM, SIGINT or SIGHUP,
or when ``serve`` is cancelled. After a signal, the daemon collects the kernel's dirty pages, which
takes at most COLLECT_S_MAX, and unmounts lazily. Meanwhile, it still serves requests, because
closing /dev/fuse first would lose dirty pages. After a second SIGTERM or SIGINT, or if the
mountpoint stays busy for UNMOUNT_GRACE_S, the loop ends, but not before the collection has ended.
A closed terminal may send SIGHUP twice, from the kernel and from the shell, so a second SIGHUP has
no effect. Under nohup(1), the daemon ignores SIGHUP.
Tasks: ``serve`` runs in its caller's task; pyfuse3 allows one session per process.
"""

import ctypes
import logging
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import trio

from s3fs_meta.background_task import in_thread, lacks_thread
from s3fs_meta.errors import ThreadShortageError, UsageError
from s3fs_meta.fuse import notifications, raw_operations, request_loop
from s3fs_meta.fuse.collection.write_back import WriteBack
from s3fs_meta.fuse.extension import fuse_intercept, pyfuse3
from s3fs_meta.fuse.operations import Operations
from s3fs_meta.fuse.raw_operations import RawOperations
from s3fs_meta.limits import (
    CLEANUP_S_MAX,
    FUSE_TASKS_MAX,
    KERNEL_BACKGROUND_MAX,
    KERNEL_READAHEAD_KIB,
    UNMOUNT_GRACE_S,
)
from s3fs_meta.options.settings import KernelOptions

_log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)

_MNT_FORCE: Final = 1  # umount2(2)

# Escaped blanks and backslashes in /proc/self/mountinfo.
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")

SUBTYPE: Final = "s3fs-meta"
# Characters of the URL that stay as they are in the mount option fsname; all others are
# percent-encoded. A comma would end the option, and "%" begins an encoded character.
_PRINTABLE: Final = "/:@+~=._-"
# Number of passes of trio's loop until a task receives a signal and cancels another task.
_SIGNAL_PASSES: Final = 3


@dataclass(frozen=True)
class FuseOptions(KernelOptions):
    """The options of a mount that the kernel and libfuse receive."""

    # The URL of the bucket; the mount table shows the URL as the device.
    source: str = field(kw_only=True)

    def fuse_options(self) -> set[str]:
        """Return the mount options for libfuse, including default_permissions."""
        fuse_options = {
            "default_permissions",
            f"fsname={quote(self.source, safe=_PRINTABLE)}",
            f"subtype={SUBTYPE}",
            "ro" if self.read_only else "rw",
            "nodev" if self.nodev else "dev",
            "nosuid" if self.nosuid else "suid",
            "noexec" if self.noexec else "exec",
        }
        return fuse_options | {"allow_other"} if self.allow_other else fuse_options


class _Mounted(NamedTuple):
    """The mountpoint of a session, and the device number of its mount."""

    mountpoint: Path
    mountpoint_path: str  # resolved path; resolving it later would access the mount
    device: int | None
    grace_s: float  # time for programs to close files after a signal to unmount

    def is_here(self) -> bool:
        """Return whether the filesystem of this session is still mounted on its path."""
        return device_number(self.mountpoint_path) == self.device


def _ignore() -> None:
    """Do nothing; the default of ``on_signal``."""


async def serve(
    operations: Operations,
    mountpoint: Path,
    options: FuseOptions,
    *,
    on_ready: Callable[[], None],
    on_signal: Callable[[], None] = _ignore,
    unmount_grace_s: float = UNMOUNT_GRACE_S,
) -> None:
    """Mount the filesystem and serve requests; unmount it on every exit.

    Args:
        operations: the handlers.
        mountpoint: an existing directory.
        options: the mount options.
        on_ready: called when the filesystem is mounted.
        on_signal: called when the first signal arrives.
        unmount_grace_s: the time for programs to close files after a signal to unmount.

    Raises:
        UsageError: the filesystem cannot be mounted on *mountpoint*.

    Always yields to other tasks.
    """
    with trio.open_signal_receiver(*_ending_signals()) as signals:
        # Let a signal that has already arrived cancel this call before the filesystem is mounted.
        for _ in range(_SIGNAL_PASSES):
            await trio.lowlevel.checkpoint()
        mountpoint_path = _mount(operations, mountpoint, options.fuse_options())
        mounted = _Mounted(
            mountpoint, mountpoint_path, device_number(mountpoint_path), unmount_grace_s
        )
        operations.write_back.begin(mountpoint_path, mounted.device or 0)
        ending = partial(_unmount_on_signal, signals, mounted, operations.write_back, on_signal)
        await _serve_mounted(operations, mounted, ending, on_ready, read_only=options.read_only)


async def _serve_mounted(
    operations: Operations,
    mounted: _Mounted,
    ending: Callable[[], Awaitable[None]],
    on_ready: Callable[[], None],
    *,
    read_only: bool,
) -> None:
    """Serve requests until the unmount; run *ending*, a task that unmounts at a signal."""
    try:
        on_ready()
        async with trio.open_nursery() as nursery:
            raw = RawOperations(operations, nursery, mounted.device or 0)
            raw_operations.install(raw, read_only=read_only)
            nursery.start_soon(_tune_kernel, mounted.mountpoint_path)
            nursery.start_soon(ending)
            with request_loop.direct():
                await pyfuse3.main(max_tasks=FUSE_TASKS_MAX)
            nursery.cancel_scope.cancel()
    finally:
        with trio.move_on_after(3 * CLEANUP_S_MAX, shield=True):
            await _close(mounted)
        raw_operations.uninstall()
        with trio.move_on_after(CLEANUP_S_MAX, shield=True):
            # The write-back process may wait for the daemon, so it can exit only after the unmount.
            await operations.write_back.close()


async def _close(mounted: _Mounted) -> None:
    """Unmount the filesystem, unless another process has unmounted it, and free the session."""
    async with notifications.stopped(partial(_abort, mounted)) as outcome:
        if outcome is not notifications.Stop.BLOCKED:
            pyfuse3.close(unmount=mounted.is_here())
    if outcome is notifications.Stop.BLOCKED:
        _log.error(
            "the kernel still blocks a notification, so the daemon cannot exit: as root, mount"
            " fusectl (mount -t fusectl none /sys/fs/fuse/connections), and write 1 to %s",
            connection(mounted.device or 0) / "abort",
        )
    if outcome is not notifications.Stop.QUIET and mounted.is_here():
        # libfuse does not unmount a filesystem whose connection was aborted.
        with trio.move_on_after(CLEANUP_S_MAX, shield=True):
            await detach(mounted.mountpoint)


def _abort(mounted: _Mounted) -> None:
    """Abort the connection to the kernel: all requests fail with ECONNABORTED. The call blocks.

    If fusectl is not mounted, a forced unmount by root also aborts the connection, but only while
    the filesystem is attached to its mountpoint.

    Source: Linux, Documentation/filesystems/fuse.rst, "Aborting a filesystem connection".
    """
    try:
        fd = os.open(connection(mounted.device or 0) / "abort", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        if mounted.is_here():
            _libc.umount2(os.fsencode(mounted.mountpoint_path), _MNT_FORCE)
        return
    try:
        os.write(fd, b"1")
    finally:
        os.close(fd)


def _mount(operations: Operations, mountpoint: Path, fuse_options: Set[str]) -> str:
    """Mount the filesystem; return the resolved path of the mountpoint."""
    mountpoint_path = os.path.realpath(mountpoint)
    try:
        pyfuse3.init(operations, str(mountpoint), set(fuse_options))
    except RuntimeError as exc:
        # libfuse prints the reason on standard error and does not return it.
        raise UsageError(f"cannot mount on {str(mountpoint)!r}: {exc}") from exc
    return mountpoint_path


def _ending_signals() -> list[signal.Signals]:
    """Return the signals at which the daemon unmounts, as in libfuse (fuse_signals.c)."""
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if is_nohup else [signal.SIGHUP])]


async def _unmount_on_signal(
    signals: AsyncIterator[int],
    mounted: _Mounted,
    write_back: WriteBack,
    on_signal: Callable[[], None],
) -> None:
    """Unmount at the first signal; end the loop at the second, or if the mount stays busy."""
    async for number in signals:
        _log.info("%s: unmounting", signal.Signals(number).name)
        on_signal()
        break
    collected = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_unmount_busy, mounted, write_back, collected)
        async for number in signals:
            if number == signal.SIGHUP:
                continue
            _log.warning(
                "received %s: ending the mount without waiting for open files",
                signal.Signals(number).name,
            )
            break
        await collected.wait()
        pyfuse3.terminate()
        nursery.cancel_scope.cancel()


async def _unmount_busy(mounted: _Mounted, write_back: WriteBack, collected: trio.Event) -> None:
    """Collect dirty pages, detach the mountpoint, and wait ``grace_s`` for open files.

    When the last open file is closed, the request loop and this task end.
    """
    # Collect first: after the detach, the daemon has no path for syncfs(2).
    await write_back.collect()
    collected.set()
    if mounted.is_here():  # another process may have unmounted the filesystem already
        await detach(mounted.mountpoint)
    await trio.sleep(mounted.grace_s)
    _log.warning(
        "mountpoint %s is still in use after %s s: ending the mount",
        mounted.mountpoint,
        mounted.grace_s,
    )
    pyfuse3.terminate()


def end() -> None:
    """End the request loop, even while programs use the filesystem. Never yields to other tasks.

    If no loop runs, do nothing, because pyfuse3 would access a session that does not exist.
    """
    if request_loop.is_running():
        pyfuse3.terminate()


async def detach(mountpoint: Path) -> None:
    """Unmount the filesystem lazily, so that open files stay usable until they are closed.

    A failure is only logged.
    """
    # Root needs no fusermount3(1), which may not be installed.
    command = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
    # With close_fds, the child would close descriptors while vfork(2) blocks this daemon.
    # Closing a file on its own mount would block the daemon forever.
    # execve(2) closes all descriptors later, when the daemon runs again.
    try:
        result = await trio.run_process(
            [*command, "--", str(mountpoint)], check=False, capture_stderr=True, close_fds=False
        )
    except (OSError, RuntimeError) as exc:
        if isinstance(exc, RuntimeError) and not lacks_thread(exc):
            raise
        _log.warning("cannot run %s: %s", command[0], exc)
        return
    if result.returncode:
        _log.warning("%s: %s", command[0], result.stderr.decode(errors="replace").strip())


async def _tune_kernel(mountpoint_path: str) -> None:
    """Increase the kernel's read-ahead and its limit of background requests, if permitted.

    The kernel's defaults are 128 KiB and 12 background requests. Then 12 reads that wait for an
    unreachable bucket would delay the write-back of every other file.
    """
    try:
        await in_thread(tune_mount, mountpoint_path, abandon_on_cancel=True)
    except ThreadShortageError as exc:
        _log.warning("the kernel's defaults for requests stay: %s", exc)


def tune_mount(mountpoint_path: str) -> None:
    """Write the kernel settings of a served mount. Call this in a thread.

    The kernel sets its own values when the first request (INIT) is answered. So this function first
    waits for the reply to a stat(2). The device is read from the mount table, not from that reply,
    because another filesystem may be mounted there by then.
    """
    try:
        os.stat(mountpoint_path)
    except OSError:
        return  # the filesystem is already unmounted
    device = device_number(mountpoint_path)
    if device is None:
        return
    assert fuse_intercept.is_in_use(), (
        "another library intercepts the requests before the extension can"
    )
    major, minor = os.major(device), os.minor(device)
    _write_tunable(Path(f"/sys/class/bdi/{major}:{minor}/read_ahead_kb"), KERNEL_READAHEAD_KIB)
    directory = connection(device)
    _write_tunable(directory / "max_background", KERNEL_BACKGROUND_MAX)
    _write_tunable(directory / "congestion_threshold", KERNEL_BACKGROUND_MAX * 3 // 4)


def connection(device: int) -> Path:
    """Return the directory of a mount in fusectl, whose name is the kernel's device number.

    The kernel and makedev(3) encode a device number in different ways. A mount has the major number
    0, so the kernel's number equals the minor number.
    Source: Linux, fs/fuse/control.c, fuse_ctl_add_conn; include/linux/kdev_t.h.
    """
    return Path(f"/sys/fs/fuse/connections/{os.minor(device)}")


def device_number(mountpoint_path: str) -> int | None:
    """Return the device number of the s3fs-meta mount at a resolved path, or None."""
    found = None
    # Split only at newlines: the kernel escapes a newline in a path, but no other line break.
    for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).split("\n"):
        fields = line.split(" ")
        ours = f"fuse.{SUBTYPE}" in fields
        if ours and _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4]) == mountpoint_path:
            major, _, minor = fields[2].partition(":")
            # The last matching line describes the topmost mount.
            found = os.makedev(int(major), int(minor))
    return found


def _write_tunable(path: Path, value: int) -> None:
    try:
        path.write_text(str(value), encoding="ascii")
    except OSError as exc:
        _log.debug("cannot write the kernel setting %s: %s", path, exc.strerror)
