"""Answers of a mount to requests to become read-only for the kernel, or writable again.

Owns: which remounts are refused. Does not know: mount(2) (``remount``).
"""

from dataclasses import fields
from typing import Final

from s3fs_meta.control.protocol import Handler, Message, Report
from s3fs_meta.errors import ReadOnlyStateError, UsageError
from s3fs_meta.mount import mount_table, remount
from s3fs_meta.mount.mount_table import Mounted
from s3fs_meta.settings import MountOptions, shown_value
from s3fs_meta.sync.session import Session

_FIELDS: Final = frozenset(field.name for field in fields(MountOptions))


class RemountHandlers:
    """Handlers of one mount."""

    def __init__(self, options: MountOptions, session: Session) -> None:
        self._options = options
        self._session = session

    def handlers(self) -> dict[str, Handler]:
        """Return what each command does."""
        return {remount.REMOUNT: self._on_remount, remount.REMOUNTED: self._on_remounted}

    def refresh(self, mounted: Mounted) -> bool:
        """Look at the kernel's list: who calls mount(2) need not report it. Return if it is ro."""
        flags = mount_table.flags_here(mounted, anywhere=True)
        status = self._session.status
        if flags is not None:  # else it is mounted elsewhere only
            status.kernel_read_only = "ro" in flags.filesystem
        return status.kernel_read_only

    async def _on_remount(self, arguments: Message, _report: Report) -> Message:
        """Refuse a remount, or say whether the kernel is to be asked for it."""
        for field, one in arguments["given"].items():
            if field not in _FIELDS or shown_value(getattr(self._options, field)) != one["value"]:
                raise UsageError(
                    f"option {one['text']!r}: a remount changes only ro and rw; to change others"
                    " unmount and mount again"
                )
        wanted, session = arguments["read_only"], self._session
        if wanted is None:
            return {"change": False}
        if wanted:  # a follower is, though not for the kernel: else it could not be promoted
            return {"change": not (session.status.read_only and session.follower is not None)}
        if session.status.read_only and session.follower is not None:
            raise UsageError("it follows another host: s3fs-meta promote makes it the writer")
        if session.status.read_only:
            raise UsageError("it was mounted with ro: unmount it, and mount it without")
        if not session.status.writable:
            raise ReadOnlyStateError(
                f"{session.status.why or session.status.state.value}; unmount and mount again"
            )
        return {"change": True}

    async def _on_remounted(self, arguments: Message, _report: Report) -> Message:
        """Take note, and sync what the kernel handed over, as other filesystems do."""
        status = self._session.status
        status.kernel_read_only = arguments["read_only"] is True
        if status.kernel_read_only and status.writable:
            await self._session.durability.sync_all()
        return {}
