"""``mount -o remount,ro`` and ``remount,rw``: switching a mount to read-only or writable.

Owns: the control requests of a remount, in the command and in the daemon, and calling mount(2).
The kernel refuses ``ro`` while a file is open for writing, and writes back dirty pages before it
changes the flag. mount(2) may wait for the daemon, so the daemon does not call it.
Source: mount(2), MS_REMOUNT; Linux, fs/namespace.c, do_remount; fs/fuse/inode.c, fuse_reconfigure.
"""

import ctypes
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from s3fs_meta.control import plain_call
from s3fs_meta.control.protocol import Handler, Message, Report
from s3fs_meta.errors import ReadOnlyStateError, SettingsError, UsageError
from s3fs_meta.mount.existing import mount_table, targets
from s3fs_meta.mount.existing.mount_table import Flags, Mounted
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.existing.unanswered import named
from s3fs_meta.mount_errors import NotMountedError
from s3fs_meta.options.settings import (
    GivenOption,
    MountOptions,
    given_options,
    shown_value,
    split_options,
)
from s3fs_meta.sync.session import Session

WORD: Final = "remount"
# The command asks the daemon for permission: {"read_only": bool or null, "given": …}; the reply is
# {"change": bool}.
REMOUNT: Final = "remount"
REMOUNTED: Final = "remounted"  # the command reports success: {"read_only": bool}; reply {}

_MS_RDONLY: Final = 1
_MS_REMOUNT: Final = 32
# On a remount, mount(2) clears these flags unless the caller passes them again.
_KEPT: Final[Mapping[str, int]] = {
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "sync": 16,
    "mand": 64,
    "dirsync": 128,
    "nosymfollow": 256,
    "lazytime": 1 << 25,
}
_FIELDS: Final = frozenset(field.name for field in fields(MountOptions))


def asks_for_it(options: Sequence[str]) -> bool:
    """Return whether the arguments of ``-o`` contain ``remount``."""
    return any(WORD in split_options(text) for text in options)


def remount(url: str, directory: Path, options: Sequence[str]) -> None:
    """Make a mount read-only or writable.

    Raises:
        NotMountedError: no filesystem of s3fs-meta is mounted on *directory*.
        UsageError: another URL is mounted there, or an option cannot be changed by a remount.
        ControlError: the mount cannot become writable, or has other options.
        SettingsError: the kernel refuses the remount.
    """
    path = targets.resolve(directory)
    mounted = mount_table.find(path)
    flags = None if mounted is None else mount_table.flags_here(mounted)
    if mounted is None or flags is None:
        raise NotMountedError(path)
    if not targets.is_mount_of(mounted, targets.unquoted(url)):
        source = targets.unquoted(mounted.source)
        raise UsageError(f"the filesystem {source} is mounted on {path}, not {url}")
    given = given_by(options, flags)
    wanted = given.pop("read_only", None)
    place = _place(path, given)
    request = {
        "read_only": None if wanted is None else wanted.value,
        "given": {
            field: {"text": one.text, "value": shown_value(one.value)}
            for field, one in given.items()
        },
    }
    with named(place):
        answer = plain_call.call(place.state, REMOUNT, request)
        if wanted is None or not answer["change"]:
            return
        if wanted.value != ("ro" in flags.filesystem):
            _mount(path, flags, read_only=wanted.value)
        plain_call.call(place.state, REMOUNTED, {"read_only": wanted.value})


def given_by(options: Sequence[str], flags: Flags) -> dict[str, GivenOption]:
    """Return the user's options, without the options that mount(8) copied from the mount table."""
    shown = (flags.mount | flags.filesystem) - {"ro", "rw"} | {WORD}
    return given_options(
        [",".join(_escaped(part) for part in split_options(text) if part not in shown)
         for text in options]
    )  # fmt: skip


def _escaped(part: str) -> str:
    return part.replace("\\", "\\\\").replace(",", "\\,")


def _place(path: str, given: Mapping[str, GivenOption]) -> Target:
    """Return the target of the mount; ``cachedir`` matters only if the mount has no note."""
    place = targets.of_mountpoint(Path(path), None)
    cachedir: Any = given["cachedir"].value if "cachedir" in given else None
    if cachedir is None or place.state.exists():
        return place
    return targets.of_mountpoint(Path(path), cachedir)


def _mount(path: str, flags: Flags, *, read_only: bool) -> None:
    """Call mount(2), and keep every flag except MS_RDONLY.

    Raises:
        SettingsError: the kernel refuses the remount.
    """
    flag_names = flags.mount | flags.filesystem
    value = _MS_REMOUNT | (_MS_RDONLY if read_only else 0)
    value |= sum(bit for word, bit in _KEPT.items() if word in flag_names)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(None, os.fsencode(path), None, ctypes.c_ulong(value), None) == 0:
        return
    code = ctypes.get_errno()
    why = {
        errno.EBUSY: "a file is open for writing, or was removed while open; close the file",
        errno.EPERM: "only root may remount",
    }.get(code, os.strerror(code))
    raise SettingsError(f"cannot make {path} {'read-only' if read_only else 'writable'}: {why}")


class RemountHandlers:
    """The handlers of remount requests in the daemon."""

    def __init__(self, options: MountOptions, session: Session) -> None:
        self._options = options
        self._session = session

    def handlers(self) -> dict[str, Handler]:
        """Return the handler of each control command about remounts."""
        return {REMOUNT: self._on_remount, REMOUNTED: self._on_remounted}

    def refresh(self, mounted: Mounted) -> bool:
        """Return whether the mount table lists the mount as read-only, and record the result.

        The mount table is read, because the daemon may have missed the report of a remount.
        """
        flags = mount_table.flags_here(mounted, anywhere=True)
        status = self._session.status
        if flags is not None:  # None if the mount is in another mount namespace
            status.remount(read_only="ro" in flags.filesystem)
        return status.kernel_read_only

    async def _on_remount(self, arguments: Message, _report: Report) -> Message:
        """Refuse the remount, or return whether the client must call mount(2)."""
        for field, one in arguments["given"].items():
            if field not in _FIELDS or shown_value(getattr(self._options, field)) != one["value"]:
                raise UsageError(
                    f"a remount can change only ro and rw; to change the option {one['text']!r},"
                    " unmount and mount again (s3fs-meta set lists the options that can change"
                    " while mounted)"
                )
        wanted, session = arguments["read_only"], self._session
        if wanted is None:
            return {"change": False}
        # A follower stays writable for the kernel, because it may be promoted.
        if wanted:
            return {"change": not (session.status.read_only and session.follower is not None)}
        if session.status.read_only and session.follower is not None:
            raise UsageError(
                "the mount follows another host: use s3fs-meta promote to make it the writer"
            )
        if session.status.read_only:
            raise UsageError(
                "the filesystem was mounted with ro: unmount it, and mount it again without ro"
            )
        if not session.status.writable:
            raise ReadOnlyStateError(
                f"{session.status.why or session.status.state.value}; unmount and mount again"
            )
        return {"change": True}

    async def _on_remounted(self, arguments: Message, _report: Report) -> Message:
        """Record the remount; after ``ro`` sync all data, as other filesystems do."""
        status = self._session.status
        status.remount(read_only=arguments["read_only"] is True)
        if status.kernel_read_only and status.writable:
            await self._session.durability.sync_all()
        return {}
