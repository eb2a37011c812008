"""A directory that a command creates, and removes again if the command fails early.

Owns: the directory, and the missing directories above it; the message about an incomplete copy.
Does not know: the files of a copy.
Keeps: a directory is never removed if it already existed, if another process has changed it, or if
it has entries.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.console import interruption
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.errors import UsageError
from s3fs_meta.export.copier import require_empty
from s3fs_meta.mount.existing import targets

_NOTHING_COPIED: Final = "nothing was copied"


class _Made(NamedTuple):
    """A directory that was created, with its identity right after the creation."""

    path: Path
    device: int
    inode: int
    ctime_ns: int  # a later ctime shows that the directory was changed or replaced


class NewDirectory:
    """A directory that is created if it is missing, and removed if the context fails."""

    def __init__(self, path: Path, *, mode: int = 0o777) -> None:
        """Create the directory and the directories above it.

        Args:
            path: the directory, which may exist.
            mode: the mode of the directory before the umask; parents have the default mode.

        Raises:
            UsageError: the directory cannot be created; nothing was created.
            SilentDaemonError: the directory is in a mount whose daemon does not answer.
        """
        targets.require_answers([path])
        paths: list[Path] = []
        try:
            _create(path, mode, paths)
        except OSError as exc:
            for one in reversed(paths):
                with contextlib.suppress(OSError):  # another process already uses the directory
                    one.rmdir()
            raise UsageError(f"cannot create {str(path)!r}: {exc.strerror}") from exc
        self._made = [_as_made(one) for one in paths]

    def __enter__(self) -> "NewDirectory":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        if kind is not None:
            self.remove_unused()

    def remove_unused(self) -> None:
        """Remove the created directories if all of them are unchanged and empty."""
        made, self._made = self._made, []
        with contextlib.suppress(OSError):  # another process uses or has removed a directory
            if all(_as_made(one.path) == one for one in made):
                for one in reversed(made):
                    one.path.rmdir()


@contextlib.contextmanager
def copy_target(
    target: Path, command: str, *, quiet: bool
) -> Iterator[tuple[TerminalFront, Callable[[], None]]]:
    """Create a directory for a copy; after an error or a signal, report what is in it.

    Yields:
        The front of the command, and a function to call before the first entry is created.

    Raises:
        UsageError: the directory is not empty, or cannot be used.
        InterruptedCommandError: a signal interrupted the copy.
    """
    with (
        NewDirectory(target, mode=0o700),
        interruption.explained(_NOTHING_COPIED) as remains,
        TerminalFront(quiet=quiet) as front,
    ):
        require_empty(target)
        incomplete = (
            f"the copy in {target} is not complete; remove it before you run {command} again"
        )
        try:
            yield front, lambda: remains.change(incomplete)
        except Exception:
            if remains.text != _NOTHING_COPIED:
                front.notice(remains.text)
            raise


def _create(path: Path, mode: int, created: list[Path]) -> None:
    for one in reversed(_missing(path)):
        with contextlib.suppress(FileExistsError):  # another process created the directory
            one.mkdir(mode if one == path else 0o777)
            created.append(one)


def _missing(path: Path) -> Sequence[Path]:
    """Return a path that does not exist and its missing parents, from the path upwards."""
    found = []
    for one in (path, *path.parents):
        if os.path.lexists(one):
            break
        found.append(one)
    return found


def _as_made(path: Path) -> _Made:
    found = os.lstat(path)
    return _Made(path, found.st_dev, found.st_ino, found.st_ctime_ns)
