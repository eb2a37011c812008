"""Compression: one byte that identifies the method, followed by the compressed bytes.

Owns: the methods, their names in options, the bound on decompressed data.
Does not know: the meaning of the data.
Keeps: decompressing never allocates more than the caller allows, even for hostile input.
Tasks: any thread may call this module. Each thread has its own zstandard contexts, because they are
not thread-safe.

Why no lz4: see docs/design/format.md, "Compression".
"""

import enum
import threading
from typing import Final

import zstandard

from s3fs_meta.errors import UsageError

ZSTD_LEVEL_MAX: Final = 19  # higher zstd levels have larger windows, which some decoders reject
METHOD_BYTES: Final = 1

_threads = threading.local()


class Method(enum.IntEnum):
    """The compression methods; the value is the first byte of compressed data."""

    STORED = 0
    ZSTD = 1


class DecompressionError(Exception):
    """The bytes cannot be decompressed; the caller adds the object's name to the message."""


class Compressor:
    """One compression method and its level."""

    __slots__ = ("_level", "name")

    def __init__(self, name: str, level: int | None) -> None:
        self.name = name
        self._level = level

    @classmethod
    def for_name(cls, name: str) -> "Compressor":
        """Return the compressor for the name in a user's option, for example ``zstd-3``.

        Raises:
            UsageError: the name is neither ``none`` nor ``zstd-1`` to ``zstd-19``.
        """
        if name == "none":
            return cls(name, None)
        if name in _ZSTD_NAMES:
            return cls(name, _ZSTD_NAMES[name])
        raise UsageError(
            f"unknown compression {name!r}: use none, or zstd-1 (fast) to zstd-{ZSTD_LEVEL_MAX}"
        )

    @classmethod
    def zstd(cls, level: int) -> "Compressor":
        """Return the zstd compressor of *level*, 1 to 19."""
        return cls.for_name(f"zstd-{level}")

    def compress(self, data: bytes | memoryview) -> bytes:
        """Return *data* compressed, or uncompressed if compression does not make it smaller."""
        if self._level is not None and len(data) > 0:
            packed = _compressor(self._level).compress(data)
            if len(packed) < len(data):
                return b"".join((_ZSTD_PREFIX, packed))
        return b"".join((_STORED_PREFIX, data))


def decompress(data: bytes | memoryview, plain_bytes: int) -> bytes | memoryview:
    """Return the decompressed data; its length must be exactly *plain_bytes*.

    Data that was stored uncompressed is not copied: a view of *data* is returned.

    Raises:
        DecompressionError: the payload is corrupt, has a different length, or more bytes follow.
    """
    if len(data) < METHOD_BYTES:
        raise DecompressionError(
            "the content is empty: the byte with the compression method is missing"
        )
    payload = memoryview(data)[METHOD_BYTES:]
    match data[0]:
        case Method.STORED:
            if len(payload) != plain_bytes:
                raise DecompressionError(
                    f"the length of the uncompressed content is {len(payload)} bytes instead of"
                    f" {plain_bytes}"
                )
            return payload
        case Method.ZSTD:
            return _decompress_zstd(payload, plain_bytes)
        case other:
            raise DecompressionError(
                f"compression method {other} is unknown: the bytes are damaged, or a newer "
                "s3fs-meta wrote them"
            )


def _decompress_zstd(payload: memoryview, plain_bytes: int) -> bytes:
    # zstandard allocates the size that a frame declares and ignores max_output_size.
    # Every frame of s3fs-meta declares its size, which is checked before decompression.
    # zstd writes single-segment frames, so no window is larger than the content.
    # Source: RFC 8878, section 3.1.1.1.
    try:
        frame = zstandard.get_frame_parameters(payload)
        if frame.content_size != plain_bytes or plain_bytes == 0:
            raise DecompressionError(
                f"the zstd frame declares a wrong length: {frame.content_size} bytes instead of"
                f" {plain_bytes}"
            )
        if frame.window_size > plain_bytes:
            raise DecompressionError(
                f"the zstd window is larger than the content: {frame.window_size} bytes"
            )
        content = _decompressor().decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise DecompressionError("the zstd frame is damaged") from exc
    if len(content) != plain_bytes:
        raise DecompressionError(
            f"the length of the decompressed content is {len(content)} bytes instead of"
            f" {plain_bytes}"
        )
    return content


def _compressor(level: int) -> zstandard.ZstdCompressor:
    kept: dict[int, zstandard.ZstdCompressor] | None = getattr(_threads, "compressors", None)
    if kept is None:
        kept = _threads.compressors = {}
    if level not in kept:
        kept[level] = zstandard.ZstdCompressor(level=level, write_content_size=True)
    return kept[level]


def _decompressor() -> zstandard.ZstdDecompressor:
    kept: zstandard.ZstdDecompressor | None = getattr(_threads, "decompressor", None)
    if kept is None:
        kept = _threads.decompressor = zstandard.ZstdDecompressor()
    return kept


_STORED_PREFIX: Final = bytes([Method.STORED])
_ZSTD_PREFIX: Final = bytes([Method.ZSTD])
_ZSTD_NAMES: Final = {f"zstd-{level}": level for level in range(1, ZSTD_LEVEL_MAX + 1)}

COMPRESSION_NAMES: Final = ("none", *_ZSTD_NAMES)
