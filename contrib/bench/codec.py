"""CPU time of compressing, encrypting and hashing blocks and images.

The benchmark calls the functions of the package. A result is the minimum CPU time of several
rounds. The inputs are the Python sources of this interpreter, shared libraries, random bytes, and
a metadata database. If the module ``lz4`` is installed, it is compared with zstd.
"""

import importlib
import os
import random
import sqlite3
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import s3fs_meta
from s3fs_meta.codec import envelope, pack
from s3fs_meta.codec.compression import Compressor, decompress
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.limits import IMAGE_PIECE_BYTES, MIB
from s3fs_meta.model import BlockId, BlockIndex, Epoch, Ino, ObjectKey

ROUNDS: Final = 5
DATABASE_FILES: Final = 150_000
ENCRYPTED: Final = Keyring.from_master(bytes(range(32)))
PLAIN: Final = Keyring(None, bytes(range(32)))
KEY: Final = pack.new_key(Epoch(1), bytes(16))
Table = dict[str, dict[str, float]]
LEVELS: Final = ("none", "zstd-1", "zstd-2", "zstd-3", "zstd-4", "zstd-6", "zstd-9")


def best_s(action: Callable[..., object], *arguments: object) -> float:
    """Return the minimum CPU time of one call to *action*."""
    times = []
    for _ in range(ROUNDS):
        before = time.thread_time()
        action(*arguments)
        times.append(time.thread_time() - before)
    return min(times)


def corpus(pattern: str, root: str, size_bytes: int) -> bytes:
    """Concatenate files below *root* whose names match *pattern*, up to *size_bytes*."""
    data = bytearray()
    for path in sorted(Path(root).rglob(pattern)):
        if path.is_file() and not path.is_symlink():
            data += path.read_bytes()
        if len(data) >= size_bytes:
            break
    return bytes(data[:size_bytes])


def database() -> bytes:
    """Return the content of a metadata database for small files with 16-byte names."""
    rng = random.Random(1)
    schema = Path(s3fs_meta.__file__).with_name("meta") / "schema.sql"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "meta.db"
        connection = sqlite3.connect(path)
        connection.executescript(schema.read_text())
        now_ns = 1_700_000_000_000_000_000
        for ino in range(2, DATABASE_FILES):
            now_ns += rng.randrange(200_000)
            row = (ino, 0o100644, 1, 1000, 1000, rng.randrange(9000), 1, now_ns, 0, 0, 0, 1, 0, 0)
            connection.execute(f"INSERT INTO inodes VALUES ({','.join('?' * 14)})", row)
            name = f"file-{ino:07d}.txt".encode()
            cookie = rng.getrandbits(55) << 8
            connection.execute("INSERT INTO dentries VALUES (1,?,?,?)", (cookie, name, ino))
            connection.execute("INSERT INTO block_map VALUES (?,0,?)", (ino, ino))
            block = (ino, 1, row[5], rng.randbytes(32), ino // 4000, ino * 900 % 16_000_000, 900)
            connection.execute("INSERT INTO blocks VALUES (?,?,?,?,?,?,?)", block)
        connection.commit()
        connection.close()
        return path.read_bytes()


def blocks_of(data: bytes, block_bytes: int) -> list[memoryview]:
    """Split *data* into blocks; drop an incomplete last block."""
    view = memoryview(data)
    return [view[at : at + block_bytes] for at in range(0, len(view) - block_bytes, block_bytes)]


def packs_of(blocks: list[memoryview], keyring: Keyring, name: str) -> list[pack.Pack]:
    """Return packs that contain *blocks*."""
    packs = []
    writer = pack.PackWriter(KEY, keyring, name)
    for number, block in enumerate(blocks):
        if writer.full:
            packs.append(writer.finish())
            writer = pack.PackWriter(KEY, keyring, name)
        digest = keyring.block_hash(block)
        writer.add(BlockId(number), Ino(1), BlockIndex(number), digest, block)
    packs.append(writer.finish())
    return packs


def open_all(packs: list[pack.Pack], keyring: Keyring) -> None:
    """Decrypt each block of a pack separately, as a reader of single blocks does."""
    for one in packs:
        view = memoryview(one.data)
        for entry in one.entries:
            stored = view[entry.offset : entry.offset + entry.stored_bytes]
            pack.open_block(keyring, one.key, stored, entry.offset, entry.plain_bytes, entry.hash)


def measure_blocks(contents: dict[str, bytes]) -> Table:
    """Seal and open encrypted blocks of 1 MiB, for each kind of content and each compression."""
    table: Table = {}
    for label, data in contents.items():
        blocks = blocks_of(data, MIB)
        total = sum(map(len, blocks))
        for name in LEVELS:
            packs = packs_of(blocks, ENCRYPTED, name)
            table[f"{label}, {name}"] = {
                "stored": sum(len(one.data) for one in packs) / total,
                "seal MB/s": total / best_s(packs_of, blocks, ENCRYPTED, name) / 1e6,
                "open MB/s": total / best_s(open_all, packs, ENCRYPTED) / 1e6,
            }
    return table


def measure_records(data: bytes) -> Table:
    """Seal and open small blocks with zstd-1; return bytes and microseconds per block."""
    table: Table = {}
    for block_bytes in (512, 1024, 4096, 16_384, 65_536):
        blocks = blocks_of(data, block_bytes)[:4000]
        for label, keyring in (("plain", PLAIN), ("encrypted", ENCRYPTED)):
            packs = packs_of(blocks, keyring, "zstd-1")
            records = sum(entry.stored_bytes for one in packs for entry in one.entries)
            count = len(blocks)
            table[f"{block_bytes}, {label}"] = {
                "record": records / count,
                "salt, tag, method": 1 + (pack.SALT_BYTES + 16 if keyring.encrypted else 0),
                "index entry": (sum(len(one.data) for one in packs) - records) / count,
                "seal us": best_s(packs_of, blocks, keyring, "zstd-1") / count * 1e6,
                "open us": best_s(open_all, packs, keyring) / count * 1e6,
            }
    return table


def measure_keys(data: bytes) -> dict[str, float]:
    """Return the time of deriving the key of a record, and the speed of hashing 1 MiB blocks."""
    salt, blocks = os.urandom(pack.SALT_BYTES), blocks_of(data, MIB)
    derive_s = best_s(lambda: [ENCRYPTED.object_cipher(salt, b"x" * 60) for _ in range(2000)])
    hash_s = best_s(apply, ENCRYPTED.block_hash, blocks)
    return {
        "key and cipher of a record, us": derive_s / 2000 * 1e6,
        "hash, MB/s": len(blocks) * MIB / hash_s / 1e6,
    }


def measure_images(data: bytes) -> Table:
    """Seal and open the encrypted image pieces of a metadata database, for each zstd level."""
    key = ObjectKey("image/000000000001-1-0000000000000000/000000")
    pieces = blocks_of(data, IMAGE_PIECE_BYTES)
    total = sum(map(len, pieces))

    def seal(level: int) -> list[bytes]:
        return [envelope.encode(b"piece", key, one, ENCRYPTED, level=level) for one in pieces]

    def unseal(sealed: list[bytes]) -> None:
        for one in sealed:
            envelope.decode(b"piece", key, one, ENCRYPTED)

    return {
        f"level {level}": {
            "stored": sum(map(len, seal(level))) / total,
            "seal MB/s": total / best_s(seal, level) / 1e6,
            "open MB/s": total / best_s(unseal, seal(level)) / 1e6,
        }
        for level in (1, 2, 3, 4, 6, 9, 12)
    }


def apply(function: Callable[[Any], bytes], items: Iterable[Any]) -> list[bytes]:
    """Call *function* with each item, and return the results."""
    return [function(item) for item in items]


def measure_lz4(contents: dict[str, bytes]) -> Table:
    """Compress 1 MiB blocks with lz4 and zstd-1; return nothing if the module lz4 is missing."""
    try:
        lz4 = importlib.import_module("lz4.block")
    except ImportError:
        return {}
    methods = {
        "lz4": (lz4.compress, lz4.decompress),
        "zstd-1": (Compressor.zstd(1).compress, lambda one: decompress(one, MIB)),
    }
    table: Table = {}
    for label, data in contents.items():
        blocks = blocks_of(data, MIB)
        total = MIB * len(blocks)
        for name, (squeeze, restore) in methods.items():
            packed = apply(squeeze, blocks)
            table[f"{label}, {name}"] = {
                "stored": sum(map(len, packed)) / total,
                "compress MB/s": total / best_s(apply, squeeze, blocks) / 1e6,
                "decompress MB/s": total / best_s(apply, restore, packed) / 1e6,
            }
    return table


def run(_scratch: Path, *, corpus_mib: int) -> dict[str, Any]:
    """Measure blocks, records, keys, images and lz4. This takes about two minutes."""
    size_bytes = corpus_mib * MIB
    contents = {
        "sources": corpus("*.py", sysconfig.get_path("stdlib"), size_bytes),
        "libraries": corpus("*.so*", "/usr/lib", size_bytes),
        "database": database(),
        "random": random.Random(1).randbytes(size_bytes),
    }
    lz4 = measure_lz4(contents)
    return {
        "corpus_mib": {label: len(data) / MIB for label, data in contents.items()},
        "absent": [] if lz4 else ["lz4"],
        "blocks": measure_blocks(contents),
        "records": measure_records(contents["sources"]),
        "keys": measure_keys(contents["sources"]),
        "images": measure_images(contents["database"]),
        "compression alone": lz4,
    }
