"""Memory layouts of requests and replies, as in linux/fuse.h."""

import struct

import pytest

from s3fs_meta.fuse import raw_operations
from s3fs_meta.fuse.convert import Converter, Overrides
from tests.fuse.conftest import FILE


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [
        ("LSEEK", 24),
        ("LSEEK_OUT", 8),
        ("FALLOCATE", 32),
        ("COPY_FILE_RANGE", 56),
        ("WRITE_OUT", 8),
        ("GETXATTR", 8),
        ("SETATTR", 88),
        ("IOCTL", 32),
    ],
)
def test_request_structures_have_the_same_sizes_as_in_linux(name: str, size_bytes: int) -> None:
    assert getattr(raw_operations, name).size == size_bytes


def test_statx_reply_has_the_same_layout_as_in_linux() -> None:
    """Each field of struct fuse_statx_out has its offset in Linux."""
    device = FILE._replace(rdev=0x801)
    entry = Converter(1 << 20, timeout_s=1.5).entry(device)
    content = raw_operations.statx_out(entry, FILE.btime_ns)
    assert len(content) == 288
    assert struct.unpack_from("=QI", content, 0) == (1, 500_000_000)
    mask, block_bytes = struct.unpack_from("=II", content, 32)
    assert (mask, block_bytes) == (0xFFF, 4096)
    assert struct.unpack_from("=IIIH", content, 48) == (3, 10, 20, 0o100640)
    assert struct.unpack_from("=QQQ", content, 64) == (1 << 40, 5000, 16)
    times = [struct.unpack_from("=qI", content, 96 + 16 * number) for number in range(4)]
    wanted = (FILE.atime_ns, FILE.btime_ns, FILE.ctime_ns, FILE.mtime_ns)
    assert [seconds * 10**9 + rest for seconds, rest in times] == list(wanted)
    assert times[3] == (-1, 999_999_999)
    assert struct.unpack_from("=II", content, 160) == (8, 1)


@pytest.mark.parametrize("overrides", [None, Overrides(uid=1, gid=2, umask=0o027)])
def test_attribute_reply_has_the_same_layout_as_in_linux(overrides: Overrides | None) -> None:
    """Struct fuse_attr_out has the same values as in a reply of pyfuse3."""
    converter = Converter(1 << 20, overrides=overrides, timeout_s=1.5)
    device = FILE._replace(rdev=0x801)
    entry, content = converter.entry(device), converter.attributes_out(device)
    assert len(content) == 104
    assert struct.unpack_from("=QI", content, 0) == (1, 500_000_000)
    assert struct.unpack_from("=QQQ", content, 16) == (1 << 40, 5000, entry.st_blocks)
    seconds, rests = (
        struct.unpack_from("=qqq", content, 40),
        struct.unpack_from("=III", content, 64),
    )
    times = [second * 10**9 + rest for second, rest in zip(seconds, rests, strict=True)]
    assert times == [entry.st_atime_ns, entry.st_mtime_ns, entry.st_ctime_ns]
    assert (seconds[1], rests[1]) == (-1, 999_999_999)
    shown = (entry.st_mode, entry.st_nlink, entry.st_uid, entry.st_gid)
    assert struct.unpack_from("=IIII", content, 76) == shown
    assert struct.unpack_from("=III", content, 92) == (0x801, entry.st_blksize, 0)
