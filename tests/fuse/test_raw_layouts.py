"""Tests of the memory layouts of requests and replies, as in linux/fuse.h."""

import struct
from types import ModuleType

import pytest

from s3fs_meta.fuse import convert, frequent_requests, raw_operations
from s3fs_meta.fuse.convert import Converter, Overrides
from s3fs_meta.model import ROOT_INO, Ino
from tests.fuse.conftest import FILE


@pytest.mark.parametrize(
    ("module", "name", "size_bytes"),
    [
        (raw_operations, "LSEEK", 24),
        (raw_operations, "LSEEK_OUT", 8),
        (raw_operations, "FALLOCATE", 32),
        (raw_operations, "COPY_FILE_RANGE", 56),
        (frequent_requests, "CREATE", 16),
        (convert, "DIRENT", 24),
        (frequent_requests, "FORGET", 8),
        (frequent_requests, "FORGETS", 8),
        (frequent_requests, "FORGOTTEN", 16),
        (frequent_requests, "LINK", 8),
        (frequent_requests, "MKDIR", 8),
        (frequent_requests, "RENAME", 8),
        (frequent_requests, "OPEN", 8),
        (frequent_requests, "READ", 20),
        (frequent_requests, "WRITE", 40),
        (frequent_requests, "WRITE_OUT", 8),
        (frequent_requests, "GETXATTR", 8),
        (frequent_requests, "SETXATTR", 8),
        (frequent_requests, "SETATTR", 88),
        (raw_operations, "IOCTL", 32),
    ],
)
def test_request_structures_have_the_sizes_that_linux_defines(
    module: ModuleType, name: str, size_bytes: int
) -> None:
    """In Linux, the structure of READ has more fields, which the daemon does not need."""
    assert getattr(module, name).size == size_bytes


@pytest.mark.parametrize("ino", [ROOT_INO, FILE.ino])
@pytest.mark.parametrize("has_generations", [True, False])
def test_entry_reply_has_the_layout_that_linux_defines(ino: Ino, has_generations: bool) -> None:
    """Struct fuse_entry_out contains the inode, its generation, the timeouts and the attributes."""
    converter = Converter(1 << 20, timeout_s=1.5, has_generations=has_generations)
    found = FILE._replace(ino=ino, btime_ns=(1 << 40) + 7)
    entry, content = converter.entry(found), converter.entry_out(found)
    assert len(content) == 128
    assert struct.unpack_from("=QQQQII", content) == (
        ino,
        entry.generation,
        1,
        1,
        500_000_000,
        500_000_000,
    )
    assert content[40:] == converter.attributes_out(found)[16:]
    assert converter.created_out(found) == content + struct.pack("=QII", ino, 2, 0)


def test_reply_for_a_missing_name_has_inode_0_and_a_timeout() -> None:
    """The kernel caches a missing name for the time in the reply; with timeout 0 it does not."""
    converter = Converter(1 << 20, timeout_s=1.5)
    content = converter.no_entry_out()
    assert len(content) == 128
    assert struct.unpack_from("=QQQQII", content) == (0, 0, 1, 0, 500_000_000, 0)
    converter.let_remember(False)
    assert converter.no_entry_out() == bytes(128)


def test_statx_reply_has_the_layout_that_linux_defines() -> None:
    """Each field of struct fuse_statx_out has the same offset as in Linux."""
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
def test_attribute_reply_has_the_layout_that_linux_defines(overrides: Overrides | None) -> None:
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
