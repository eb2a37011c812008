"""Tests of opening a filesystem for a mount, and of changing its database page size."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.errors import DatabaseFullError, StoreUnavailableError
from s3fs_meta.mount import acquisition
from s3fs_meta.mount.acquisition import open_for_mount, page_size_of
from s3fs_meta.mount.plan import make_plan
from s3fs_meta.mount.stores import opened_store
from s3fs_meta.options.settings import parse_mount_options
from s3fs_meta.sync.opening.opening import close_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.cli.conftest import Place
from tests.cli.fsck_in_process import state_of
from tests.faults import raising
from tests.programs import Program


def _page_size(
    place: Place,
    cachedir: Path,
    words: str = "",
    *,
    publish: bool = True,
    hook: Callable[[str, FaultyStore], None] = lambda _step, _store: None,
) -> int:
    """Open a filesystem as a mount does and upload a new page size; return the page size."""
    plan = make_plan(
        place.url, place.mountpoint, parse_mount_options([f"cachedir={cachedir}", words])
    )

    async def run() -> int:
        async with opened_store(plan.place.url, plan.s3) as inner:
            store = FaultyStore(inner)
            hooked = replace(plan.open, hook=lambda step: hook(step, store))
            front, clock = TerminalFront(quiet=True), SystemClock()
            wanted = replace(plan, open=hooked)
            opened = await open_for_mount(wanted, store, Passphrase(bytes), clock, front)
            found = page_size_of(opened.db)
            if publish:
                await Session(opened, plan.options, clock).flush_at_end()
            await close_filesystem(opened, release=publish)
            return found

    return trio.run(run)


def _is_released(place: Place) -> bool:
    return lease_codec.decode(lease_codec.KEY, (place.bucket / "lease").read_bytes()).released


def test_new_database_page_size_is_used_on_all_hosts(program: Program, place: Place) -> None:
    """A new page size is used on this host, and in later restores on other hosts."""
    assert _page_size(place, program.cachedir) == 4096
    assert _page_size(place, program.cachedir, "page_size=16K") == 16384

    assert _page_size(place, program.cachedir) == 16384
    assert _page_size(place, program.cachedir.with_name("elsewhere")) == 16384
    assert program.status(place.url)["page_size_bytes"] == 16384


def test_new_database_page_size_is_uploaded_by_a_later_mount(
    program: Program, place: Place
) -> None:
    """If an unmount cannot upload the new page size, the next mount uploads it."""
    _page_size(place, program.cachedir, "page_size=8K", publish=False)
    assert _page_size(place, program.cachedir) == 8192

    assert _page_size(place, program.cachedir.with_name("elsewhere")) == 8192


def test_mount_with_an_unchanged_page_size_begins_only_one_epoch(
    program: Program, place: Place
) -> None:
    """Only a change of the page size opens the filesystem a second time, in another epoch."""
    _page_size(place, program.cachedir, "page_size=4K")

    assert program.status(place.url)["epoch"] == 1


def test_failed_change_of_the_page_size_releases_the_lease(program: Program, place: Place) -> None:
    """If the disk has no space for a second database, another host can mount the filesystem."""
    _page_size(place, program.cachedir)
    (state_of(place, program.cachedir).path / "meta.db-resized").mkdir()

    with pytest.raises(OSError, match=r"meta\.db-resized"):
        _page_size(place, program.cachedir, "page_size=16K")

    assert _is_released(place)
    assert _page_size(place, program.cachedir.with_name("elsewhere")) == 4096


@pytest.mark.parametrize("step", ["nonce noted", "lease taken", "fence put", "fence confirmed"])
def test_failed_opening_after_a_change_of_the_page_size_releases_the_lease(
    program: Program, place: Place, step: str
) -> None:
    """The second opening fails because the disk is full or the superblock cannot be written."""
    _page_size(place, program.cachedir)
    reached: list[str] = []

    def fail(now: str, store: FaultyStore) -> None:
        reached.append(now)
        if reached.count(step) < 2 or now != step:
            return
        if step == "fence confirmed":
            store.fail("replace", StoreUnavailableError("superblock", 1, 0.0, "away"))
        else:
            raise DatabaseFullError("the disk is full")

    with pytest.raises((DatabaseFullError, StoreUnavailableError)):
        _page_size(place, program.cachedir, "page_size=16K", hook=fail)

    assert _is_released(place)
    assert _page_size(place, program.cachedir.with_name("elsewhere")) == 4096
    assert _page_size(place, program.cachedir) == 16384


@pytest.mark.parametrize("damaged", [False, True])
def test_mount_that_fails_to_heal_holes_releases_the_lease(
    program: Program, place: Place, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """The mount keeps the lease if this host has the only intact copy of the last txg."""
    _page_size(place, program.cachedir)
    last = max(place.bucket.glob("changelog/*"))
    if damaged:
        last.write_bytes(b"rotten")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(acquisition, "heal_holes", raising(full))

    with pytest.raises(OSError, match="No space left"):
        _page_size(place, program.cachedir)

    assert _is_released(place) != damaged


@pytest.mark.mount
def test_mount_reports_a_restore_only_without_local_state(place: Place, program: Program) -> None:
    def mount(cachedir: Path) -> str:
        done = program.run("mount", place.url, place.mountpoint, "--cachedir", cachedir, here=False)
        (place.mountpoint / "file").touch()
        program.ok("umount", place.mountpoint, "--cachedir", cachedir, here=False)
        return done.stderr

    elsewhere = program.cachedir.with_name("elsewhere")

    assert "restored" not in mount(program.cachedir)
    assert "restored the metadata of 2 files and directories from the bucket" in mount(elsewhere)
    assert "restored" not in mount(elsewhere)
