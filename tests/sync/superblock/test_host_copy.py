"""The copy of the superblock that a host stores locally."""

import stat
from pathlib import Path

import pytest

from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.superblock import amend
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.sync.superblock.host_copy import Remembered


def generations(number: int) -> list[bytes]:
    """Return superblocks of a filesystem with consecutive generations."""
    made, keyring, _key = superblock_codec.create(
        "01234567-89ab-cdef-0123-456789abcdef", "", 1 << 20, 4096, False, None
    )
    found = [made]
    while len(found) < number:
        found.append(amend(found[-1], keyring, label=f"{len(found)}"))
    return [superblock_codec.encode(one) for one in found]


def test_host_stores_a_copy_of_the_newest_superblock(tmp_path: Path) -> None:
    """A superblock of a lower or equal generation replaces the host's copy only on request."""
    remembered = Remembered(tmp_path)
    [first, second] = generations(2)
    assert remembered.read() is None

    remembered.keep(second)
    remembered.keep(first)
    assert remembered.read() == second
    remembered.keep(first, back=True)
    assert remembered.read() == first
    [other] = generations(1)
    remembered.keep(other)
    assert remembered.read() == first
    remembered.keep(other, back=True)
    assert remembered.read() == other


@pytest.mark.parametrize("damaged", [b"", b"torn", bytes(2 * TEXT_OBJECT_BYTES_MAX)])
def test_damaged_host_copy_of_the_superblock_is_replaced(tmp_path: Path, damaged: bytes) -> None:
    """At most the maximum size of a superblock is read from a damaged host copy."""
    remembered = Remembered(tmp_path)
    remembered.path.write_bytes(damaged)

    assert len(remembered.read() or b"") <= TEXT_OBJECT_BYTES_MAX + 1
    [first] = generations(1)
    remembered.keep(first)
    assert remembered.read() == first


def test_host_copy_of_the_superblock_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    remembered = Remembered(tmp_path)
    remembered.keep(generations(1)[0])

    assert stat.S_IMODE(remembered.path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [remembered.path]


def test_superblock_is_not_stored_without_a_state_directory(tmp_path: Path) -> None:
    """A command that only reads must not create a state directory."""
    remembered = Remembered(tmp_path / "none")
    remembered.keep(generations(1)[0])

    assert remembered.read() is None
    assert not (tmp_path / "none").exists()


def test_symbolic_link_in_place_of_a_host_copy_is_not_followed(tmp_path: Path) -> None:
    """The program neither reads nor writes a host copy through a symbolic link."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"not ours")
    remembered = Remembered(tmp_path)
    remembered.path.symlink_to(elsewhere)

    with pytest.raises(OSError, match="symbolic"):
        remembered.keep(generations(1)[0])
    assert elsewhere.read_bytes() == b"not ours"
