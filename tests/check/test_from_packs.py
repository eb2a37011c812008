"""Tests of rebuilding a filesystem from its packs alone."""

import pytest

from s3fs_meta.check.from_packs import rebuild
from s3fs_meta.check.report import Mode
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.lease import KEY as LEASE
from s3fs_meta.errors import FormatError, PreconditionError
from s3fs_meta.limits import FILE_BYTES_MAX, TEXT_OBJECT_BYTES_MAX
from s3fs_meta.meta.lost_names import LOST_FOUND
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import BlockId, BlockIndex, Epoch, Ino, Txg
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.upload.cut import Cut
from s3fs_meta.sync.volume import OpenOptions
from tests.check.rebuilding import run
from tests.check.survey.checking import checked
from tests.sync.conftest import Power, location_of, read_file, remove_file, unmount, write_file
from tests.sync.kept import Files, files_at, fill, forget

pytestmark = pytest.mark.thorough

LARGEST = (1 << 63) - 1


def lose_metadata(power: Power) -> None:
    """Delete every object except packs and superblocks."""
    for key in list(power.store.objects):
        if not key.startswith(("pack/", "superblock")):
            del power.store.objects[key]


async def write_and_lose_metadata(power: Power) -> dict[Ino, bytes]:
    """Write files and delete all metadata objects; return the contents by inode number."""
    contents: dict[Ino, bytes] = {}
    async with power.session("a", tasks=False) as session:
        for number in range(5):
            content = b"content %d " % number * 700
            contents[write_file(session, content)] = content
            await session.flush()
        await session.make_image()
        await session.close()
    lose_metadata(power)
    return contents


async def test_rebuild_restores_the_content_of_all_files_into_lost_and_found(power: Power) -> None:
    """Every rebuilt file is in lost+found under its inode number, and fsck reports no damage."""
    contents = await write_and_lose_metadata(power)

    assert await run(power) == (5, 5, [])

    async with power.session("b", tasks=False) as session:
        home = dentries.find(session.db, Ino(1), LOST_FOUND)
        assert home is not None
        for ino, content in contents.items():
            assert dentries.find(session.db, home, b"#%d" % ino) == ino
            assert await read_file(session, ino) == content
        report = await checked(session, deep=True)
        assert {verdict.invariant for verdict in report.verdicts if verdict.found} <= {"I49"}
        assert write_file(session, b"life goes on") > max(contents)


async def test_rebuild_loses_only_the_files_in_an_unreadable_pack(power: Power) -> None:
    """The rebuild reports the key of the unreadable pack, and does not delete the object."""
    contents = await write_and_lose_metadata(power)
    packs = sorted(key for key in power.store.objects if key.startswith("pack/"))
    power.store.objects[packs[0]] = power.store.objects[packs[0]][:-1]

    files, read, unreadable = await run(power)

    assert (files, read, unreadable) == (4, 4, [packs[0]])
    assert packs[0] in power.store.objects
    async with power.session("b", tasks=False) as session:
        home = dentries.find(session.db, Ino(1), LOST_FOUND)
        assert home is not None
        left = [ino for ino in contents if dentries.find(session.db, home, b"#%d" % ino)]
        for ino in left:
            assert await read_file(session, ino) == contents[ino]
        assert len(left) == 4


@pytest.mark.parametrize(
    ("ino", "block", "index"),
    [(2, LARGEST, 0), (LARGEST, 1000, 0), (2, 1000, LARGEST), (2, 1000, FILE_BYTES_MAX)],
)
async def test_rebuild_keeps_packs_with_impossible_numbers_as_unreadable(
    power: Power, ino: int, block: int, index: int
) -> None:
    """Anyone who can write to the bucket of a plain filesystem can forge such a pack."""
    contents = await write_and_lose_metadata(power)
    keyring = (await power.keys()).keyring
    writer = pack_codec.PackWriter(pack_codec.new_key(Epoch(1), bytes(16)), keyring, "none")
    hashed = keyring.block_hash(b"forged")
    writer.add(BlockId(block), Ino(ino), BlockIndex(index), hashed, b"forged")
    power.store.objects[writer.key] = bytes(writer.finish().data)

    assert await run(power) == (5, 5, [writer.key])

    async with power.session("b", tasks=False) as session:
        for number, content in contents.items():
            assert await read_file(session, number) == content


async def test_rebuild_changes_nothing_if_no_pack_can_be_opened(power: Power) -> None:
    """If no pack can be decrypted, the superblock may belong to another filesystem."""
    await write_and_lose_metadata(power)
    for key in [key for key in power.store.objects if key.startswith("pack/")]:
        power.store.objects[key] = power.store.objects[key][:-1]
    before = dict(power.store.objects)

    with pytest.raises(FormatError, match="none of the 5 packs"):
        await run(power)

    assert power.store.objects == before


async def test_unreadable_pack_is_kept_after_the_retention_ends(power: Power) -> None:
    """A later program or another key may be able to read an unreadable pack."""
    await write_and_lose_metadata(power)
    await power.retain(0)
    packs = sorted(key for key in power.store.objects if key.startswith("pack/"))
    whole = power.store.objects[packs[0]]
    power.store.objects[packs[0]] = whole[:-1]
    await run(power)
    async with power.session("b", tasks=False) as session:
        report = await checked(session, Mode.ALL, delete_unknown=True)
        assert "I49" not in report.broken
        await session.close()
    assert packs[0] in power.store.objects

    for _ in range(2):  # The epoch of session 2 is later than the epoch of the retention floor.
        async with power.session("b", tasks=False) as session:
            for number in range(3):
                write_file(session, b"later %d" % number)
                await session.make_image()
            await unmount(session)

    assert packs[0] in power.store.objects


async def test_rebuilt_file_has_the_newest_content_of_each_overwritten_block(power: Power) -> None:
    """A rebuild ignores earlier content of an overwritten block in an older pack."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"old" * 1000)
        await session.flush()
        located = location_of(session, ino)
        session.db.begin()
        block = session.cache.copy_on_write(located, ino, 0, 3000)  # type: ignore[arg-type]
        session.db.run("UPDATE block_map SET block = ? WHERE ino = ?", (block, ino))
        session.cache.release(located.block)
        renewed = location_of(session, ino)
        session.cache.write_in_place(renewed, 0, b"new" * 1000)
        await session.flush()
        await session.close()
    lose_metadata(power)

    await run(power)

    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == b"new" * 1000


async def test_rebuilt_filesystem_has_a_later_epoch_than_the_former_writer(power: Power) -> None:
    """The keys of packs contain the former epoch, so the former writer is fenced."""
    await write_and_lose_metadata(power)
    assert LEASE not in power.store.objects
    await run(power)
    async with power.session("b", tasks=False) as session:
        assert session.volume.keeper.epoch >= 2


@pytest.mark.parametrize("left", ["a changelog", "a lease", "a huge lease"])
async def test_rebuild_ignores_leftover_changelogs_and_an_oversized_lease(
    power: Power, left: str
) -> None:
    """A rebuild overwrites no remaining changelog, and accepts an oversized lease."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"content")
        await session.flush()
        await session.close()
    for key in list(power.store.objects):
        keep = ("pack/", "superblock", "changelog/" if left == "a changelog" else "lease")
        if not key.startswith(keep):
            del power.store.objects[key]
    if left == "a huge lease":
        power.store.objects[LEASE] += bytes(TEXT_OBJECT_BYTES_MAX)
    before = dict(power.store.objects)

    await run(power)

    for key, data in before.items():
        assert power.store.objects[key] == data or key == LEASE
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == b"content"
        write_file(session, b"more")
        await session.flush()


@pytest.mark.parametrize("before", ["none", "released"])
async def test_rebuild_is_refused_if_another_host_takes_the_lease_during_the_rebuild(
    power: Power, before: str
) -> None:
    async with power.session("a", tasks=False) as session:
        write_file(session, b"content")
        await session.flush()
        await session.close()
    lease = power.store.objects[LEASE]
    lose_metadata(power)
    if before == "released":
        power.store.objects[LEASE] = lease
    keys = await power.keys()
    (power.home / "scratch").mkdir()

    def take(_what: str, _done: int, _total: int) -> None:
        power.store.objects[LEASE] = b"another"

    with pytest.raises(PreconditionError):
        await rebuild(
            power.store,
            keys.keyring,
            keys.superblock,
            power.home / "scratch",
            SystemClock(),
            take,
            lambda: None,
        )

    assert power.store.objects[LEASE] == b"another"


async def test_leftover_objects_of_the_old_chain_are_ignored_after_a_rebuild(power: Power) -> None:
    """New epochs and txgs are higher than all numbers in old levels, image pieces and leases."""
    async with power.session("a", tasks=False) as session:
        for number in range(12):
            write_file(session, b"%d" % number)
            await session.flush()
        await session.leveler.make_due()
        await session.make_image()
        await session.close()
    async with power.session("a", tasks=False) as session:
        epoch = session.volume.keeper.epoch  # No pack in the bucket has this epoch.
        await session.close()
    for key in list(power.store.objects):
        if key.startswith("changelog/") or key.endswith("/manifest"):
            del power.store.objects[key]

    await run(power)

    async with power.session("b", tasks=False) as session:
        assert session.volume.keeper.epoch > epoch + 1
        for number in range(5):
            write_file(session, b"new %d" % number)
            await session.flush()
        last = write_file(session, b"the last")
        await session.flush()
        await session.close()
    async with power.session("c", tasks=False) as session:
        assert await read_file(session, last) == b"the last"
        assert session.volume.notices == ()


async def _write_as_a_fenced_host(power: Power) -> dict[Ino, bytes]:
    """Upload packs of a host that is fenced; return the content that the next writer shipped."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"both have it")
        await session.flush()
        for number in range(8):
            write_file(session, b"never shipped %d" % number)
        cut = Cut(session.uploader.sealer.seal_all(), BlockId(session.db.counters.next_block))
        session.uploader.begin_cut(cut)
        await session.uploader.drain(cut)
    contents: dict[Ino, bytes] = {}
    options = OpenOptions(force_takeover=True)
    async with power.session("b", options=options, tasks=False) as session:
        for number in range(8):
            content = b"shipped %d" % number
            contents[write_file(session, content)] = content
            await session.flush()
        await session.close()
    return contents


async def test_blocks_of_a_fenced_host_are_rebuilt_into_separate_files(power: Power) -> None:
    """If a fenced host and the next writer used the same inode number, two files are rebuilt."""
    contents = await _write_as_a_fenced_host(power)
    lose_metadata(power)

    await run(power)

    async with power.session("c", tasks=False) as session:
        for ino, content in contents.items():
            assert await read_file(session, ino) == content
        home = dentries.find(session.db, Ino(1), LOST_FOUND)
        assert home is not None
        [aside] = [ino for ino in contents if dentries.find(session.db, home, b"#%d-1" % ino)][:1]
        other = dentries.find(session.db, home, b"#%d-1" % aside)
        assert other is not None
        assert (await read_file(session, other)).startswith(b"never shipped")


async def test_rebuild_can_be_repeated_if_lost_and_found_has_the_same_names(power: Power) -> None:
    """The image of the first rebuild has a name for the content of a fenced host."""
    content = await _write_as_a_fenced_host(power)
    lose_metadata(power)
    await run(power)
    del power.store.objects[LEASE]

    await run(power)

    async with power.session("c", tasks=False) as session:
        for ino, known in content.items():
            assert await read_file(session, ino) == known
        home = dentries.find(session.db, Ino(1), LOST_FOUND)
        assert home is not None
        rows = session.db.all("SELECT ino FROM dentries WHERE parent = ?", (home,))
        found = {await read_file(session, Ino(row[0])) for row in rows}
        assert {b"never shipped %d" % number for number in range(8)} <= found


async def test_failed_rebuild_keeps_the_local_state(power: Power) -> None:
    """The local state is quarantined only after all pieces of the new image are stored."""
    await write_and_lose_metadata(power)
    moved: list[int] = []
    keys = await power.keys()
    (power.home / "scratch").mkdir()

    async def make() -> None:
        await rebuild(
            power.store,
            keys.keyring,
            keys.superblock,
            power.home / "scratch",
            SystemClock(),
            no_progress,
            lambda: moved.append(len([key for key in power.store.objects if "image/" in key])),
        )

    packs = {key: data for key, data in power.store.objects.items() if key.startswith("pack/")}
    power.store.objects.update({key: data[:-1] for key, data in packs.items()})
    with pytest.raises(FormatError, match="none of the 5 packs"):
        await make()
    assert moved == []

    power.store.objects.update(packs)
    await make()
    assert moved == [1]  # The new image has one piece, and its manifest is not yet stored.


async def test_kept_point_can_be_restored_after_a_rebuild(power: Power) -> None:
    """The rebuild gives packs new numbers before a backup restores the metadata of the point."""
    files: Files = {}
    async with power.session("a", tasks=False) as session:
        for number in range(3):
            fill(session, files, b"%d" % number * 700)
            await session.flush()
        point = await PointKeeper(session).keep("kept")
        await session.close()
    async with power.session("a", tasks=False) as session:
        for number in range(5):
            fill(session, {}, b"later %d" % number * 700)
            await session.flush()
        await session.close()
    keys = [key for key in power.store.objects if key.startswith("image/")]
    lost = {key: power.store.objects.pop(key) for key in (*keys, key_of(Txg(1)))}
    await run(power)
    power.store.objects.update(lost)
    await power.retain(0)
    async with power.session("b", tasks=False) as session:
        for ino in files:
            remove_file(session, ino)
        await forget(session, times=2)
        assert session.link.floor > point.txg
        assert await files_at(power, "kept") == files
