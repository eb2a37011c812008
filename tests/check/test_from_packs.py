"""Rebuild of a filesystem from its packs, and from an image with damaged pieces."""

import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest

from s3fs_meta.check.from_packs import rebuild
from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.run import Examined, Wanted, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import Piece
from s3fs_meta.codec.lease import KEY as LEASE
from s3fs_meta.errors import FormatError, PreconditionError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.meta.offline.image_rows import LOST_FOUND
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import Ino, ObjectKey
from s3fs_meta.sync.chain.head import load_manifest
from s3fs_meta.sync.image import pieces, restore
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.upload.cut import Cut
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import Power, power, read_file, remove_file, write_file

pytestmark = pytest.mark.thorough

__all__ = ["power"]


def lose_metadata(power: Power) -> None:
    """Delete every object except packs and superblocks."""
    for key in list(power.store.objects):
        if not key.startswith(("pack/", "superblock")):
            del power.store.objects[key]


async def burnt(power: Power) -> dict[Ino, bytes]:
    """Write files, delete all metadata objects, and return the contents by inode number."""
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


async def run(power: Power) -> tuple[int, int, list[ObjectKey]]:
    """Rebuild the filesystem; return the number of files, of packs, and the unreadable packs."""
    keys = await power.keys()
    tmp = power.home / "scratch"
    tmp.mkdir(exist_ok=True)
    made = await rebuild(
        power.store,
        keys.keyring,
        keys.superblock,
        tmp,
        SystemClock(),
        no_progress,
        lambda: None,
    )
    return made.files, made.packs, made.unreadable


async def test_content_is_restored_below_lost_and_found(power: Power) -> None:
    """Every file is in lost+found under its inode number with all its content; fsck is clean."""
    contents = await burnt(power)

    assert await run(power) == (5, 5, [])

    async with power.session("b", tasks=False) as session:
        home = dentries.find(session.db, Ino(1), LOST_FOUND)
        assert home is not None
        for ino, content in contents.items():
            assert dentries.find(session.db, home, b"#%d" % ino) == ino
            assert await read_file(session, ino) == content
        session.db.commit()
        report = await check_filesystem(
            Examined(session.db, power.store, session.volume.keyring),
            Wanted(deep=True),
            Report(),
            SystemClock(),
        )
        assert {verdict.invariant for verdict in report.verdicts if verdict.found} <= {"I49"}
        assert write_file(session, b"life goes on") > max(contents)


async def test_unreadable_pack_costs_only_its_own_files(power: Power) -> None:
    """The rebuild reports the key of an unreadable pack, and keeps the object."""
    contents = await burnt(power)
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


async def test_keys_that_read_no_pack_change_nothing(power: Power) -> None:
    """The superblock may belong to another filesystem, so the rebuild publishes no empty result."""
    await burnt(power)
    for key in [key for key in power.store.objects if key.startswith("pack/")]:
        power.store.objects[key] = power.store.objects[key][:-1]
    before = dict(power.store.objects)

    with pytest.raises(FormatError, match="none of the 5 packs"):
        await run(power)

    assert power.store.objects == before


async def test_unreadable_pack_outlives_the_retention(power: Power) -> None:
    """Neither fsck nor retention deletes the pack: a later program or another key may read it."""
    await burnt(power)
    await power.retain(0)
    packs = sorted(key for key in power.store.objects if key.startswith("pack/"))
    whole = power.store.objects[packs[0]]
    power.store.objects[packs[0]] = whole[:-1]
    await run(power)
    async with power.session("b", tasks=False) as session:
        examined = Examined(session.db, power.store, session.volume.keyring)
        wanted = Wanted(repair=Mode.ALL, delete_unknown=True)
        report = await check_filesystem(examined, wanted, Report(), SystemClock())
        assert "I49" not in report.broken
        await session.close()
    assert packs[0] in power.store.objects

    for _ in range(2):  # the second session has the epoch after that of the floor
        async with power.session("b", tasks=False) as session:
            for number in range(3):
                write_file(session, b"later %d" % number)
                await session.make_image()
            await session.flush_at_end()
            await session.close()

    assert packs[0] in power.store.objects


async def test_newest_version_of_a_block_wins(power: Power) -> None:
    """An overwritten block has its last content, although an older pack has an earlier one."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"old" * 1000)
        await session.flush()
        located = session.cache.located(ino, 0)  # type: ignore[arg-type]  # an index
        assert located is not None
        session.db.begin()
        block = session.cache.copy_on_write(located, ino, 0, 3000)  # type: ignore[arg-type]
        session.db.run("UPDATE block_map SET block = ? WHERE ino = ?", (block, ino))
        session.cache.release(located.block)
        renewed = session.cache.located(ino, 0)  # type: ignore[arg-type]
        assert renewed is not None
        session.cache.write_in_place(renewed, 0, b"new" * 1000)
        await session.flush()
        await session.close()
    lose_metadata(power)

    await run(power)

    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == b"new" * 1000


async def test_former_writer_is_fenced_after_repair(power: Power) -> None:
    """A rebuild without a lease object takes an epoch above the first one."""
    await burnt(power)
    assert LEASE not in power.store.objects
    await run(power)
    async with power.session("b", tasks=False) as session:
        assert session.volume.keeper.epoch >= 2


@pytest.mark.parametrize("left", ["a changelog", "a lease", "a huge lease"])
async def test_leftovers_of_metadata_are_harmless(power: Power, left: str) -> None:
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
async def test_rebuild_is_refused_if_another_host_takes_the_lease_meanwhile(
    power: Power, before: str
) -> None:
    """A rebuild is refused if another host takes the lease while it runs."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"content")
        await session.flush()
        await session.close()
    lease = power.store.objects[LEASE]
    for key in list(power.store.objects):
        if not key.startswith(("pack/", "superblock")):
            del power.store.objects[key]
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


async def test_remaining_objects_of_the_old_chain_do_not_mislead_readers(power: Power) -> None:
    """New epochs and txgs are above those of remaining levels, image pieces and leases."""
    async with power.session("a", tasks=False) as session:
        for number in range(12):
            write_file(session, b"%d" % number)
            await session.flush()
        await session.leveler.make_due()
        await session.make_image()
        await session.close()
    async with power.session("a", tasks=False) as session:
        epoch = session.volume.keeper.epoch  # no pack has this epoch
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


async def test_blocks_of_a_fenced_host_get_separate_files(power: Power) -> None:
    """If a fenced host and the next writer used one inode number, the rebuild makes two files."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"both have it")
        await session.flush()
        for number in range(8):
            write_file(session, b"never shipped %d" % number)
        cut = Cut(session.uploader.sealer.seal_all())
        session.uploader.begin_cut(cut)
        await session.uploader.drain(cut, lambda _left: None)
    options = OpenOptions(force_takeover=True)
    async with power.session("b", options=options, tasks=False) as session:
        contents = {}
        for number in range(8):
            content = b"shipped %d" % number
            contents[write_file(session, content)] = content
            await session.flush()
        await session.close()
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


async def test_failed_rebuild_leaves_the_local_state(power: Power) -> None:
    """The rebuild quarantines the local state only when the pieces of its new image are stored."""
    await burnt(power)
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
    assert moved == [1]  # one piece of the new image, whose manifest is not yet stored


# --- names from intact pieces of an image --------------------------------------------------------

PIECE = 8192
DIRECTORIES = 8
FILES = 500


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut images into pieces of 8 KiB, two pages of the database."""
    for module in (image_codec, pieces, restore):
        monkeypatch.setattr(module, "IMAGE_PIECE_BYTES", PIECE)


class Known(NamedTuple):
    """The properties of one file when the image was made."""

    path: tuple[bytes, bytes]
    content: bytes
    mode: int
    owner: tuple[int, int]


async def filled(power: Power, *, twice: bool = False) -> dict[Ino, Known]:
    """Write a tree of files, make an image of it, and delete the chain.

    With *twice* the last image shares most of its pieces with the image before it.
    """
    files: dict[Ino, Known] = {}
    fillers: list[Ino] = []
    async with power.session("a", tasks=False) as session:
        db = session.db
        db.begin()
        homes = []
        for number in range(DIRECTORIES):
            home = inodes.create(db, 0o40750, 7, 8, Ino(1), 0, nlink=2).ino
            dentries.add(db, Ino(1), b"dir %d" % number, home)
            inodes.change_directory(db, Ino(1), 0, entries=1, subdirectories=1)
            homes.append(home)
        db.commit()
        for number in range(FILES):
            content = b"content %d " % number * 9
            ino = write_file(session, content)
            which, name = number % DIRECTORIES, b"file %d" % number
            mode, owner = 0o100600 | number % 64, (number, number + 1)
            db.inodes.run(
                "UPDATE inodes SET mode = ?, uid = ?, gid = ?, parent = ? WHERE ino = ?",
                (mode, *owner, homes[which], ino),
            )
            dentries.add(db, homes[which], name, ino)
            inodes.change_directory(db, homes[which], 0, entries=1)
            files[ino] = Known((b"dir %d" % which, name), content, mode, owner)
            if twice:
                fillers.append(write_file(session, b"filler %d" % number))
        await session.flush()
        await session.make_image()
        for ino in fillers:
            remove_file(session, ino)
        if twice:
            await session.make_image()
        await session.close()
    keep_last_image(power)
    return files


def keep_last_image(power: Power) -> None:
    """Delete the chain, the lease, and all manifests except the last."""
    newest = max(key for key in power.store.objects if key.endswith("/manifest"))
    for key in [key for key in power.store.objects if key.startswith(("changelog/", "lease"))]:
        del power.store.objects[key]
    for key in [key for key in power.store.objects if key.endswith("/manifest")]:
        if key != newest:
            del power.store.objects[key]


def flip(power: Power, key: ObjectKey) -> None:
    """Change one bit in the middle of an object."""
    data = bytearray(power.store.objects[key])
    data[len(data) // 2] ^= 4
    power.store.objects[key] = bytes(data)


async def manifest_of(power: Power) -> image_codec.Manifest:
    """Return the manifest of the only image."""
    [key] = [key for key in power.store.objects if key.endswith("/manifest")]
    keys = await power.keys()
    return await load_manifest(power.store, keys.keyring, key, "")


async def outcome(power: Power, host: str, files: dict[Ino, Known]) -> tuple[int, int]:
    """Return how many files are unchanged, and how many lost only their name."""
    whole = nameless = 0
    async with power.session(host, tasks=False) as session:
        db = session.db
        lost = dentries.find(db, Ino(1), LOST_FOUND)
        for ino, known in files.items():
            home = dentries.find(db, Ino(1), known.path[0])
            found = None if home is None else dentries.find(db, home, known.path[1])
            row = inodes.get(db, ino)
            assert await read_file(session, ino) == known.content
            same = (row.mode, row.uid, row.gid) == (known.mode, *known.owner)
            if found == ino and same:
                whole += 1
            elif lost is not None:
                nameless += dentries.find(db, lost, b"#%d" % ino) == ino
        db.commit()
        report = await check_filesystem(
            Examined(db, power.store, session.volume.keyring),
            Wanted(deep=True),
            Report(),
            SystemClock(),
        )
        assert {verdict.invariant for verdict in report.verdicts if verdict.found} <= {"I49"}
        await session.close()
    return whole, nameless


async def with_names(power: Power, manifest: image_codec.Manifest) -> ObjectKey:
    """Return the last piece that holds more than 100 names of files."""
    keyring = (await power.keys()).keyring

    def names(piece: image_codec.Piece) -> int:
        data = power.store.objects[piece.key]
        return image_codec.decode_piece(piece, data, keyring).count(b"file ")

    return [piece.key for piece in manifest.pieces if names(piece) > 100][-1]


@pytest.mark.usefixtures("small_pieces")
async def test_lost_piece_of_an_image_costs_only_the_names_in_it(power: Power) -> None:
    """Files whose name was in the lost piece keep their content, owner and mode."""
    files = await filled(power)
    manifest = await manifest_of(power)
    assert len(manifest.pieces) > 12
    flip(power, await with_names(power, manifest))

    await run(power)

    whole, nameless = await outcome(power, "b", files)
    assert whole > FILES // 2
    assert nameless > 0
    assert whole + nameless == FILES


@pytest.mark.usefixtures("small_pieces")
async def test_image_without_its_schema_restores_no_names(power: Power) -> None:
    """Without the schema the image cannot be read, so files are named by inode number."""
    files = await filled(power)
    flip(power, (await manifest_of(power)).pieces[0].key)

    await run(power)

    assert await outcome(power, "b", files) == (0, FILES)


async def test_image_with_its_only_piece_damaged_restores_no_names(power: Power) -> None:
    """The image has only one piece, so files are named by inode number."""
    files = await filled(power)
    [piece] = (await manifest_of(power)).pieces
    flip(power, piece.key)

    await run(power)

    assert await outcome(power, "b", files) == (0, FILES)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("damage", ["missing", "one bit"])
async def test_image_without_its_manifest_restores_all_names(power: Power, damage: str) -> None:
    """The keys of pieces contain their positions, also of pieces shared with an older image."""
    files = await filled(power, twice=True)
    [key] = [key for key in power.store.objects if key.endswith("/manifest")]
    images = {image_codec.image_of(piece.key) for piece in (await manifest_of(power)).pieces}
    assert len(images) > 1
    if damage == "missing":
        del power.store.objects[key]
    else:
        flip(power, key)

    await run(power)

    assert await outcome(power, "b", files) == (FILES, 0)


@pytest.mark.usefixtures("small_pieces")
async def test_image_whose_pieces_form_no_consistent_database_is_skipped(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """The rebuild skips the pieces of an interrupted image, and uses an older image."""
    files = await filled(power, twice=True)
    [key] = [key for key in power.store.objects if key.endswith("/manifest")]
    keyring = (await power.keys()).keyring
    del power.store.objects[key]
    for name in [name for name in power.store.objects if name[:-6] == key[:-8]]:
        content = image_codec.decode_unlisted_piece(name, power.store.objects[name], keyring)
        if not name.endswith("/000000"):
            zeros = bytes(len(content))
            power.store.objects[name] = image_codec.encode_piece(name, zeros, keyring)

    await run(power)

    assert f"{key}' is damaged: its pieces are no consistent database" in caplog.text
    assert await outcome(power, "b", files) == (FILES, 0)


_HOSTILE = (0, -1, (1 << 62) - 1, (1 << 63) - 1, -(1 << 63), b"", b"..", b"\xff" * 300, 0o120777)
_TABLES = ("inodes", "dentries", "hard_links", "symlinks", "xattrs", "block_map", "blocks")


@pytest.mark.parametrize("seed", range(12))
async def test_hostile_rows_of_an_image_end_in_a_clean_filesystem(
    power: Power, seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On an unencrypted filesystem any writer of the bucket can forge the rows of an image."""
    monkeypatch.setattr("tests.check.test_from_packs.FILES", 40)
    await filled(power)
    manifest = await manifest_of(power)
    keyring = (await power.keys()).keyring
    path = tmp_path / "image.db"
    [piece] = manifest.pieces
    path.write_bytes(image_codec.decode_piece(piece, power.store.objects[piece.key], keyring))
    noise = random.Random(seed)
    connection = apsw.Connection(str(path))
    for table in noise.choices(_TABLES, k=20):
        columns = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]
        values = [noise.choice(_HOSTILE) for _ in columns]
        row = f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(columns))})"
        cell = f"UPDATE OR REPLACE {table} SET {noise.choice(columns)} = ? WHERE random() % 9 = 0"
        with suppress(apsw.MismatchError):  # SQLite accepts only a number as a rowid
            connection.execute(*noise.choice([(row, values), (cell, values[:1])]))
    connection.close()
    data = path.read_bytes()
    piece = Piece(piece.key, len(data), image_codec.content_hash(data))
    [key] = [key for key in power.store.objects if key.endswith("/manifest")]
    changed = replace(manifest, pieces=(piece,), database_bytes=len(data))
    power.store.objects[piece.key] = image_codec.encode_piece(piece.key, data, keyring)
    power.store.objects[key] = image_codec.encode(changed, key, keyring)

    await run(power)

    await outcome(power, "b", {})
