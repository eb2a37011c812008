"""``s3fs-meta keep``: keep points in time for longer than the retention."""

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import astuple, dataclass
from typing import Annotated, Any, Final, NamedTuple

import trio
import typer

from s3fs_meta.cli import completion, options
from s3fs_meta.cli.command_help import OF_BUCKET, OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec.changelog import NO_FLOOR
from s3fs_meta.console import interruption, output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import Front, TerminalFront
from s3fs_meta.counted import counted
from s3fs_meta.errors import UsageError
from s3fs_meta.limits import CLOSE_S_MAX
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.limits import LOCK_WAIT_S
from s3fs_meta.mount.requests import keep_requests
from s3fs_meta.mount.requests.upload_watch import UploadWatch
from s3fs_meta.mount.snapshot_source import Reading, opened_bucket
from s3fs_meta.mount.stores import opened_store, with_options
from s3fs_meta.mount_errors import NotMountedError
from s3fs_meta.options.option_syntax import format_time, point_in_time
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.administration.keeping import PointKeeper, require_name
from s3fs_meta.sync.history.kept.kept_expiry import ExpiringPoint, Policy, judge
from s3fs_meta.sync.history.kept.kept_points import KeptPointReader
from s3fs_meta.sync.host_state.state_dir import StateDir, without_new_remains
from s3fs_meta.sync.known_points import KnownPoints
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.upload.bounds import COMMAND_BOUNDS
from s3fs_meta.sync.volume import OpenOptions

HELP = CommandHelp(
    name="keep",
    summary="Keep a point in time under a name until it is dropped, regardless of the retention.",
    description=(
        "NAME can be used wherever a command takes a time, in at=NAME, and in .snapshots/NAME. A "
        "kept point occupies the space of the data that only it needs; keep --list on a mount "
        "shows the size.",
        "--expire drops points of each day, week, month and year as restic forget does, by local "
        "time. It drops only points that were kept with --auto.",
        "If the filesystem is mounted on this host, the command sends a request to the mount; "
        "otherwise it opens the filesystem as a mount does. Only the writer can keep and drop "
        "points.",
    ),
    examples=(
        Example("s3fs-meta keep /mnt/home before-upgrade", "keep the present state"),
        Example(
            "s3fs-meta keep /mnt/home ok --at 2026-05-09T14:30", "keep a retained point in time"
        ),
        Example(
            "s3fs-meta keep /mnt/home --auto", "keep the present state, named by the current time"
        ),
        Example("s3fs-meta keep /mnt/home --list", "list the kept points and what they cost"),
        Example("s3fs-meta keep /mnt/home --drop before-upgrade", "drop a kept point"),
        Example(
            "s3fs-meta keep /mnt/home --expire --keep-daily 7 --keep-weekly 5 --dry-run",
            "show which points kept with --auto would be dropped",
        ),
    ),
    exits=exits_of(*OF_BUCKET, *OF_MOUNT, ExitStatus.HELD, ExitStatus.FENCED),
)

_AUTO_NAME: Final = "auto-%Y-%m-%dT%H:%M:%S"


def _count(option: str, what: str) -> Any:
    return typer.Option(
        option, metavar="N", min=0, help=f"With --expire: do not drop {what}.", show_default=False
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """The options of ``--expire``; ``entry.flat`` adds them to the command."""

    keep_last: Annotated[int, _count("--keep-last", "the last N points")] = 0
    keep_daily: Annotated[int, _count("--keep-daily", "the last point of each of N days")] = 0
    keep_weekly: Annotated[int, _count("--keep-weekly", "the last point of each of N weeks")] = 0
    keep_monthly: Annotated[int, _count("--keep-monthly", "the last point of each of N months")] = 0
    keep_yearly: Annotated[int, _count("--keep-yearly", "the last point of each of N years")] = 0

    @property
    def policy(self) -> Policy:
        """Return the expiry policy that the options describe."""
        return Policy(*astuple(self))


class _Wanted(NamedTuple):
    """The action that the user chose: list, drop or expire points, or keep a point."""

    name: str
    at: str | None
    auto: bool
    drop: list[str]
    shows: bool
    policy: Policy | None
    dry_run: bool


_Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="Name for the kept point: a letter followed by letters, digits or _.-+:@.",
    ),
]
_At = Annotated[
    str | None,
    options.time_option(
        "--at",
        "Point in time: ISO 8601, an age such as 10m, txg=N, or another kept NAME; default: "
        "the present state.",
    ),
]
_Auto = Annotated[
    bool, typer.Option("--auto", help="Let --expire drop this point later; NAME may be omitted.")
]
_Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="NAME",
        help="Drop the kept point NAME; can be repeated.",
        autocompletion=completion.kept_names,
    ),
]
_Expire = Annotated[
    bool,
    typer.Option(
        "--expire",
        help="Drop every point that was kept with --auto and that no --keep-* option retains.",
    ),
]
_DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", "-n", help="With --expire: only list the points that would be dropped."
    ),
]


def keep(
    target: options.Filesystem,
    name: _Name = None,
    at: _At = None,
    auto: _Auto = False,
    drop: _Drop = None,
    shows: Annotated[bool, typer.Option("--list", help="List the kept points.")] = False,
    expire: _Expire = False,
    dry_run: _DryRun = False,
    *,
    counts: Counts,
    access: options.BucketOptions,
    unsafe_single_writer: options.UnsafeSingleWriter = False,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta keep``: keep points in time for longer than the retention."""
    policy = counts.policy
    wanted = _Wanted(
        name or (time.strftime(_AUTO_NAME) if auto else ""),
        at,
        auto,
        list(dict.fromkeys(drop or [])),
        shows,
        policy if expire else None,
        dry_run,
    )
    _require_one_action(wanted, policy, named=name is not None)
    place = targets.of_either(target, access.cachedir)
    opening = OpenOptions(unsafe_single_writer=unsafe_single_writer, lock_wait_s=LOCK_WAIT_S)
    remains = with_options(_remains(wanted), place.url, access.s3, place.state)
    with interruption.explained(remains), TerminalFront(quiet=json) as front:
        result = trio.run(_run, Opening(place, access, opening, front), wanted)
    if json:
        output.print_json({"url": place.url, **result})
    else:
        _show(wanted, result)


def _remains(wanted: _Wanted) -> str:
    """Return the description of the state after an interruption."""
    if wanted.shows or wanted.dry_run:
        return "nothing was changed"
    return "the change may be complete nevertheless; s3fs-meta keep --list shows the kept points"


def _require_one_action(wanted: _Wanted, policy: Policy, *, named: bool) -> None:
    """Raise UsageError unless the options describe exactly one action.

    Raises:
        UsageError: options cannot be combined, or an option is missing or invalid.
    """
    keeps = named or wanted.auto or wanted.at is not None
    actions = [keeps, bool(wanted.drop), wanted.shows, wanted.policy is not None]
    if wanted.policy is None and (wanted.dry_run or not policy.is_empty):
        raise UsageError("--dry-run and --keep-* can only be used with --expire")
    if sum(actions) != 1:
        raise UsageError(
            f"give {'only ' if any(actions) else ''}one of these: a NAME to keep (or --auto), --drop,"
            " --list or --expire"
        )
    if keeps:
        if not named and not wanted.auto:
            raise UsageError("--at needs a NAME for the kept point, or --auto")
        require_name(wanted.name)
        if wanted.at is not None:
            point_in_time("--at", wanted.at)
    if wanted.policy is not None and policy.is_empty:
        raise UsageError(
            "--expire needs one of --keep-last, --keep-daily, --keep-weekly, --keep-monthly and"
            " --keep-yearly: without these options, it would drop every point kept with --auto"
        )


# --- access with or without a mount ------------------------------------------------------------


class _Mounted:
    """The kept points of a filesystem that is mounted on this host.

    The results have the form of messages in ``keep_requests``.
    """

    def __init__(self, place: Target, front: Front) -> None:
        self._place = place
        self._front = front

    async def keep(self, name: str, at: str | None, *, auto: bool) -> dict[str, Any]:
        """Keep a point in time under a name."""
        if at is not None:
            return await keep_requests.request_keep(self._place, self._front, name, at, auto=auto)
        async with UploadWatch(self._place, self._front).running():
            return await keep_requests.request_keep(self._place, self._front, name, at, auto=auto)

    async def drop(self, names: Sequence[str]) -> dict[str, Any]:
        """Drop kept points by name or key."""
        return await keep_requests.request_drop(self._place, names)

    async def all(self) -> dict[str, Any]:
        """Return all kept points of the filesystem."""
        return await keep_requests.request_list(self._place)


class _Alone:
    """The kept points of a filesystem that this command has opened; same methods and results."""

    def __init__(self, session: Session, front: Front) -> None:
        self._session = session
        self._keeper = PointKeeper(session)
        self._front = front

    async def keep(self, name: str, at: str | None, *, auto: bool) -> dict[str, Any]:
        """Keep a point in time under a name."""
        wanted = None if at is None else point_in_time("--at", at)
        point = await self._keeper.keep(name, wanted, self._front.progress, auto=auto)
        return {"point": keep_requests.message_of(point)}

    async def drop(self, names: Sequence[str]) -> dict[str, Any]:
        """Drop kept points by name or key."""
        return {"objects": len(await self._keeper.drop(names))}

    async def all(self) -> dict[str, Any]:
        """Return all kept points of the filesystem."""
        kept = await self._session.reclaimer.kept_points()
        return await keep_requests.listed(kept, self._session.db, self._session.link.floor)


class Opening(NamedTuple):
    """An unmounted filesystem, and the options with which a command opens it."""

    place: Target
    access: options.BucketOptions
    opening: OpenOptions
    front: Front


@contextlib.asynccontextmanager
async def opened_session(target: Opening) -> AsyncIterator[Session]:
    """Open a filesystem that is not mounted as a mount does, for the duration of a context."""
    place, access, opening, front = target
    clock = SystemClock()
    async with (
        interruption.cancelled_by_signals(),
        opened_store(place.url, access.s3, counts=place.state) as store,
    ):
        state_dir, secret = StateDir(place.state), access.secret(front.ask)
        volume = await open_filesystem(store, state_dir, secret, clock, opening, front.progress)
        for notice in volume.notices:
            front.notice(with_options(notice, place.url, access.s3, place.state))
        session = Session(volume, SessionOptions(), clock, bounds=COMMAND_BOUNDS)
        try:
            session.recover()
            yield session
        finally:
            with trio.move_on_after(CLOSE_S_MAX, shield=True):
                await session.close()


async def _change_alone(target: Opening, wanted: _Wanted) -> dict[str, Any]:
    """Change the kept points of a filesystem that is not mounted."""
    async with opened_session(target) as session:
        result = await _change(_Alone(session, target.front), wanted)
        await session.flush_at_end(target.front.progress)
        names, uuid = session.reclaimer.kept_names, session.volume.uuid
        await KnownPoints(target.place.state, uuid, lambda: session.link, lambda: names).save()
        return result


async def _listed(target: Opening) -> dict[str, Any]:
    """Return the kept points as the mount reports them; without a mount, read the bucket."""
    place, access, _opening, front = target
    try:
        return await keep_requests.request_list(place)
    except NotMountedError:
        if place.mountpoint is not None:
            raise
    async with opened_bucket(Reading(place, access.s3, access.passphrase_file, front)) as bucket:
        kept = await KeptPointReader(bucket.store, bucket.keyring, bucket.uuid).all()
        return await keep_requests.listed(kept, None, NO_FLOOR)


async def _run(target: Opening, wanted: _Wanted) -> dict[str, Any]:
    """Perform the action that the user chose.

    Raises:
        NotMountedError: the user gave a mountpoint, and no filesystem is mounted there.
    """
    if wanted.shows:
        return await _listed(target)
    if wanted.policy is not None and wanted.dry_run:
        return _expired(await _listed(target), wanted.policy)
    try:
        return await _change(_Mounted(target.place, target.front), wanted)
    except NotMountedError:
        if target.place.mountpoint is not None:
            raise
    with without_new_remains(target.place.state):
        return await _change_alone(target, wanted)


async def _change(points: _Mounted | _Alone, wanted: _Wanted) -> dict[str, Any]:
    if wanted.drop:
        return {"dropped": wanted.drop, **await points.drop(wanted.drop)}
    if wanted.policy is None:
        return await points.keep(wanted.name, wanted.at, auto=wanted.auto)
    result = _expired(await points.all(), wanted.policy)
    # Points are dropped by key, so a newer point with the same name is never dropped.
    await points.drop([one["key"] for one in result["points"] if not one["reasons"]])
    return {**result, "dropped": True}


def _expired(listed: dict[str, Any], policy: Policy) -> dict[str, Any]:
    """Return the points that may expire, each with the periods that keep it."""
    facts = {one["key"]: one for one in listed["points"]}
    fields = ExpiringPoint._fields
    points = [ExpiringPoint(*map(one.__getitem__, fields)) for one in listed["points"]]
    rows = [{**facts[point.key], "reasons": list(why)} for point, why in judge(points, policy)]
    return {"points": rows, "dropped": False}


# --- print the results -------------------------------------------------------------------------


def _show(wanted: _Wanted, result: dict[str, Any]) -> None:
    if wanted.shows:
        _show_list(result)
    elif wanted.policy is not None:
        _show_expired(result)
    elif wanted.drop:
        output.print_text(f"dropped {', '.join(wanted.drop)}; reclaim frees the space")
    else:
        point = result["point"]
        output.print_text(
            f"kept {point['name']}: txg {point['txg']} of {format_time(point['created_ns'])}"
        )


def _show_list(result: dict[str, Any]) -> None:
    for one in result["unreadable"]:
        output.print_text(f"{one['key']} cannot be read: {one['why']}")
    shown = len(result["unreadable"])
    more = result.get("unreadable_count", shown) - shown
    if more:
        output.print_text(f"{more} more objects of kept points cannot be read")
    if not result["points"]:
        output.print_text("no point in time is kept")
        return
    rows = [
        (
            one["name"] + (" (auto)" if one["auto"] else ""),
            format_time(one["created_ns"]),
            str(one["txg"]),
            "-" if one["alone_bytes"] is None else output.human_bytes(one["alone_bytes"]),
        )
        for one in result["points"]
    ]
    output.print_columns(("name", "time", "txg", "needed only by it"), rows)
    if result["held_bytes"] is None:
        output.print_text("the sizes are known only while this host has the filesystem mounted")
    else:
        output.print_text(f"all kept points need {output.human_bytes(result['held_bytes'])}")


def _show_expired(result: dict[str, Any]) -> None:
    verb = "dropped" if result["dropped"] else "would drop"
    for one in result["points"]:
        when = format_time(one["created_ns"])
        what = f"keeps ({', '.join(one['reasons'])})" if one["reasons"] else verb
        output.print_text(f"{what}: {one['name']}, {when}")
    released = sum(not one["reasons"] for one in result["points"])
    output.print_text(f"{verb} {released} of {counted(len(result['points']), 'point')}")
