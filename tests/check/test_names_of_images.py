"""Tests of recovering names from the intact pieces of a damaged image."""

import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest

from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import ManifestRef, Piece
from s3fs_meta.errors import NewerFormatError
from s3fs_meta.meta.lost_names import LOST_FOUND
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import Epoch, Ino, ObjectKey, Txg
from s3fs_meta.sync.chain.head import load_manifest
from tests.check.rebuilding import run
from tests.check.survey.checking import checked
from tests.damage import claim_newer
from tests.sampled import sampled
from tests.sync.conftest import Power, read_file, remove_file, write_file

pytestmark = pytest.mark.thorough


DIRECTORIES = 8
FILES = 500


class Known(NamedTuple):
    """The properties of one file at the time of the image."""

    path: tuple[bytes, bytes]
    content: bytes
    mode: int
    owner: tuple[int, int]


async def filled(power: Power, *, twice: bool = False, count: int = FILES) -> dict[Ino, Known]:
    """Write a tree of files, make an image of the tree, and delete the chain of changelogs.

    With *twice*, the last image shares most of its pieces with the previous image.
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
        for number in range(count):
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
    """Delete all changelogs, the lease, and all manifests except the last one."""
    newest = max(key for key in power.store.objects if key.endswith("/manifest"))
    for key in [key for key in power.store.objects if key.startswith(("changelog/", "lease"))]:
        del power.store.objects[key]
    for key in [key for key in power.store.objects if key.endswith("/manifest")]:
        if key != newest:
            del power.store.objects[key]


def flip(power: Power, key: ObjectKey) -> None:
    """Flip one bit in the middle of an object."""
    data = bytearray(power.store.objects[key])
    data[len(data) // 2] ^= 4
    power.store.objects[key] = bytes(data)


async def manifest_of(power: Power) -> image_codec.Manifest:
    """Return the manifest of the only image in the bucket."""
    [key] = [key for key in power.store.objects if key.endswith("/manifest")]
    keys = await power.keys()
    return await load_manifest(power.store, keys.keyring, ManifestRef(key))


async def outcome(power: Power, host: str, files: dict[Ino, Known]) -> tuple[int, int]:
    """Return how many files are unchanged, and how many have lost only their names."""
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
        report = await checked(session, deep=True)
        assert {verdict.invariant for verdict in report.verdicts if verdict.found} <= {"I49"}
        await session.close()
    return whole, nameless


async def with_names(power: Power, manifest: image_codec.Manifest) -> ObjectKey:
    """Return the last piece that contains more than 100 file names."""
    keyring = (await power.keys()).keyring

    def names(piece: image_codec.Piece) -> int:
        data = power.store.objects[piece.key]
        return image_codec.decode_piece(piece, data, keyring).count(b"file ")

    return [piece.key for piece in manifest.pieces if names(piece) > 100][-1]


@pytest.mark.usefixtures("small_pieces")
async def test_rebuild_loses_only_the_file_names_in_a_lost_image_piece(power: Power) -> None:
    """Files whose names were in a lost image piece keep their content, owner and mode."""
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
async def test_image_without_its_schema_restores_no_file_names(power: Power) -> None:
    """An image without its schema cannot be read, so files are named by inode number."""
    files = await filled(power)
    flip(power, (await manifest_of(power)).pieces[0].key)

    await run(power)

    assert await outcome(power, "b", files) == (0, FILES)


async def test_image_whose_only_piece_is_damaged_restores_no_file_names(power: Power) -> None:
    """If the image's only piece is damaged, files are named by inode number."""
    files = await filled(power)
    [piece] = (await manifest_of(power)).pieces
    flip(power, piece.key)

    await run(power)

    assert await outcome(power, "b", files) == (0, FILES)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("damage", ["missing", "one bit"])
async def test_image_without_a_manifest_restores_all_file_names(power: Power, damage: str) -> None:
    """The key of an image piece contains its position, even if two images share the piece."""
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
async def test_pieces_of_an_interrupted_image_upload_are_not_used(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """Pieces of an interrupted image are not a consistent database, so an older image is used."""
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

    assert f"{key}' is damaged: the image pieces do not form a consistent database" in caplog.text
    assert await outcome(power, "b", files) == (FILES, 0)


@pytest.mark.usefixtures("small_pieces")
async def test_rebuild_loses_only_the_names_in_an_image_piece_that_has_a_newer_version(
    power: Power,
) -> None:
    """If the manifest has the current version, a piece with a newer version counts as lost."""
    files = await filled(power)
    key = await with_names(power, await manifest_of(power))
    power.store.objects[key] = claim_newer(power.store.objects[key])

    await run(power)

    whole, nameless = await outcome(power, "b", files)
    assert whole > FILES // 2
    assert whole + nameless == FILES


@pytest.mark.usefixtures("small_pieces")
async def test_image_with_a_forged_newer_version_does_not_prevent_a_rebuild(power: Power) -> None:
    """The rebuild uses another image, because anyone with write access can forge a manifest."""
    files = await filled(power)
    name = image_codec.manifest_key(Txg(900), Epoch(1), b"claimant")
    [key] = [key for key in power.store.objects if key.endswith("/manifest")]
    power.store.objects[name] = claim_newer(power.store.objects[key])

    await run(power)

    assert await outcome(power, "b", files) == (FILES, 0)


@pytest.mark.usefixtures("small_pieces")
async def test_rebuild_is_refused_if_all_images_have_a_newer_version(power: Power) -> None:
    """A newer program may be able to read all names, which a rebuild would lose."""
    await filled(power)
    for key in [key for key in power.store.objects if key.startswith("image/")]:
        power.store.objects[key] = claim_newer(power.store.objects[key])
    before = dict(power.store.objects)

    with pytest.raises(NewerFormatError, match="upgrade s3fs-meta"):
        await run(power)

    assert power.store.objects == before


_HOSTILE = (0, -1, (1 << 62) - 1, (1 << 63) - 1, -(1 << 63), b"", b"..", b"\xff" * 300, 0o120777)
_TABLES = ("inodes", "dentries", "hard_links", "symlinks", "xattrs", "block_map", "blocks")


@pytest.mark.parametrize("seed", sampled(range(12), 4))
async def test_rebuild_from_forged_image_rows_creates_a_clean_filesystem(
    power: Power, seed: int, tmp_path: Path
) -> None:
    """Anyone who can write to an unencrypted bucket can forge the rows of an image."""
    await filled(power, count=40)
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
        with suppress(apsw.MismatchError):  # SQLite refuses a rowid that is no integer.
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
