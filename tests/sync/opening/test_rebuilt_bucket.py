"""Local state of a host that was offline while another host rebuilt the filesystem."""

from pathlib import Path

import pytest

from s3fs_meta.codec import changelog
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino, Txg
from s3fs_meta.sync.session import Session
from tests.check import rebuilding
from tests.sync.conftest import Power, keys_of, read_file, remove_file, unmount, write_file
from tests.sync.histories import PUBLISH
from tests.sync.history.readers import at
from tests.sync.kept import Files, files_of, fill, forget

pytestmark = pytest.mark.thorough


async def write_files(power: Power, host: str = "a") -> tuple[Files, Txg]:
    """Write three files, one in each txg, and unmount; return the files and the last txg."""
    files: Files = {}
    async with power.session(host, tasks=False) as session:
        for number in range(3):
            fill(session, files, b"%d after %d" % (number, session.link.txg) * 90)
            await session.flush()
        await session.flush_at_end()
        last = session.link.txg
        await session.close()
    return files, last


async def rebuild(power: Power) -> None:
    """Rebuild the filesystem after the loss of all images and of the first changelogs."""
    for key in [*keys_of(power, "image/"), changelog.key_of(Txg(1))]:
        del power.store.objects[key]
    await rebuilding.run(power)


def quarantined(power: Power, host: str = "a") -> list[Path]:
    """Return the directories that contain quarantined states."""
    return sorted((power.home / host).glob("kept-*"))


def require_files_in(kept: Path, files: Files) -> None:
    """Require that the quarantined database contains all files."""
    db = Database.open(kept / "meta.db", Pragmas())
    assert {ino for (ino,) in db.all("SELECT ino FROM inodes")} >= set(files)
    db.close()


async def test_mount_uses_the_rebuilt_state_and_quarantines_local_state(power: Power) -> None:
    """Local state from before a rebuild is not continued, because its next txg is in use."""
    files, _last = await write_files(power)
    await rebuild(power)

    async with power.session("a", tasks=False) as session:
        [notice] = session.volume.notices
        assert "recover-state --everything" in notice
        written = {write_file(session, b"later"): b"later"}
        await unmount(session)

    [kept] = quarantined(power)
    require_files_in(kept, files)
    async with power.session("c", tasks=False) as session:
        assert await read_file(session, *written) == b"later"


async def test_local_state_can_replace_the_rebuilt_state_in_the_bucket(power: Power) -> None:
    files, _last = await write_files(power)
    await rebuild(power)
    async with power.session("a", options=PUBLISH, tasks=False) as session:
        assert session.volume.mended
        await session.flush_at_end()
        last = session.link.txg
        await session.close()
    assert not quarantined(power)
    assert await files_of(power, at(last)) == files


@pytest.mark.parametrize("reclaimed", [False, True])
async def test_local_state_from_before_a_rebuild_is_quarantined(
    power: Power, reclaimed: bool
) -> None:
    """Local state from before a rebuild may be the only place that has all names."""
    await power.retain(0)
    files, last = await write_files(power)
    await rebuild(power)
    async with power.session("b", tasks=False) as session:
        if reclaimed:
            await forget(session, times=2)
            assert session.link.floor > last
        await unmount(session)

    async with power.session("a", tasks=False) as session:
        assert any("recover-state --everything" in one for one in session.volume.notices)

    [kept] = quarantined(power)
    require_files_in(kept, files)


async def test_local_state_of_a_replaced_history_is_quarantined(power: Power) -> None:
    """Host b quarantines its state after fsck -y --publish-local on host a replaced its txgs."""
    await power.retain(0)
    await write_files(power)
    older = dict(power.store.objects)
    _files, last = await write_files(power)
    power.store.objects.clear()
    power.store.objects.update(older)
    theirs: Files = {}
    async with power.session("b", tasks=False) as session:
        while session.link.txg <= last:
            fill(session, theirs, b"theirs %d" % session.link.txg)
            await session.flush()
        await unmount(session)
    async with power.session("a", options=PUBLISH, tasks=False) as session:
        await session.flush()
        await forget(session, times=2)
        assert session.link.floor > last + 3
        await unmount(session)

    async with power.session("b", tasks=False):
        pass

    [kept] = quarantined(power, "b")
    require_files_in(kept, theirs)


@pytest.mark.parametrize("publishes", [False, True])
@pytest.mark.parametrize("writes", ["files", "nothing"])
async def test_changes_missing_from_an_older_copy_of_the_bucket_are_quarantined(
    power: Power, writes: str, publishes: bool
) -> None:
    """Local state is kept even if its txgs are below the other history's retention floor."""
    await power.retain(0)
    await write_files(power)
    older = dict(power.store.objects)
    files, last = await write_files(power)
    power.store.objects.clear()
    power.store.objects.update(older)
    async with power.session("b", tasks=False) as session:
        while session.link.txg <= last + 5:
            if writes == "files":
                write_file(session, b"theirs %d" % session.link.txg)
            await session.make_image()
        await session.reclaimer.reclaim_all()
        assert session.link.floor > last
        await unmount(session)

    async with power.session("a", options=PUBLISH if publishes else None, tasks=False) as session:
        assert any("recover-state --everything" in one for one in session.volume.notices)

    [kept] = quarantined(power)
    require_files_in(kept, files)


@pytest.mark.parametrize("lost", ["removal", "rename"])
async def test_removal_missing_from_an_older_copy_is_quarantined_after_the_retention(
    power: Power, lost: str
) -> None:
    """A removal or rename is detected although it adds neither a number nor content."""
    await power.retain(0)
    files, _last = await write_files(power)
    older = dict(power.store.objects)
    async with power.session("a", tasks=False) as session:
        if lost == "removal":
            remove_file(session, min(files))
        else:
            move(session, min(files))
        await session.flush_at_end()
        last = session.link.txg
        await session.close()
    power.store.objects.clear()
    power.store.objects.update(older)
    async with power.session("b", tasks=False) as session:
        while session.link.txg <= last + 5:
            write_file(session, b"theirs %d" % session.link.txg)
            await session.make_image()
        await session.reclaimer.reclaim_all()
        assert session.link.floor > last
        await unmount(session)

    async with power.session("a", tasks=False) as session:
        assert any("recover-state --everything" in one for one in session.volume.notices)
    assert quarantined(power)


def move(session: Session, ino: Ino) -> None:
    """Change the name of a file and its change time, as rename(2) does."""
    session.db.begin()
    dentries.add(session.db, ROOT_INO, b"renamed", ino)
    inodes.touch(session.db, ino, ctime_ns=inodes.get(session.db, ino).ctime_ns + 1)


async def test_outdated_local_state_of_an_unreplaced_history_is_deleted_after_the_retention(
    power: Power,
) -> None:
    await power.retain(0)
    _files, last = await write_files(power)
    async with power.session("b", tasks=False) as session:
        await forget(session, times=2)
        assert session.link.floor > last
        await unmount(session)
    async with power.session("a", tasks=False) as session:
        assert session.volume.notices == ()
    assert not quarantined(power)


async def test_image_is_restored_if_all_later_changelogs_are_lost(power: Power) -> None:
    """If all later changelogs are lost, local state cannot continue, because txgs would repeat."""
    _files, last = await write_files(power)
    async with power.session("b", tasks=False) as session:
        written = {write_file(session, b"theirs"): b"theirs"}
        await session.make_image()
        await unmount(session)
    for key in keys_of(power, "changelog/"):
        if (changelog.parse_key(key) or 0) > last:
            del power.store.objects[key]
    async with power.session("a", tasks=False) as session:
        assert await read_file(session, *written) == b"theirs"
