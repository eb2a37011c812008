"""Tests of replies that list entries of a directory."""

import struct

import pytest

from s3fs_meta.fuse.convert import DIRENT, DIRENT_ALIGNMENT, Converter, Overrides
from s3fs_meta.fuse.directory_page import DirectoryPage
from s3fs_meta.limits import NAME_BYTES_MAX
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import ROOT_INO, Attributes, Cookie, Ino
from tests.fuse.conftest import FILE, Handlers, make_file

ROOM_BYTES = 4096
AT = Cookie(1 << 40)
ENTRY_BYTES = 128  # struct fuse_entry_out
SAMPLES = (
    FILE,
    FILE._replace(size_bytes=(1 << 40) + 1, mapped_blocks=7, mtime_ns=-1_000_000_001),
    FILE._replace(size_bytes=1 << 40, mapped_blocks=0, btime_ns=(1 << 40) + 3),
    FILE._replace(mode=0o020600, rdev=0x801, uid=0xFFFF_FFFF, flags=1),
    FILE._replace(mode=0o040755, nlink=3, size_bytes=2),
    FILE._replace(ino=ROOT_INO),
)


@pytest.mark.parametrize("attributes", SAMPLES)
@pytest.mark.parametrize("has_generations", [True, False])
@pytest.mark.parametrize("length", [1, 7, 8, 9, NAME_BYTES_MAX])
def test_directory_entry_made_from_a_row_equals_the_entry_made_from_attributes(
    attributes: Attributes, has_generations: bool, length: int
) -> None:
    """An entry has the layout of struct fuse_direntplus, padded to 8 bytes."""
    converter = Converter(1 << 20, timeout_s=1.5, has_generations=has_generations)
    name = b"n" * length
    packed = converter.dirent_of_row((name, AT, *attributes))
    assert packed == converter.dirent_out(name, attributes, AT)
    assert len(packed) % DIRENT_ALIGNMENT == 0
    assert packed[:ENTRY_BYTES] == converter.entry_out(attributes)
    fields = DIRENT.unpack_from(packed, ENTRY_BYTES)
    assert fields == (attributes.ino, AT, length, attributes.mode >> 12)
    assert packed[ENTRY_BYTES + DIRENT.size :].rstrip(b"\0") == name


def test_directory_listing_shows_the_owner_set_by_mount_options() -> None:
    """A mount option that replaces the owner also applies to listed entries."""
    converter = Converter(1 << 20, overrides=Overrides(uid=77))
    page = DirectoryPage(converter, ROOT_INO, ROOM_BYTES)
    assert page.add_rows([(b"name", AT, *FILE)]) == 1
    assert page.content() == converter.dirent_out(b"name", FILE, AT)
    assert struct.pack("=I", 77) in page.content()


async def test_name_with_an_unreadable_inode_row_is_listed_without_attributes(
    handlers: Handlers,
) -> None:
    """A value of a wrong type or size does not change the other entries of the reply."""
    good, bad = await make_file(handlers, b"good"), await make_file(handlers, b"bad")
    db, converter = handlers.fs.db, handlers.operations.converter
    db.commit()
    columns = (
        *("mode", "size_bytes", "parent", "flags", "mtime_delta_ns", "btime_delta_ns", "uid"),
        "mapped_blocks",
    )
    long_text = "'" + "t" * (1 << 19) + "'"
    for column in columns:
        for value in ("'text'", long_text, "x'ff'", "1.5", "-1", str(1 << 62)):
            db.begin()
            db.inodes.run(f"UPDATE inodes SET {column} = {value} WHERE ino = {bad}")
            rows = dentries.page_rows(db, ROOT_INO, Cookie(0), 9)
            entries = {
                name: (found, at) for name, at, found in dentries.page(db, ROOT_INO, Cookie(0), 9)
            }
            page = DirectoryPage(converter, ROOT_INO, ROOM_BYTES)
            assert page.add_rows(rows) == len(entries)
            expected = [converter.dirent_out(row[0], entries[row[0]][0], row[1]) for row in rows]
            assert page.content() == b"".join(expected), (column, value)
            assert entries[b"good"][0].ino == good
            db.rollback()


def test_directory_reply_does_not_exceed_the_requested_size() -> None:
    """Rows that do not fit into a reply are not added to the reply."""
    converter = Converter(1 << 20)
    rows = [(b"name%d" % number, Cookie(AT + number), *FILE) for number in range(9)]
    size_bytes = len(converter.dirent_of_row(rows[0]))
    page = DirectoryPage(converter, Ino(1), 3 * size_bytes + size_bytes - 1)
    assert page.add_rows(rows) == 3
    assert not page.add(b"name", FILE, AT)
    assert len(page.content()) == 3 * size_bytes
