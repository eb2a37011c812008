"""Tests of the file that records pins."""

from pathlib import Path

import pytest

from s3fs_meta.errors import SettingsError
from s3fs_meta.fs.trees import pins_file
from s3fs_meta.fs.trees.pins_file import NAME, Pin
from s3fs_meta.limits import PINS_FILE_BYTES_MAX, PINS_MAX
from s3fs_meta.model import Ino

PINS = [Pin(b"", Ino(1), 5), Pin(b'a/\xff\n"b', Ino(7), 1_700_000_000_000_000_000)]


def test_pins_read_from_the_file_equal_the_written_pins(tmp_path: Path) -> None:
    """Pinned names need not be UTF-8. If the list of pins is empty, there is no file."""
    assert pins_file.read(tmp_path) == []
    pins_file.write(tmp_path, PINS)
    assert pins_file.read(tmp_path) == PINS
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0
    pins_file.write(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
    pins_file.write(tmp_path, [])


def test_interrupted_write_of_the_pins_file_keeps_the_previous_pins(tmp_path: Path) -> None:
    pins_file.write(tmp_path, PINS)
    (tmp_path / f"{NAME}.new").write_bytes(b'{"vers')  # This temporary file was left by a crash.

    assert pins_file.read(tmp_path) == PINS
    pins_file.write(tmp_path, PINS[:1])
    assert pins_file.read(tmp_path) == PINS[:1]
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_longest_list_of_pins_fits_into_the_file(tmp_path: Path) -> None:
    """The pins file has room for the maximum number of pins with the longest escaped paths."""
    longest = [Pin(b"\xff" * 4096, Ino((1 << 63) - 1), -(1 << 63))] * PINS_MAX
    pins_file.write(tmp_path, longest)
    assert pins_file.read(tmp_path) == longest


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b'{"version": 2, "pins": []}',
        b'{"version": 1}',
        b'{"version": 1, "pins": 5}',
        b'{"version": 1, "pins": [5]}',
        b'{"version": 1, "pins": [{"path": "a", "ino": 1}]}',
        b'{"version": 1, "pins": [{"path": 5, "ino": 1, "born_ns": 1}]}',
        b'{"version": 1, "pins": [{"path": "a", "ino": "1", "born_ns": 1}]}',
        b'{"version": 1, "pins": [{"path": "a", "ino": 0, "born_ns": 1}]}',
        b'{"version": 1, "pins": [{"path": "a", "ino": 9223372036854775808, "born_ns": 1}]}',
        b'{"version": 1, "pins": [{"path": "a", "ino": true, "born_ns": 1}]}',
        b'{"version": 1, "pins": [{"path": "a", "ino": 1, "born_ns": 1.5}]}',
        b"[" * 100_000,
        b" " * (PINS_FILE_BYTES_MAX + 1),
    ],
)
def test_unreadable_list_of_pins_is_refused(tmp_path: Path, content: bytes) -> None:
    """A corrupt pins file is refused with advice, and the file is not changed."""
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(SettingsError, match="remove the file and pin the trees again"):
        pins_file.read(tmp_path)
    assert (tmp_path / NAME).read_bytes() == content
