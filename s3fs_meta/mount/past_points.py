"""Past states in a mount: the connection of ``fs.past`` to the session and the local state.

Owns: the rule that decides which mounts show past states, and the directories of temporary state.
Does not know: requests.
"""

import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.fetching.fetcher import Found
from s3fs_meta.clock import SystemClock
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.past.open_points import OpenPoints
from s3fs_meta.fs.past.past_clone import PastClone
from s3fs_meta.fs.past.past_tree import PastTree
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import ROOT_INO, Txg
from s3fs_meta.mount.past_sources import PastSources
from s3fs_meta.mount.plan import MountPlan
from s3fs_meta.state_paths import locate_snapshot_state
from s3fs_meta.sync.history.newest_locations import intact_location
from s3fs_meta.sync.host_state.state_dir import StateDir, remove_stale_snapshots
from s3fs_meta.sync.session import Session


class Past(NamedTuple):
    """The objects that show past states in a mount; all None if the mount itself shows one."""

    tree: PastTree | None
    run: Callable[[], Awaitable[None]] | None  # background task that closes idle points in time
    sources: PastSources | None  # finds the past files and trees to copy


def temporary_state(state: Path, txg: Txg, pid: int) -> Path:
    """Return the directory into which the daemon with the given PID restores the state at a txg."""
    return locate_snapshot_state(state, f"process {pid} txg {txg}")


def _may_spawn(mountpoint: Path) -> bool:
    """Return whether the daemon can start Python without accessing its own mount.

    The daemon is blocked until execve(2) has read the program. If the program were on the daemon's
    own mount, the daemon could not answer the read.
    """
    return not Path(sys.executable).resolve().is_relative_to(mountpoint)


def past_of(plan: MountPlan, session: Session, filesystem: Filesystem) -> Past:
    """Create the objects that show past states in a mount, before it serves requests."""
    if plan.options.at is not None:
        return Past(None, None, None)

    def state_of(txg: Txg) -> StateDir:
        return StateDir(temporary_state(plan.place.state, txg, os.getpid()))

    async def find_other_copy(located: Located) -> Found | None:  # noqa: RUF029 - callers await it
        return intact_location(session.db, located)

    points = OpenPoints(
        session.volume,
        session.cache.disk,
        state_of,
        find_other_copy,
        is_shared=filesystem.waiting_room.is_shared,
        may_spawn=_may_spawn(plan.mountpoint),
    )

    async def run() -> None:
        # This mount has no temporary state yet, so all temporary state is from killed mounts.
        await in_thread(remove_stale_snapshots, plan.place.state, Path())
        await points.run()

    tree = PastTree(
        points,
        os.fsencode(plan.options.snapdir),
        filesystem.block_bytes,
        partial(filesystem.getattr, ROOT_INO),
        SystemClock().now_ns,
    )
    clone = PastClone(session.db, points, filesystem.tree_clone, session.shipper.ship)
    return Past(tree, run, PastSources(session, points, tree, clone))
