"""Cutting a stream into lines."""

from collections.abc import Iterator

import pytest
import trio
from typing_extensions import override

from s3fs_meta.control.lines import LineReader
from s3fs_meta.errors import ControlError


class Pieces(trio.abc.ReceiveStream):
    """A stream that delivers exactly these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)

    @override
    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return next(self._pieces, b"")

    @override
    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_lines_are_put_together_and_apart() -> None:
    """Neither the pieces of a line nor several lines in a piece matter."""
    lines = LineReader(Pieces(b"on", b"e\ntwo\nthr", b"ee\n"))

    assert [await lines.next_line() for _ in range(4)] == [b"one", b"two", b"three", b""]


async def test_line_without_its_end_is_an_error() -> None:
    """A cut-off message is never taken for a whole one."""
    with pytest.raises(ControlError, match="middle"):
        await LineReader(Pieces(b"half")).next_line()
