"""Probed operations on the content of files: read, write, map, allocate, punch and copy."""

import ctypes
import fcntl
import mmap
import os
import socket
import subprocess
from pathlib import Path
from typing import Final

from contrib.conformance.probe_checks import Different, Operations, checked, expect, libc, make_file

OPERATIONS = Operations()

MIB: Final = 1 << 20
PAGE: Final = 4096
FICLONE: Final = 0x40049409
KEEP_SIZE, PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE, INSERT_RANGE = 1, 2, 8, 16, 32


@OPERATIONS.add("O_TRUNC and O_APPEND", "open(2)")
def _append(folder: Path) -> None:
    path = make_file(folder)
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    one, other = (os.open(path, os.O_WRONLY | os.O_APPEND) for _ in range(2))
    os.write(one, b"a")
    os.write(other, b"b")
    os.write(one, b"c")
    os.close(one)
    os.close(other)
    expect(path.read_bytes(), b"abc")


@OPERATIONS.add("a file made shorter and longer", "truncate(2)")
def _truncate(folder: Path) -> None:
    path = make_file(folder)
    os.truncate(path, 3)
    os.truncate(path, 6)
    expect(path.read_bytes(), b"con\0\0\0")


@OPERATIONS.add("an offset of 2^43", "pwrite(2)")
def _far(folder: Path) -> None:
    with (folder / "f").open("wb") as file:
        os.pwrite(file.fileno(), b"x", 1 << 43)
        expect(os.fstat(file.fileno()).st_size, (1 << 43) + 1)


@OPERATIONS.add("an append by one write", "pwritev2(2), RWF_APPEND")
def _append_once(folder: Path) -> None:
    path = make_file(folder)
    with path.open("r+b") as file:
        os.pwritev(file.fileno(), [b"!"], 0, os.RWF_APPEND if hasattr(os, "RWF_APPEND") else 0x10)
    expect(path.read_bytes(), b"content!")


@OPERATIONS.add("direct reads and writes", "open(2), O_DIRECT")
def _direct(folder: Path) -> None:
    page = mmap.mmap(-1, PAGE)
    page[:] = b"d" * PAGE
    fd = os.open(folder / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    try:
        expect(os.pwritev(fd, [page], 0), PAGE)
        page[:] = bytes(PAGE)
        expect(os.preadv(fd, [page], 0), PAGE)
        expect(page[:], b"d" * PAGE)
    finally:
        os.close(fd)


@OPERATIONS.add("a shared map", "mmap(2), MAP_SHARED")
def _mapped(folder: Path) -> None:
    path = make_file(folder, bytes(2 * PAGE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[PAGE : PAGE + 3] = b"map"
        expect(os.pread(file.fileno(), 3, PAGE), b"map")
    expect(path.read_bytes()[PAGE : PAGE + 3], b"map")


@OPERATIONS.add("a private map", "mmap(2), MAP_PRIVATE")
def _mapped_privately(folder: Path) -> None:
    path = make_file(folder)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
        mapped[:3] = b"XXX"
        expect(path.read_bytes(), b"content")


@OPERATIONS.add("reads and writes of an open file without a name", "unlink(2)")
def _unnamed(folder: Path) -> None:
    path = make_file(folder)
    with path.open("r+b") as file:
        path.unlink()
        os.pwrite(file.fileno(), b"C", 0)
        expect(os.pread(file.fileno(), 9, 0), b"Content")


@OPERATIONS.add("link count of an open file without a name", "inode(7), st_nlink")
def _unnamed_links(folder: Path) -> None:
    path = make_file(folder)
    with path.open("rb") as file:
        path.unlink()
        expect(os.fstat(file.fileno()).st_nlink, 0)


@OPERATIONS.add("a program that is run", "execve(2)")
def _executed(folder: Path) -> None:
    path = make_file(folder, b"#!/bin/sh\necho ran\n")
    path.chmod(0o755)
    done = subprocess.run([path], capture_output=True, check=True)
    expect(done.stdout, b"ran\n")


@OPERATIONS.add("copy from a file to a socket", "sendfile(2)")
def _sendfile(folder: Path) -> None:
    one, other = socket.socketpair()
    with one, other, make_file(folder).open("rb") as file:
        expect(os.sendfile(one.fileno(), file.fileno(), 0, 7), 7)
        expect(other.recv(9), b"content")


@OPERATIONS.add("move from a pipe to a file", "splice(2)")
def _splice(folder: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"pipe")
    with (folder / "f").open("wb") as file:
        expect(checked(libc.splice(reader, None, file.fileno(), None, 4, 0)), 4)
    os.close(reader)
    os.close(writer)
    expect((folder / "f").read_bytes(), b"pipe")


def _fallocate(path: Path, mode: int, offset: int, length: int) -> None:
    with path.open("r+b") as file:
        at, count = ctypes.c_longlong(offset), ctypes.c_longlong(length)
        checked(libc.fallocate(file.fileno(), mode, at, count))


@OPERATIONS.add("blocks of a sparse file", "inode(7), st_blocks")
def _sparse(folder: Path) -> None:
    with (folder / "f").open("wb") as file:
        os.truncate(file.fileno(), 64 * MIB)
        os.pwrite(file.fileno(), b"x", 32 * MIB)
        os.fsync(file.fileno())
    found = (folder / "f").stat().st_blocks * 512
    if not 0 < found <= 4 * MIB:
        raise Different(f"{found} bytes for one byte of content")


@OPERATIONS.add("blocks of a file after fsync", "inode(7), st_blocks")
def _blocks(folder: Path) -> None:
    with (folder / "f").open("wb") as file:
        file.write(os.urandom(4 * MIB))
        os.fsync(file.fileno())
        found = os.fstat(file.fileno()).st_blocks * 512
    if not 4 * MIB <= found <= 5 * MIB:
        raise Different(f"{found} of {4 * MIB} bytes")


@OPERATIONS.add("allocate", "fallocate(2)")
def _allocate(folder: Path) -> None:
    path = make_file(folder)
    _fallocate(path, 0, 0, MIB)
    expect(path.stat().st_size, MIB)


@OPERATIONS.add("allocate beyond the end of a file", "fallocate(2), KEEP_SIZE")
def _allocate_behind(folder: Path) -> None:
    path = make_file(folder)
    _fallocate(path, KEEP_SIZE, 0, MIB)
    expect(path.stat().st_size, 7)


@OPERATIONS.add("punch a hole", "fallocate(2), PUNCH_HOLE")
def _punch(folder: Path) -> None:
    path = make_file(folder, b"x" * 3 * MIB)
    _fallocate(path, PUNCH_HOLE | KEEP_SIZE, MIB, MIB)
    expect(path.read_bytes() == b"x" * MIB + bytes(MIB) + b"x" * MIB, True)


@OPERATIONS.add("zero a range", "fallocate(2), ZERO_RANGE")
def _zero(folder: Path) -> None:
    path = make_file(folder, b"x" * 3000)
    _fallocate(path, ZERO_RANGE, 1000, 3000)
    expect(path.read_bytes(), b"x" * 1000 + bytes(3000))


@OPERATIONS.add("collapse a range", "fallocate(2), COLLAPSE_RANGE")
def _collapse(folder: Path) -> None:
    path = make_file(folder, b"a" * MIB + b"b" * MIB)
    _fallocate(path, COLLAPSE_RANGE, 0, MIB)
    expect(path.stat().st_size, MIB)


@OPERATIONS.add("insert a range", "fallocate(2), INSERT_RANGE")
def _insert(folder: Path) -> None:
    path = make_file(folder, b"a" * MIB + b"b" * MIB)
    _fallocate(path, INSERT_RANGE, MIB, MIB)
    expect(path.stat().st_size, 3 * MIB)


def _with_a_hole(folder: Path) -> Path:
    path = folder / "f"
    with path.open("wb") as file:
        os.pwrite(file.fileno(), b"x" * MIB, 8 * MIB)
        os.truncate(file.fileno(), 16 * MIB)
    return path


@OPERATIONS.add("find data", "lseek(2), SEEK_DATA")
def _data(folder: Path) -> None:
    with _with_a_hole(folder).open("rb") as file:
        expect(os.lseek(file.fileno(), 0, os.SEEK_DATA), 8 * MIB)


@OPERATIONS.add("find a hole", "lseek(2), SEEK_HOLE")
def _hole(folder: Path) -> None:
    with _with_a_hole(folder).open("rb") as file:
        expect(os.lseek(file.fileno(), 8 * MIB, os.SEEK_HOLE), 9 * MIB)


@OPERATIONS.add("copy a range", "copy_file_range(2)")
def _copy(folder: Path) -> None:
    with make_file(folder).open("rb") as source, (folder / "g").open("wb") as target:
        expect(os.copy_file_range(source.fileno(), target.fileno(), 100), 7)
    expect((folder / "g").read_bytes(), b"content")


@OPERATIONS.add("share all content", "ioctl_ficlone(2)")
def _reflink(folder: Path) -> None:
    with make_file(folder).open("rb") as source, (folder / "g").open("wb") as target:
        fcntl.ioctl(target.fileno(), FICLONE, source.fileno())
