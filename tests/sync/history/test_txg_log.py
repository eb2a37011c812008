"""The history of txgs, read from the newest txg backwards."""

from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

import pytest

from s3fs_meta.codec.changelog import Kind
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.meta.changesets import Summary
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino, Txg
from s3fs_meta.sync.chain.chain import Fetched
from s3fs_meta.sync.changelog import writer as changelog_writer
from s3fs_meta.sync.history import txg_log
from s3fs_meta.sync.history.snapshot_mount import Bucket
from s3fs_meta.sync.history.txg_log import TxgRecord, describe
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.upload.bounds import UploadBounds
from tests.sync.conftest import TAKEOVER, Power, remove_file, write_file
from tests.sync.history.readers import bucket_of, concerning


async def shipped(session: Session) -> Txg:
    """Ship all changes and return the txg."""
    link = await session.flush()
    assert link is not None
    return link.txg


def named(session: Session, parent: Ino, name: bytes, *, directory: bool = False) -> Ino:
    """Create a directory, or a file with content, with a name."""
    if directory:
        session.db.begin()
        ino = inodes.create(session.db, 0o40755, 0, 0, parent, 0, nlink=2).ino
    else:
        ino = write_file(session, name * 100)
        session.db.inodes.run("UPDATE inodes SET parent = ? WHERE ino = ?", (parent, ino))
    dentries.add(session.db, parent, name, ino)
    return ino


async def entries(bucket: Bucket) -> list[TxgRecord]:
    """Return the complete history."""
    last = await bucket.points.newest()
    async with aclosing(txg_log.backwards(bucket, last, Txg(0))) as changelogs:
        return [await describe(bucket, one) async for one in changelogs if isinstance(one, Fetched)]


async def test_history_lists_the_changes_of_each_txg(power: Power) -> None:
    """The history has fence records, images and groups, with the sizes of their uploads."""
    async with power.session("a", tasks=False) as session:
        ino = named(session, ROOT_INO, b"f")
        await shipped(session)
        remove_file(session, ino)
        await shipped(session)
        await session.publish_anew()

    image, removed, made, fence = await entries(await bucket_of(power))

    assert [one.link.txg for one in (image, removed, made, fence)] == [4, 3, 2, 1]
    assert [one.kind for one in (image, removed, fence)] == [Kind.IMAGE, Kind.GROUP, Kind.FENCE]
    assert image.changes is None
    assert made.changes == Summary(created=1, removed=0, changed=0, names=1, blocks=1)
    assert removed.changes == Summary(created=0, removed=1, changed=0, names=0, blocks=1)
    assert (made.stored_bytes > 0, removed.stored_bytes, fence.epoch) == (True, 0, 1)


async def test_changelog_of_a_newer_schema_is_not_reported_as_damage(
    power: Power, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the history and a mount report a changelog of a newer schema version as newer."""
    async with power.session("a", tasks=False) as session:
        named(session, ROOT_INO, b"f")
        monkeypatch.setattr(changelog_writer, "SCHEMA_VERSION", 99)
        await shipped(session)

    with pytest.raises(NewerFormatError, match=r"schema version 99, .*upgrade"):
        await entries(await bucket_of(power))
    with pytest.raises(NewerFormatError, match=r"schema version 99, .*upgrade"):
        async with power.session("b", options=TAKEOVER):
            pass
    assert not (tmp_path / "b" / "meta.db").exists()


async def test_history_with_a_replaced_changelog_is_refused(power: Power) -> None:
    """The history compares each changelog with the hash in the next one."""
    async with power.session("a", tasks=False) as session:
        objects = dict(power.store.objects)
        for content in (b"one", b"three"):
            write_file(session, content)
            await shipped(session)
    ours = power.store.objects
    power.store.objects = objects
    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        write_file(session, b"two")
        await shipped(session)
    key = next(key for key in ours if key.endswith("changelog/000000000002"))
    ours[key] = power.store.objects[key]
    power.store.objects = ours

    with pytest.raises(FormatError, match="names another"):
        await entries(await bucket_of(power))


class Txgs(NamedTuple):
    """The txgs in which the directory of the test and its file were changed."""

    made: Txg
    written: Txg
    image: Txg
    changed: Txg
    moved: Txg
    removed: Txg


async def change_a_path(session: Session) -> Txgs:
    """Create, touch, rename and remove top/sub/file; change other files in between."""
    db = session.db
    top = named(session, ROOT_INO, b"top", directory=True)
    sub = named(session, top, b"sub", directory=True)
    made = await shipped(session)
    file = named(session, sub, b"file")
    db.commit()
    db.begin()
    inodes.set_times(db, file, ctime_ns=5, mtime_ns=6, atime_ns=7)
    written = await shipped(session)
    other = named(session, ROOT_INO, b"other")
    await shipped(session)
    await session.publish_anew()
    image = session.link.txg
    db.begin()
    db.inodes.run("UPDATE inodes SET mode = 33216 WHERE ino = ?", (file,))
    changed = await shipped(session)
    db.begin()
    dentries.remove(db, ROOT_INO, b"top")
    dentries.add(db, ROOT_INO, b"moved", top)
    moved = await shipped(session)
    db.begin()
    dentries.remove(db, sub, b"file")
    remove_file(session, file)
    removed = await shipped(session)
    remove_file(session, other)
    await shipped(session)
    return Txgs(made, written, image, changed, moved, removed)


async def test_changes_of_a_path_are_found_across_removals_and_renames(
    power: Power, tmp_path: Path
) -> None:
    """Each txg is compared with the names that the path had then."""
    async with power.session("a", tasks=False, bounds=UploadBounds(run_bytes=1)) as session:
        reported = await change_a_path(session)
    bucket = await bucket_of(power)

    now = await concerning(bucket, tmp_path, b"moved/sub/file")
    assert now == [reported.removed, reported.moved, reported.image]
    (tmp_path / "again").mkdir()
    before = await concerning(bucket, tmp_path / "again", b"top/sub")
    assert before == [
        reported.moved,
        reported.changed,
        reported.image,
        reported.written,
        reported.made,
    ]
