"""Errors of commands about mounts that do not answer or stay in use.

Owns: the reasons why no daemon on this host answers, with advice. Does not know:
errnos, exit statuses.
"""

import shlex

from s3fs_meta.errors import ControlError, HeldError, SettingsError


class NotMountedError(SettingsError):
    """No process on this host serves the filesystem."""

    def __init__(self, place: str, message: str = "") -> None:
        """Describe the error.

        Args:
            place: a URL or a path.
            message: replaces the description.
        """
        if "://" in place:
            description = f"{place} is not mounted on this host"
        else:
            description = (
                f"no s3fs-meta filesystem is mounted on {place}; s3fs-meta status lists all mounts"
            )
        super().__init__(message or description)
        self.place = place


class KilledMountError(NotMountedError):
    """The filesystem is mounted, but its daemon was killed."""

    def __init__(self, mountpoint: str, rest: str, again: str) -> None:
        super().__init__(
            mountpoint,
            f"the daemon of {mountpoint} was killed ({rest}); mount it again to recover: {again}",
        )
        self.rest, self.again = rest, again


class UnreachedDaemonError(NotMountedError):
    """The filesystem is mounted, but its daemon does not listen in the state directory."""

    def __init__(self, mountpoint: str, state: str, *, is_used: bool) -> None:
        """Describe the error.

        Args:
            mountpoint: the path of the mountpoint.
            state: the path of the state directory.
            is_used: True if the note of the daemon names this state directory.
        """
        text = (
            f"{mountpoint} is mounted, but its daemon does not use the state directory {state}: give"
            " the --cachedir of the mount, or run this command in the container of the daemon"
        )
        if is_used:
            text = (
                f"{mountpoint} is mounted, but its daemon cannot be reached: its socket in the state directory {state} was removed; end the"
                " mount with umount(8) or fusermount3 -u, and mount it again"
            )
        super().__init__(mountpoint, text)
        self.state = state


class OtherUserError(NotMountedError):
    """Another user has mounted the filesystem; the daemon answers only that user."""

    def __init__(self, mountpoint: str, user: str) -> None:
        super().__init__(
            mountpoint, f"{mountpoint} is mounted by user {user}: run this command as that user"
        )


class SilentDaemonError(ControlError):
    """The daemon of a mount accepts control requests, but does not answer them."""

    kind = "SilentDaemonError"

    def __init__(self, which: str, waited_s: float) -> None:
        """Describe the error.

        Args:
            which: the words after "the daemon" that identify it.
            waited_s: the time for which the caller waited.
        """
        super().__init__(
            self.kind,
            f"the daemon {which} did not answer within {waited_s:.0f} s: it is stopped, hangs or is"
            " overloaded; see its log",
        )
        self.which, self.waited_s = which, waited_s


class UnansweredError(ControlError):
    """The daemon of a mount closed a connection without an answer, usually because it exited."""

    kind = "ControlError"

    def __init__(self) -> None:
        super().__init__(self.kind, "the mount ended before it answered the request; see its log")


class InUseError(SettingsError):
    """The filesystem was unmounted but is still in use, so its daemon keeps running."""

    def __init__(self, by: str, mountpoint: str) -> None:
        super().__init__(
            f"unmounted here, but the filesystem is still in use {by}; until this use ends, the daemon"
            " continues, uploads changes and keeps the lease. To end it now, with errors for programs"
            f" that use it: s3fs-meta umount --force {shlex.quote(mountpoint)}"
        )
        self.by = by


class EarlierMountInUseError(HeldError):
    """The filesystem cannot be mounted again, because an unmounted earlier mount is still in use."""

    def __init__(self, by: str, mountpoint: str) -> None:
        super().__init__(
            f"the filesystem was unmounted from {mountpoint}, but is still in use {by}; end these"
            f" processes, or run s3fs-meta umount --force {shlex.quote(mountpoint)}"
        )
