"""The history listing: txgs, read backwards from the newest txg."""

from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from s3fs_meta.codec.changelog import Kind
from s3fs_meta.errors import FormatError, NewerFormatError, StoreUnavailableError
from s3fs_meta.meta.changesets import Summary
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import ROOT_INO, Ino, Txg
from s3fs_meta.sync.chain.chain import FetchedChangelog
from s3fs_meta.sync.changelog import writer as changelog_writer
from s3fs_meta.sync.history.snapshot_mount import Bucket
from s3fs_meta.sync.history.versions import txg_log
from s3fs_meta.sync.history.versions.txg_log import TxgRecord, describe
from s3fs_meta.sync.session import Session
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import TAKEOVER, Power, remove_file, ship, write_file
from tests.sync.history.readers import bucket_of


def named(session: Session, name: bytes) -> Ino:
    """Create a file with a name and content."""
    ino = write_file(session, name * 100)
    dentries.add(session.db, ROOT_INO, name, ino)
    return ino


async def entries(bucket: Bucket) -> list[TxgRecord]:
    """Return the complete history listing."""
    last = await bucket.points.newest()
    async with aclosing(txg_log.backwards(bucket, last, Txg(0))) as changelogs:
        return [
            await describe(bucket, one)
            async for one in changelogs
            if isinstance(one, FetchedChangelog)
        ]


async def test_history_listing_shows_the_kind_and_size_of_each_txg(power: Power) -> None:
    """The history lists fence records, images and groups, and the stored size of new blocks."""
    async with power.session("a", tasks=False) as session:
        ino = named(session, b"f")
        await ship(session)
        remove_file(session, ino)
        await ship(session)
        await session.publish_as_txg()

    image, removed, made, fence = await entries(await bucket_of(power))

    assert [one.link.txg for one in (image, removed, made, fence)] == [4, 3, 2, 1]
    assert [one.kind for one in (image, removed, fence)] == [Kind.IMAGE, Kind.GROUP, Kind.FENCE]
    assert image.changes is None
    assert made.changes == Summary(created=1, removed=0, changed=0, names=1, blocks=1)
    assert removed.changes == Summary(created=0, removed=1, changed=0, names=0, blocks=1)
    assert (made.stored_bytes > 0, removed.stored_bytes, fence.epoch) == (True, 0, 1)


async def test_changelog_of_a_newer_schema_version_is_not_reported_as_damage(
    power: Power, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changelog of a newer program is reported as newer by the history and by a mount."""
    async with power.session("a", tasks=False) as session:
        named(session, b"f")
        monkeypatch.setattr(changelog_writer, "SCHEMA_VERSION", 99)
        await ship(session)

    with pytest.raises(NewerFormatError, match=r"schema version 99 is unknown; upgrade"):
        await entries(await bucket_of(power))
    with pytest.raises(NewerFormatError, match=r"schema version 99 is unknown; upgrade"):
        async with power.session("b", options=TAKEOVER):
            pass
    assert not (tmp_path / "b" / "meta.db").exists()


async def test_history_listing_fails_if_a_changelog_was_replaced(power: Power) -> None:
    """The history listing compares each changelog with the hash in the next changelog."""
    async with power.session("a", tasks=False) as session:
        objects = dict(power.store.objects)
        for content in (b"one", b"three"):
            write_file(session, content)
            await ship(session)
    ours = power.store.objects
    power.store.objects = objects
    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        write_file(session, b"two")
        await ship(session)
    key = next(key for key in ours if key.endswith("changelog/000000000002"))
    ours[key] = power.store.objects[key]
    power.store.objects = ours

    with pytest.raises(FormatError, match="records a different hash"):
        await entries(await bucket_of(power))


async def test_history_listing_reports_that_the_bucket_is_unavailable(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        named(session, b"f")
        await ship(session)
    bucket = await bucket_of(power)
    last, store = await bucket.points.newest(), FaultyStore(power.store)
    store.down = StoreUnavailableError("changelog", 8, 60.0, "no route to host")

    with pytest.raises(StoreUnavailableError, match="no route to host"):
        async with aclosing(txg_log.backwards(replace(bucket, store=store), last, Txg(0))) as found:
            _ = [one async for one in found]
