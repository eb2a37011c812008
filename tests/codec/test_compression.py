"""Compression of blocks: round trips, names of methods and limits."""

import random
import threading
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.codec.compression import (
    COMPRESSION_NAMES,
    Compressor,
    DecompressionError,
    Method,
    decompress,
)
from s3fs_meta.errors import UsageError
from s3fs_meta.options.settings import MountOptions
from tests.damage import flipped

TEXT = b"every block of this text looks like the one before it. " * 200


@pytest.mark.parametrize("name", COMPRESSION_NAMES)
def test_every_compression_method_restores_the_original_data(name: str) -> None:
    assert decompress(Compressor.for_name(name).compress(TEXT), len(TEXT)) == TEXT


def test_default_compression_method_can_be_requested_by_its_name() -> None:
    default = MountOptions().compression
    assert Compressor.for_name(default).name == default


@pytest.mark.parametrize("name", ["", "zstd", "zstd-0", "zstd-20", "zstd-01", "ZSTD-1", "gzip"])
def test_error_about_an_unknown_compression_name_lists_the_valid_names(name: str) -> None:
    with pytest.raises(UsageError, match="use none, or zstd-1"):
        Compressor.for_name(name)


def test_incompressible_data_is_stored_uncompressed() -> None:
    """Incompressible data is stored unchanged, after one byte that names the method."""
    noise = random.Random(1).randbytes(10_000)
    packed = Compressor.for_name("zstd-3").compress(noise)

    assert packed == bytes([Method.STORED]) + noise
    assert decompress(packed, len(noise)) == noise


def test_empty_data_is_stored_uncompressed() -> None:
    assert Compressor.for_name("zstd-1").compress(b"") == bytes([Method.STORED])
    assert decompress(bytes([Method.STORED]), 0) == b""


def test_slice_of_a_larger_buffer_is_compressed_like_a_bytes_object() -> None:
    whole = memoryview(bytearray(TEXT))[10:500]

    assert decompress(Compressor.for_name("zstd-1").compress(whole), 490) == TEXT[10:500]


def test_compressed_frame_of_unexpected_size_is_refused() -> None:
    packed = Compressor.for_name("zstd-1").compress(TEXT)

    for plain_bytes in (0, 1, len(TEXT) - 1, len(TEXT) + 1, 1 << 40):
        with pytest.raises(DecompressionError):
            decompress(packed, plain_bytes)


def test_oversized_compressed_frame_allocates_no_memory() -> None:
    """A small frame that declares 256 MiB is rejected before memory is allocated."""
    bomb = bytes([Method.ZSTD]) + zstandard.ZstdCompressor().compress(bytes(1 << 28))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionError):
            decompress(bomb, 4096)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20


def test_zstd_window_larger_than_the_content_is_refused() -> None:
    """The content size limits the window, because 100 bytes must not use 128 MiB of memory."""
    # The frame stores its content size in four bytes and has a window descriptor.
    descriptor = bytes([0b10_000000])
    window = bytes([(27 - 10) << 3])
    frame = zstandard.FRAME_HEADER + descriptor + window + (100).to_bytes(4, "little") + bytes(20)
    assert zstandard.get_frame_parameters(frame).window_size == 1 << 27

    with pytest.raises(DecompressionError, match="window"):
        decompress(bytes([Method.ZSTD]) + frame, 100)


@pytest.mark.parametrize("name", ["zstd-1", "zstd-9", "zstd-19"])
@pytest.mark.parametrize("plain_bytes", [9, 100, 1000, 1025, 65_537, 300_000])
def test_zstd_window_of_a_written_frame_is_not_larger_than_its_content(
    name: str, plain_bytes: int
) -> None:
    """Frames that this program writes pass the limit on zstd windows."""
    data = bytes(plain_bytes)
    packed = Compressor.for_name(name).compress(data)

    assert decompress(packed, plain_bytes) == data


def test_zstd_frame_without_a_declared_size_is_refused() -> None:
    """A zstd frame without a size is damaged, because this program always declares the size."""
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)

    with pytest.raises(DecompressionError):
        decompress(bytes([Method.ZSTD]) + frame, len(TEXT))


def test_zstd_frame_with_a_wrong_declared_size_is_refused() -> None:
    """A frame that declares more bytes than it contains raises an error and returns no bytes."""
    frame = bytearray(Compressor.for_name("zstd-1").compress(TEXT))
    parameters = zstandard.get_frame_parameters(frame[1:])
    # Byte 6 is the low byte of the content size.
    frame[6] ^= 1
    lie = zstandard.get_frame_parameters(frame[1:]).content_size

    assert lie != parameters.content_size
    with pytest.raises(DecompressionError):
        decompress(bytes(frame), lie)


def test_skippable_zstd_frame_is_refused() -> None:
    skippable = (0x184D2A50).to_bytes(4, "little") + (8).to_bytes(4, "little") + bytes(8)

    for plain_bytes in (0, 8):
        with pytest.raises(DecompressionError):
            decompress(bytes([Method.ZSTD]) + skippable, plain_bytes)


@pytest.mark.parametrize("tail", [b"x", zstandard.ZstdCompressor().compress(b"more")])
def test_bytes_after_a_zstd_frame_are_refused(tail: bytes) -> None:
    """Bytes after a zstd frame are damage, even if these bytes form a valid frame."""
    with pytest.raises(DecompressionError):
        decompress(Compressor.for_name("zstd-1").compress(TEXT) + tail, len(TEXT))


def test_error_about_an_unknown_compression_method_names_two_possible_causes() -> None:
    """An unknown compression method is due either to damage or to a newer program."""
    with pytest.raises(DecompressionError, match="damaged, or a newer s3fs-meta wrote them"):
        decompress(b"\x07data", 4)


def test_threads_can_share_one_compressor() -> None:
    compressor = Compressor.for_name("zstd-1")
    texts = [bytes([i]) * 5000 + random.Random(i).randbytes(5000) for i in range(4)]
    wrong: list[bytes] = []

    def work(text: bytes) -> None:
        wrong.extend(
            text for _ in range(100) if decompress(compressor.compress(text), len(text)) != text
        )

    threads = [threading.Thread(target=work, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


@settings(derandomize=True, max_examples=100)
@given(st.binary(max_size=5000), st.integers(1, 50), st.sampled_from(COMPRESSION_NAMES[:8]))
def test_data_is_unchanged_after_compression_and_decompression(
    data: bytes, times: int, name: str
) -> None:
    """Compression adds at most one byte, which identifies the method."""
    packed = Compressor.for_name(name).compress(data * times)

    assert len(packed) <= len(data) * times + 1
    assert decompress(packed, len(data) * times) == data * times


@settings(derandomize=True, max_examples=300)
@given(st.integers(0, 3), st.booleans(), st.binary(max_size=200), st.integers(0, 1 << 40))
def test_decompression_of_random_bytes_fails_or_returns_the_expected_length(
    method: int, frame: bool, data: bytes, plain_bytes: int
) -> None:
    magic = zstandard.FRAME_HEADER if frame else b""
    try:
        content = decompress(bytes([method]) + magic + data, plain_bytes)
    except DecompressionError:
        return
    assert len(content) == plain_bytes


def test_decompression_of_a_damaged_frame_fails_or_returns_the_expected_length() -> None:
    """A damaged frame may decompress, because it has no checksum; the block's hash detects this."""
    packed = Compressor.for_name("zstd-1").compress(TEXT)
    for at in range(len(packed) * 8):
        damaged = flipped(packed, at // 8, at % 8)
        try:
            assert len(decompress(damaged, len(TEXT))) == len(TEXT)
        except DecompressionError:
            continue


def test_every_truncated_compressed_frame_is_refused() -> None:
    packed = Compressor.for_name("zstd-1").compress(TEXT)
    for cut in range(len(packed)):
        with pytest.raises(DecompressionError):
            decompress(packed[:cut], len(TEXT))
