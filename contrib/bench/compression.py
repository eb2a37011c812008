"""Compression methods compared on real files: Python's own standard library, block by block."""

import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from s3fs_meta.codec.compression import Compressor, decompress

METHODS: Final = ("none", "zstd-1", "zstd-3", "zstd-6", "zstd-9", "zstd-15")
BLOCK_BYTES: Final = 1 << 20


def run(_scratch: Path, *, sample_mib: int) -> dict[str, object]:
    """Compress and decompress the sample with each method."""
    blocks = list(sample(sample_mib << 20))
    total = sum(map(len, blocks))
    return {
        "sample": "files of the Python standard library, in blocks of at most 1 MiB",
        "sample_bytes": total,
        "methods": {name: measure(name, blocks, total) for name in METHODS},
    }


def sample(left: int) -> Iterator[bytes]:
    """Yield the blocks of real files, in a fixed order, up to a bound."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*")):
        if path.is_file() and "site-packages" not in path.parts:
            data = path.read_bytes()
            for start in range(0, len(data), BLOCK_BYTES):
                yield data[start : start + BLOCK_BYTES]
            left -= len(data)
            if left <= 0:
                return


def measure(name: str, blocks: list[bytes], total: int) -> dict[str, float]:
    """Return ratio and MB per second of processor time, both ways."""
    compressor = Compressor.for_name(name)
    start = time.process_time()
    packed = [compressor.compress(block) for block in blocks]
    compressed = time.process_time()
    for data, block in zip(packed, blocks, strict=True):
        assert len(decompress(data, len(block))) == len(block), "not what went in"
    decompressed = time.process_time()
    return {
        "ratio": total / sum(map(len, packed)),
        "compress_mb_s": total / (compressed - start) / 1e6,
        "decompress_mb_s": total / (decompressed - compressed) / 1e6,
    }
