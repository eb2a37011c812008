"""The time for which the event loop is blocked while a transaction group (txg) is cut.

The benchmark makes inodes and dentries as a mount does, and ships a txg to a store in memory. The
duration of the cut is the time from the start of the flush to the hook "txg cut". The longest stall
is the longest time for which no other task could run while the txg was shipped.
"""

import time
from pathlib import Path
from typing import Final

import trio

from contrib.bench import targets
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec.key_slots import CHEAPEST_COST
from s3fs_meta.limits import CLEANUP_S_MAX, MIB
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.administration.mkfs import NewFilesystem, make_filesystem
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions

CUT_MS_MAX: Final = 5.0
ROWS_PER_FILE: Final = 2  # Each file has an inode row and a dentry row.
GROUP_FILES: Final = 200
FILE_MODE: Final = 0o100644


def run(scratch: Path, *, rows: int, rounds: int) -> dict[str, object]:
    """Measure *rounds* cuts, each after changes of *rows* rows."""
    cuts, stalls = trio.run(_measure, scratch, rows // ROWS_PER_FILE, rounds)
    median_ms = sorted(cuts)[len(cuts) // 2]
    return {
        "changed_rows": rows,
        "cut_ms": {"median": median_ms, "max": max(cuts), "values": cuts},
        "longest_stall_ms": {"median": sorted(stalls)[len(stalls) // 2], "max": max(stalls)},
        "targets": [targets.at_most("a cut stops the loop", median_ms, CUT_MS_MAX, "ms")],
    }


async def _measure(scratch: Path, files: int, rounds: int) -> tuple[list[float], list[float]]:
    store = MemoryStore()
    wanted = NewFilesystem(
        label="cut", block_bytes=MIB, page_size=4096, passphrase=None, cost=CHEAPEST_COST
    )
    await make_filesystem(store, wanted, scratch, SystemClock())
    opened = await open_filesystem(
        store, StateDir(scratch / "state"), Passphrase(bytes), SystemClock(), OpenOptions()
    )
    began_s = 0.0
    cuts: list[float] = []

    def hook(step: str) -> None:
        if step == "txg cut":
            cuts.append((time.perf_counter() - began_s) * 1e3)

    session = Session(opened, SessionOptions(), SystemClock(), hook)
    session.recover()
    session.start()
    stalls = []
    try:
        for number in range(rounds):
            _change(session, files, Txg(number))
            began_s = time.perf_counter()
            stalls.append(await _stall_of(session))
    finally:
        with trio.move_on_after(CLEANUP_S_MAX, shield=True):
            await session.close()
    return cuts, stalls


def _change(session: Session, files: int, round_number: Txg) -> None:
    for number in range(files):
        session.db.begin()
        made = inodes.create(session.db, FILE_MODE, 0, 0, ROOT_INO, time.time_ns())
        dentries.add(session.db, ROOT_INO, b"%d-%d" % (round_number, number), made.ino)
        if number % GROUP_FILES == 0:
            session.db.commit()


async def _stall_of(session: Session) -> float:
    """Ship a txg; return the longest time in milliseconds during which no other task ran."""
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        before_s = time.perf_counter()
        while True:
            await trio.lowlevel.checkpoint()
            now_s = time.perf_counter()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.lowlevel.checkpoint()
        await session.flush()
        nursery.cancel_scope.cancel()
    return longest_s * 1e3
