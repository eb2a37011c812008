"""Tests of the line reader, which splits a stream into lines."""

from collections.abc import Iterator

import pytest
import trio
from typing_extensions import override

from s3fs_meta.control.lines import LineReader
from s3fs_meta.errors import ControlError


class Pieces(trio.abc.ReceiveStream):
    """A stream that returns the given pieces of bytes one after another."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)

    @override
    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return next(self._pieces, b"")

    @override
    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_line_reader_joins_partial_lines_and_splits_joined_lines() -> None:
    """A line may arrive in two pieces, and a piece may contain two lines."""
    lines = LineReader(Pieces(b"on", b"e\ntwo\nthr", b"ee\n"))

    assert [await lines.next_line() for _ in range(4)] == [b"one", b"two", b"three", b""]


async def test_control_stream_that_ends_within_a_line_raises_control_error() -> None:
    with pytest.raises(ControlError, match="middle"):
        await LineReader(Pieces(b"half")).next_line()
