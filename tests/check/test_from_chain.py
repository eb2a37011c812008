"""Tests of rebuilding a filesystem without any image, from its changelogs since txg 1."""

import pytest

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.errors import NewerFormatError
from s3fs_meta.limits import PACK_BYTES_MAX
from s3fs_meta.meta import lost_ranges
from s3fs_meta.meta.lost_names import LOST_FOUND
from s3fs_meta.meta.tables import block_map, dentries, inodes, packs, xattrs
from s3fs_meta.model import ROOT_INO, BlockIndex, Ino, ObjectKey, Txg
from tests.check.rebuilding import rebuilt
from tests.check.survey.checking import checked
from tests.damage import claim_newer
from tests.sync.conftest import Power, read_file, write_file

pytestmark = pytest.mark.thorough


FILES = 12


async def fill(power: Power, *, levels: bool = False) -> dict[bytes, bytes]:
    """Write named files, each in a separate txg; return each file's content by its name."""
    contents = {}
    async with power.session("a", tasks=False) as session:
        for number in range(FILES):
            name, content = b"name %d" % number, b"content %d " % number * 700
            ino = write_file(session, content)
            dentries.add(session.db, ROOT_INO, name, ino)
            inodes.change_directory(session.db, ROOT_INO, 1000 + number, entries=1)
            contents[name] = content
            await session.flush()
            if levels:
                await session.leveler.make_due()
        await session.make_image()
        await session.close()
    return contents


def lose_images(power: Power, *, pieces_only: bool) -> None:
    """Delete every image, or the first piece of each image."""
    for key in list(power.store.objects):
        if key.startswith("image/") and (
            not pieces_only or key.endswith("/" + "0" * image_codec.PIECE_DIGITS)
        ):
            del power.store.objects[key]


def lose_manifests(power: Power) -> None:
    """Delete the manifest of every image, but no piece."""
    for key in [key for key in power.store.objects if key.endswith("/manifest")]:
        del power.store.objects[key]


def lose_metadata(power: Power, source: str) -> None:
    """Delete metadata, so that a rebuild takes all names from *source*: the chain or an image."""
    if source == "chain":
        lose_images(power, pieces_only=False)
    else:
        lose_manifests(power)
        del power.store.objects[changelog_codec.key_of(Txg(1))]


async def pack_of(power: Power, name: bytes) -> tuple[Ino, ObjectKey, int]:
    """Return a file's inode number, the key of its pack, and the length of its only record."""
    async with power.session("a", tasks=False) as session:
        ino = dentries.find(session.db, ROOT_INO, name)
        assert ino is not None
        located = block_map.locate(session.db, ino, BlockIndex(0))
        assert located is not None
        assert located.pack is not None
        assert located.stored_bytes is not None
        key = packs.object_key(session.db, located.pack)
        session.db.commit()
    return ino, key, located.stored_bytes


async def require_files(power: Power, contents: dict[bytes, bytes]) -> None:
    """Require that all files have their names, fsck finds no damage, and no lost+found exists."""
    async with power.session("b", tasks=False) as session:
        assert dentries.find(session.db, ROOT_INO, LOST_FOUND) is None
        assert inodes.get(session.db, ROOT_INO).size_bytes == len(contents)
        for name, content in contents.items():
            ino = dentries.find(session.db, ROOT_INO, name)
            assert ino is not None
            assert await read_file(session, ino) == content
        report = await checked(session, deep=True)
        assert {one.invariant for one in report.verdicts if one.found} <= {"I49"}


@pytest.mark.parametrize("lost", ["every image", "every first piece"])
async def test_rebuild_from_a_complete_chain_restores_all_names_without_an_image(
    power: Power, lost: str
) -> None:
    """The changelogs from txg 1 on contain the names of all files."""
    contents = await fill(power)
    lose_images(power, pieces_only=lost == "every first piece")

    made = await rebuilt(power)

    assert made.named == made.files == FILES
    await require_files(power, contents)


@pytest.mark.parametrize("damage", ["missing", "truncated"])
@pytest.mark.parametrize("source", ["chain", "image"])
async def test_damaged_pack_costs_a_rebuild_only_the_content_of_its_blocks(
    power: Power, source: str, damage: str
) -> None:
    """All files keep their names; the content that the pack held is a recorded hole."""
    contents = await fill(power)
    lose_metadata(power, source)
    lost, key, record_bytes = await pack_of(power, b"name 3")
    data = power.store.objects.pop(key)
    if damage == "truncated":
        power.store.objects[key] = data[: record_bytes - 1]

    made = await rebuilt(power)

    assert (made.files, made.named, made.lost_blocks) == (FILES, FILES, 1)
    assert made.copied_blocks == 0
    contents[b"name 3"] = bytes(len(contents[b"name 3"]))
    await require_files(power, contents)
    async with power.session("b", tasks=False) as session:
        size = len(contents[b"name 3"])
        parts = lost_ranges.parse(xattrs.find(session.db, lost, lost_ranges.ATTRIBUTE) or b"")
        assert [one.start for one in parts] == [0]
        assert parts[0].stop >= size


@pytest.mark.parametrize("damage", ["truncated", "longer than any pack", "without any record"])
@pytest.mark.parametrize("source", ["chain", "image"])
async def test_rebuild_copies_intact_records_of_a_pack_whose_index_is_lost(
    power: Power, source: str, damage: str
) -> None:
    """The rows contain the location and the hash of each block, which prove its content."""
    contents = await fill(power)
    lose_metadata(power, source)
    _ino, key, record_bytes = await pack_of(power, b"name 3")
    data = power.store.objects[key]
    power.store.objects[key] = {
        "truncated": data[:-1],
        "longer than any pack": data + bytes(PACK_BYTES_MAX),
        "without any record": bytes(record_bytes) + data[record_bytes:-1],
    }[damage]
    damaged = power.store.objects[key]
    copied = 0 if damage == "without any record" else 1
    if not copied:
        contents[b"name 3"] = bytes(len(contents[b"name 3"]))

    made = await rebuilt(power)

    assert (made.files, made.named, made.unreadable) == (FILES, FILES, [key])
    assert (made.lost_blocks, made.copied_blocks) == (1 - copied, copied)
    assert power.store.objects[key] == damaged
    await require_files(power, contents)


async def test_rebuild_copies_all_content_if_every_index_is_lost(power: Power) -> None:
    """The keyed hashes of the content prove that the packs are of this filesystem."""
    contents = await fill(power)
    lose_metadata(power, "chain")
    for key in [key for key in power.store.objects if key.startswith("pack/")]:
        power.store.objects[key] = power.store.objects[key][:-1]

    made = await rebuilt(power)

    assert (made.named, made.packs, made.lost_blocks) == (FILES, 0, 0)
    assert made.copied_blocks == FILES
    await require_files(power, contents)


async def test_repeated_rebuild_copies_no_record_again(power: Power) -> None:
    """The second rebuild finds the copied block in the index of the new pack."""
    contents = await fill(power)
    lose_metadata(power, "chain")
    _ino, key, _record_bytes = await pack_of(power, b"name 3")
    power.store.objects[key] = power.store.objects[key][:-1]
    before = dict(power.store.objects)
    assert (await rebuilt(power)).copied_blocks == 1
    # Restore the state before the rebuild, except that the new pack remains.
    for one in [one for one in power.store.objects if not one.startswith("pack/")]:
        del power.store.objects[one]
    power.store.objects.update(before)

    made = await rebuilt(power)

    assert (made.files, made.named) == (FILES, FILES)
    assert (made.lost_blocks, made.copied_blocks) == (0, 0)
    await require_files(power, contents)


@pytest.mark.parametrize("damage", ["missing", "truncated", "claims to be newer"])
async def test_rebuild_restores_only_names_from_before_a_damaged_changelog(
    power: Power, damage: str
) -> None:
    """Files of txgs before the damage keep their names. Later files are in lost+found.

    Txg 1 is a fence record, so txgs 2 and 3 contain one file each.
    """
    contents = await fill(power)
    lose_images(power, pieces_only=False)
    key = changelog_codec.key_of(Txg(4))
    data = power.store.objects.pop(key)
    if damage == "truncated":
        power.store.objects[key] = data[:-1]
    elif damage == "claims to be newer":
        power.store.objects[key] = claim_newer(data)

    made = await rebuilt(power)

    assert made.source == changelog_codec.key_of(Txg(3))
    assert (made.files, made.named) == (FILES, 2)
    async with power.session("b", tasks=False) as session:
        for name in list(contents)[:2]:
            ino = dentries.find(session.db, ROOT_INO, name)
            assert ino is not None
            assert await read_file(session, ino) == contents[name]


@pytest.mark.parametrize("claimed", ["last", "last after damage", "all"])
async def test_rebuild_is_refused_if_a_newer_program_may_have_continued_the_chain(
    power: Power, claimed: str
) -> None:
    """A rebuild that would publish an older state is refused and changes no object."""
    await fill(power)
    lose_images(power, pieces_only=False)
    keys = sorted(key for key in power.store.objects if key.startswith(changelog_codec.PREFIX))
    for key in keys if claimed == "all" else keys[-1:]:
        power.store.objects[key] = claim_newer(power.store.objects[key])
    if claimed == "last after damage":
        power.store.objects[keys[3]] = b"noise"
    before = dict(power.store.objects)

    with pytest.raises(NewerFormatError, match="upgrade s3fs-meta"):
        await rebuilt(power)

    assert power.store.objects == before


async def test_rebuild_uses_the_changelogs_if_they_are_newer_than_the_image_pieces(
    power: Power,
) -> None:
    """The image has all pieces but no manifest, and only the chain contains the last file."""
    contents = await fill(power)
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"later")
        dentries.add(session.db, ROOT_INO, b"later", ino)
        inodes.change_directory(session.db, ROOT_INO, 2000, entries=1)
        contents[b"later"] = b"later"
        await session.flush()
        await session.close()
    for key in [key for key in power.store.objects if key.endswith("/manifest")]:
        del power.store.objects[key]

    made = await rebuilt(power)

    assert made.named == made.files == FILES + 1
    await require_files(power, contents)


async def test_rebuild_restores_no_names_if_the_first_changelog_is_missing(power: Power) -> None:
    """Later changelogs depend on rows that only an image or earlier changelogs contain."""
    await fill(power)
    lose_images(power, pieces_only=False)
    del power.store.objects[changelog_codec.key_of(Txg(1))]

    made = await rebuilt(power)

    assert made.source is None
    assert (made.files, made.named) == (FILES, 0)


async def test_rebuild_reads_a_level_object_instead_of_a_missing_changelog(power: Power) -> None:
    """A rebuild from a level object (merged changelogs) restores the names of all files."""
    contents = await fill(power, levels=True)
    lose_images(power, pieces_only=False)
    assert any(key.startswith("level/") for key in power.store.objects)
    del power.store.objects[changelog_codec.key_of(Txg(4))]

    made = await rebuilt(power)

    assert made.named == FILES
    await require_files(power, contents)
