"""``s3fs-meta clone``: copy a present or past file or tree within a filesystem."""

import contextlib
import os
from pathlib import Path
from typing import Annotated, Any, Final

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.cli.given_arguments import GivenPath
from s3fs_meta.console import interruption, output
from s3fs_meta.console.boundary import PROGRAM, print_line
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import Front, TerminalFront
from s3fs_meta.errors import UsageError
from s3fs_meta.limits import PAST_INO_MIN
from s3fs_meta.model import Ino
from s3fs_meta.mount.existing import mount_paths, targets
from s3fs_meta.mount.existing.mount_paths import Entry
from s3fs_meta.mount.requests.control_api import PastSource, request_clone, request_past_clone
from s3fs_meta.mount.requests.history_requests import past_path
from s3fs_meta.mount.requests.upload_watch import UploadWatch
from s3fs_meta.options import option_syntax

_NOW: Final = "now"

HELP = CommandHelp(
    name="clone",
    summary="Copy a file or tree within a mounted filesystem, in its present or an earlier state.",
    description=(
        "The copy shares the content of its source until either is written to, so it takes little "
        "time and nearly no space. It has the same owners, modes, times, extended attributes, "
        "ACLs, holes, and hard links within the tree. The copy appears only when it is complete, "
        "even if the command was interrupted. If the filesystem is unmounted before that, no part "
        "of it appears.",
        "With --at the source is copied as it was at that time: SOURCE is its path at that time, "
        "even if the file or directory was removed or renamed since. A path below .snapshots "
        "means the same without --at. No content is downloaded. If a part of the content is no "
        "longer retained, no copy is made.",
        "Without --at a source in use is copied directory by directory, each at a different time; "
        "an entry that is moved during the copy may appear in it twice, or not at all. --at=now "
        "first uploads everything that was written before the command began, and copies the tree "
        "at one point in time, as a power cut at that time would leave it: concurrent writes "
        "appear in the order of fsync and close. Recent data of files that programs are writing at "
        "high speed may be missing. No other process is blocked.",
        "Only root and the user who mounted the filesystem may use the command. It does not check "
        "permissions.",
    ),
    examples=(
        Example(
            "s3fs-meta clone /mnt/home/project /mnt/home/project-before",
            "make a copy before a change",
        ),
        Example(
            "s3fs-meta clone --at=1h-ago /mnt/home/thesis /mnt/home/rescued",
            "recover the state of an hour ago",
        ),
        Example(
            "s3fs-meta clone --at=now /mnt/home/db /mnt/home/db-copy",
            "copy a directory while programs use it",
        ),
    ),
    exits=exits_of(*OF_MOUNT, ExitStatus.SETTINGS, ExitStatus.STORE, ExitStatus.CORRUPTION),
)


def clone(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="File or directory to copy.",
            click_type=GivenPath(),
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Path of the copy, in an existing directory.",
            click_type=GivenPath(),
        ),
    ],
    at: Annotated[
        str | None,
        options.time_option(
            "--at",
            "Copy the source as it was at TIME: ISO 8601, an age such as 10m, txg=N, newest, "
            "now, or the name of a kept point.",
        ),
    ] = None,
    freeze: Annotated[bool, typer.Option("--freeze", hidden=True)] = False,
    _freeze_max: Annotated[float, typer.Option("--freeze-max", hidden=True)] = 0.0,
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta clone``: copy a present or past file or tree within a filesystem."""
    if freeze:
        print_line(PROGRAM, "--freeze is deprecated and means --at=now; no process is blocked")
        at = _NOW if at is None else at
    found: PastSource | Entry
    if target.endswith("/"):  # as in cp(1), the source must be a directory
        source = os.path.join(source, "")
    if at is not None:
        found = _past(source, at, cachedir)
    else:
        (found,) = mount_paths.existing([source], cachedir)
    if isinstance(found, Entry) and found.ino >= PAST_INO_MIN:
        found = PastSource(found.place, {"ino": found.ino})
    near = found if isinstance(found, Entry) else _at_mountpoint(found)
    wanted = mount_paths.free(target, cachedir, near=near)
    mount_paths.hand_over(wanted)
    remains = f"the mount continues to copy; {wanted.path} appears when the copy is complete"
    with interruption.explained(remains), TerminalFront() as front:
        result = trio.run(_clone, found, wanted, front, at is not None and at.strip() == _NOW)
    mount_paths.require_seen([wanted], there=True)
    if json:
        output.print_json({**result, "path": wanted.path})


async def _clone(
    found: PastSource | Entry, wanted: Entry, front: Front, waits_for_upload: bool
) -> dict[str, Any]:
    if isinstance(found, Entry):
        return await request_clone(found, wanted, front)
    watch = UploadWatch(found.place, front)
    async with watch.running() if waits_for_upload else contextlib.nullcontext():
        return await request_past_clone(found, wanted, front)


def _past(source: str, at: str, cachedir: Path | None) -> PastSource:
    """Return a source at a past point in time; the path need not exist now.

    Raises:
        UsageError: the time is malformed, the path itself names a past point in time, or the path
            does not end in a name.
        NotMountedError: the path is not on a filesystem of s3fs-meta.
        SilentDaemonError: the daemon of the path's filesystem does not answer.
    """
    path = Path(source)
    mount_paths.require_name(source)
    targets.require_answers([path])
    wanted = None
    if at.strip() != _NOW:
        wanted = option_syntax.point_in_time("--at", at)._asdict()
    if os.path.lexists(path) and os.lstat(path).st_ino >= PAST_INO_MIN:
        raise UsageError(f"the source {source} is already a past state; leave out --at")
    found = past_path(path, cachedir)
    names = [os.fsdecode(name) for name in found.names]
    if source.endswith("/"):
        names.append(os.curdir)
    return PastSource(found.place, {"top": found.top, "names": names, "at": wanted})


def _at_mountpoint(source: PastSource) -> Entry:
    """Return the root directory of the mount that contains a source, as an entry."""
    path = os.path.join(source.place.mountpoint or os.sep, os.curdir)
    return Entry(source.place, Ino(0), os.fsencode(os.curdir), Ino(0), path)
