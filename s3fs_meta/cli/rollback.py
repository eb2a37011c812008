"""``s3fs-meta rollback``: make an earlier state the current state of the filesystem."""

import sys
from typing import Annotated, NamedTuple

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.clock import SystemClock
from s3fs_meta.console import interruption, output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.interruption import Remains
from s3fs_meta.console.ui import Front, TerminalFront, answer_to
from s3fs_meta.counted import counted
from s3fs_meta.errors import HeldError, SettingsError, UsageError
from s3fs_meta.model import PointInTime
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.limits import LOCK_WAIT_S
from s3fs_meta.mount.stores import opened_store, with_options
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.options import option_syntax
from s3fs_meta.sync.administration.rollback import RolledBack, roll_back
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.points_in_time import described
from s3fs_meta.sync.history.snapshot_mount import read_bucket
from s3fs_meta.sync.host_state.state_dir import StateDir, is_locked, without_new_remains
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.unlocking import Secret
from s3fs_meta.sync.volume import OpenOptions

HELP = CommandHelp(
    name="rollback",
    summary="Make the state of a filesystem at a point in time its present state.",
    description=(
        "The filesystem must not be mounted on any host. The command first uploads changes of "
        "this host that are not in the bucket. Then it makes the older state the present state, "
        "as a new transaction group. The history stays, so a second rollback can undo the first, "
        "as long as the state before it is retained. s3fs-meta restore recovers single files.",
        "A point in time is a time in ISO 8601 (local unless it has a zone), an age (10m, 1h30m), "
        "txg=N or the name of a kept point. s3fs-meta log and keep --list list these points.",
    ),
    examples=(
        Example(
            "s3fs-meta rollback --at 2026-05-09T14:30 s3://bucket/home",
            "show both states, and ask for confirmation",
        ),
        Example(
            "s3fs-meta rollback --yes --at txg=1234 s3://bucket/home", "roll back from a script"
        ),
    ),
    exits=exits_of(*OF_BUCKET, ExitStatus.HELD, ExitStatus.UNCONDITIONAL, ExitStatus.FENCED),
)


class _Wanted(NamedTuple):
    """The filesystem, the point in time, and the options of a rollback."""

    place: Target
    s3: S3Options
    open: OpenOptions
    point_in_time: PointInTime
    confirmed: bool


def rollback(
    url: options.Url,
    at: Annotated[
        str,
        options.time_option(
            "--at", "Point in time: ISO 8601, an age such as 10m, txg=N, or a kept NAME."
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    *,
    access: options.BucketOptions,
    unsafe_single_writer: options.UnsafeSingleWriter = False,
    force_takeover: options.ForceTakeover = False,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta rollback``: make an earlier state the current state."""
    wanted = _Wanted(
        targets.of_url(url, access.cachedir),
        access.s3,
        OpenOptions(
            force_takeover=force_takeover,
            unsafe_single_writer=unsafe_single_writer,
            lock_wait_s=LOCK_WAIT_S,
            mend=Mend(anything=True),  # permitted, because the user agreed to abandon later txgs
        ),
        option_syntax.point_in_time("--at", at),
        confirmed=yes,
    )
    with (
        interruption.explained("nothing was changed") as remains,
        without_new_remains(wanted.place.state),
        TerminalFront(quiet=json) as front,
    ):
        past, done = trio.run(_rollback, wanted, access.secret(front.ask), front, remains)
        for notice in done.notices:
            front.notice(with_options(notice, wanted.place.url, wanted.s3, wanted.place.state))
    if json:
        output.print_json(
            {"url": url, "was": done.before.txg, "past": past.txg, "txg": done.now.txg}
        )
        return
    output.print_text(f"txg {done.now.txg} has the state of {described(past)}")
    undo = options.command("rollback", "--at", f"txg={done.before.txg}", *access.arguments, url)
    output.print_text(f"to undo it: {undo}")


async def _rollback(
    wanted: _Wanted, secret: Secret, front: Front, remains: Remains
) -> tuple[Link, RolledBack]:
    async with opened_store(wanted.place.url, wanted.s3, counts=wanted.place.state) as store:
        past = await _choose(wanted, store, secret, front)
        text = (
            "the present state is either still the one before the rollback, or already the one at"
            f" the given point in time; {options.command('log', wanted.place.url)} shows which. It is safe to"
            " run rollback again"
        )
        remains.change(with_options(text, wanted.place.url, wanted.s3, wanted.place.state))
        async with interruption.cancelled_by_signals():
            return past, await _roll_back(wanted, store, secret, past, front)


async def _roll_back(
    wanted: _Wanted, store: ObjectStore, secret: Secret, past: Link, front: Front
) -> RolledBack:
    clock, state_dir = SystemClock(), StateDir(wanted.place.state)
    volume = await open_filesystem(store, state_dir, secret, clock, wanted.open, front.progress)
    for notice in volume.notices:
        front.notice(with_options(notice, wanted.place.url, wanted.s3, wanted.place.state))
    return await roll_back(volume, past, clock, front.progress)


async def _choose(wanted: _Wanted, store: ObjectStore, secret: Secret, front: Front) -> Link:
    """Find the point in time, and ask for confirmation; nothing is changed.

    Raises:
        HeldError: the filesystem is mounted on this host. (Other hosts are checked at opening.)
        SettingsError: the point in time is unavailable, or is the present state.
        UsageError: the user did not confirm, or there is no terminal.
    """
    if is_locked(wanted.place.state):
        raise HeldError(f"the filesystem {store.url} is in use on this host; unmount it first")
    bucket = await read_bucket(store, Remembered(wanted.place.state), secret, SystemClock())
    past, present = await bucket.find(wanted.point_in_time), await bucket.points.newest()
    for notice in bucket.points.notices:
        front.notice(with_options(notice, wanted.place.url, wanted.s3, wanted.place.state))
    if past.txg == present.txg:
        raise SettingsError(
            f"there is nothing to roll back: {described(past)} is already the newest txg"
        )
    if bucket.points.unreadable_end:
        last = bucket.points.unreadable_end[-1]
        front.notice(f"txgs {present.txg + 1} to {last} cannot be read; the rollback abandons them")
    undone = counted(present.txg - past.txg, "transaction group")
    front.notice(f"the filesystem {store.url} will be rolled back from {described(present)}")
    front.notice(f"the rollback to {described(past)} undoes {undone}")
    if not wanted.confirmed:
        _require_yes()
    return past


def _require_yes() -> None:
    """Raise UsageError unless the user confirms the rollback by typing "yes"."""
    if not sys.stdin.isatty():
        raise UsageError("stdin is not a terminal; use --yes")
    if answer_to('Type "yes" to continue: ').strip().lower() != "yes":
        raise UsageError("the rollback was not confirmed; nothing was changed")
