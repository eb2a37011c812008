"""Parsers for mount option values: sizes, times, points in time, masks, keywords.

Owns: the syntax of values, and the suggestion for a misspelt word.
Does not know: the options that use a parser.
The arguments of a parser are the name of the option, for messages, and the text after ``=``. A
parser raises UsageError if the text is invalid.
"""

import difflib
import ipaddress
import math
import os
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from s3fs_meta.clock import SystemClock
from s3fs_meta.errors import UsageError
from s3fs_meta.limits import (
    CACHE_BYTES_MIN,
    MARK_HASH_DIGITS_MIN,
    NAME_BYTES_MAX,
    PAGE_BYTES_MAX,
    PAGE_BYTES_MIN,
    RETENTION_S_MAX,
)
from s3fs_meta.model import NEWEST, AbbreviatedLink, PointInTime, Txg, is_kept_name
from s3fs_meta.options.listen_address import Address

INTERVAL_S_MAX: Final = 7 * 86_400.0
SIZE_BYTES_MAX: Final = 1 << 62  # maximum size; a sum of two fits into 64 bits
MODE_BITS_MAX: Final = 0o777
PORT_MAX: Final = 65_535
TXG_MAX: Final = (1 << 63) - 2

# Minimum similarity of a suggested word: "commit" is suggested for "comit", no word for "remount".
_LIKENESS: Final = 0.7

# Longer integers are invalid: 20 characters hold every 64-bit number, and int() refuses over 4300.
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)\s*%?", re.ASCII)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?", re.IGNORECASE | re.ASCII)
_SIZE_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DURATION_UNITS: Final = {
    "": 1.0,
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
}

_AGO: Final = re.compile(
    r"((?:\d+(?:\.\d+)?\s*(?:s|m|min|h|d|w)\s*)+)(?:-?ago)?", re.IGNORECASE | re.ASCII
)
_AGO_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)", re.IGNORECASE | re.ASCII)
_AGO_UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_TXG: Final = re.compile(r"txg=(\d{1,19})", re.ASCII)
_MARK: Final = re.compile(r"(\d{1,19}):([0-9a-f]+)", re.ASCII)
_HASH_DIGITS: Final = 64
_FRACTION: Final = re.compile(r"(?<=:\d\d)[.,](\d{1,9})\d*(?=$|[zZ+-])", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS_NS: Final = 1_000_000


def parse_size(word: str, text: str, example: str = "512M") -> int:
    """Parse a size in bytes; ``K``, ``M``, ``G`` and ``T`` are powers of 1024.

    Args:
        word: the name of the option.
        text: the value that the user gave.
        example: an example of a value, for the error message.

    Raises:
        UsageError: the text is not a size, or the size is above the maximum.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{word}={text} is not a size; write for example {word}={example}")
    size_bytes = float(match[1]) * _SIZE_UNITS[match[2].upper()]
    if size_bytes > SIZE_BYTES_MAX:
        raise UsageError(f"{word}={text} is above the maximum, {size_text(SIZE_BYTES_MAX)}")
    return int(size_bytes)


def size_text(size_bytes: int) -> str:
    """Return a size in the syntax of options, in the largest unit that divides it."""
    for unit in ("T", "G", "M", "K"):
        if size_bytes and size_bytes % _SIZE_UNITS[unit] == 0:
            return f"{size_bytes // _SIZE_UNITS[unit]}{unit}"
    return str(size_bytes)


def percent(word: str, text: str) -> float:
    """Parse a percentage from 0 to 100, with or without a percent sign.

    Raises:
        UsageError: the text is not a percentage.
    """
    match = _PERCENT.fullmatch(text.strip())
    if match is None or float(match[1]) > 100:  # noqa: PLR2004 - by definition
        raise UsageError(
            f"{word}={text} is not a percentage from 0 to 100; write for example {word}=5%"
        )
    return float(match[1])


def seconds(minimum: float) -> Callable[[str, str], float]:
    """Return a parser of times from *minimum* seconds to a week."""

    def parse(word: str, text: str) -> float:
        match = _DURATION.fullmatch(text.strip())
        seconds = math.nan
        if match is not None:
            seconds = float(match[1]) * _DURATION_UNITS[(match[2] or "").lower()]
        if not minimum <= seconds <= INTERVAL_S_MAX:
            raise UsageError(
                f"{word}={text} is not a time from {minimum:g} s to 7 d; "
                f"write seconds, or for example {word}=5m"
            )
        return seconds

    return parse


def point_in_time(word: str, text: str) -> PointInTime:
    """Parse a point in time: ISO 8601, an age, ``txg=N``, a kept point's name, or ``newest``."""
    found = parse_point_in_time(text.strip(), SystemClock().now_ns())
    if found is None:
        raise UsageError(
            f"{word}={text} is not a point in time; write for example {word}=2026-05-09T14:30,"
            f" {word}=10m (ten minutes ago), txg=42 or the name of a kept point"
        )
    return found


def entry_name(word: str, text: str) -> str:
    """Return the value of an option; raise UsageError if the value is no valid file name."""
    if not 0 < len(os.fsencode(text)) <= NAME_BYTES_MAX or text in {".", ".."} or "/" in text:
        raise UsageError(f"{word}={text} is not a valid file name")
    return text


def point_of_txg(word: str, text: str) -> PointInTime:
    """Return the point in time at the end of a transaction group; *text* is its number."""
    return PointInTime(f"{word}={text}", txg=Txg(integer(0, TXG_MAX)(word, text)))


def parse_point_in_time(text: str, now_ns: int) -> PointInTime | None:
    """Parse a point in time; return None if the text has no valid syntax."""
    if text == NEWEST.text:
        return NEWEST
    by_number = _TXG.fullmatch(text)
    if by_number is not None and int(by_number[1]) <= TXG_MAX:
        return PointInTime(text, txg=Txg(int(by_number[1])))
    ago = _AGO.fullmatch(text)
    if ago is not None:
        parts = _AGO_PART.findall(ago[1])
        back_s = sum(float(number) * _AGO_UNITS[unit.lower()] for number, unit in parts)
        if math.isinf(back_s * 1e9):
            return None
        return PointInTime(text, now_ns - int(back_s * 1e9), is_ago=True)
    if is_kept_name(text):
        return PointInTime(text, kept=text)
    fraction = _FRACTION.search(text)
    fraction_ns = 0 if fraction is None else int(fraction[1].ljust(9, "0"))
    try:
        # The datetime module of Python 3.10 parses neither "Z" nor nanoseconds.
        # A time without a zone is local.
        normalized = re.sub("[zZ]$", "+00:00", _FRACTION.sub("", text))
        when = datetime.fromisoformat(normalized).astimezone()
    except (ValueError, OverflowError):
        return None
    return PointInTime(text, (when - _EPOCH) // timedelta(seconds=1) * 10**9 + fraction_ns)


def format_time(time_ns: int) -> str:
    """Return a time as text that ``point_in_time`` parses, rounded up to milliseconds."""
    milliseconds = -(-time_ns // _MS_NS)
    when = _EPOCH + timedelta(milliseconds=milliseconds)
    return when.astimezone().isoformat(timespec="milliseconds")


def mark(word: str, text: str) -> AbbreviatedLink:
    """Parse a position in the chain as ``TXG:HASH``, the chain mark of ``status --all``."""
    match = _MARK.fullmatch(text.lower())
    if match is None or not MARK_HASH_DIGITS_MIN <= len(match[2]) <= _HASH_DIGITS:
        raise UsageError(f"{word}={text} must be TXG:HASH, the chain mark of status --all")
    return AbbreviatedLink(Txg(int(match[1])), match[2])


def listen_address(word: str, text: str) -> Address:
    """Parse an address to listen on: ``ADDR:PORT``, or a port on 127.0.0.1."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    host = "127.0.0.1" if host in {"", "localhost"} else host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        port = ""
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > PORT_MAX:
        raise UsageError(f"{word}={text} must be an IP address and a port, or a port on 127.0.0.1")
    return Address(host, int(port))


def retention(word: str, text: str) -> int:
    """Parse the retention: return seconds, up to 100 years; 0 retains no past point in time.

    A number needs a unit: a user who writes "30" for 30 days must not lose the history. "M" is
    refused, because a user could mean months.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = math.nan
    if match is not None and match[2] == "M":
        raise UsageError(f"{word}={text}: write m for minutes, and {word}=180d for half a year")
    if match is not None and float(match[1]) and not match[2]:
        raise UsageError(f"{word}={text} has no unit; write for example {word}={match[1]}d")
    if match is not None:
        seconds = float(match[1]) * _DURATION_UNITS[(match[2] or "").lower()]
    if not 0 <= seconds <= RETENTION_S_MAX:
        raise UsageError(
            f"{word}={text} is not a time from 0 to 100 years; write for example "
            f"{word}=7d or {word}=12h"
        )
    return int(seconds)


def duration(seconds: int) -> str:
    """Return a time span in the syntax of options, in the largest unit that divides it."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _DURATION_UNITS[unit] == 0:
            return f"{seconds // int(_DURATION_UNITS[unit])}{unit}"
    return f"{seconds}s" if seconds else "0"


def integer(minimum: int, maximum: int) -> Callable[[str, str], int]:
    """Return a parser of integers from a minimum to a maximum, inclusive."""

    def parse(word: str, text: str) -> int:
        if not _INTEGER.fullmatch(text) or not minimum <= int(text) <= maximum:
            raise UsageError(f"{word}={text} is not an integer from {minimum} to {maximum}")
        return int(text)

    return parse


class OneOf:
    """A parser that accepts only the given words, in upper or lower case."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, word: str, text: str) -> str:
        """Return the word; raise UsageError if the option does not accept the word."""
        if text.lower() not in self.choices:
            raise UsageError(
                f"{word}={text} is not one of {', '.join(self.choices)}{nearest(text, self.choices)}"
            )
        return text.lower()


def text_value(word: str, text: str) -> str:
    """Return the value of an option; raise UsageError if the value is empty."""
    if not text:
        raise UsageError(f"the option {word} needs a value")
    return text


def path_value(word: str, text: str) -> Path:
    """Parse a path; a leading ``~`` is replaced with the home directory."""
    try:
        return Path(text_value(word, text)).expanduser()
    except RuntimeError as exc:
        raise UsageError(f"{word}={text}: the home directory of the user is unknown") from exc


def page_size(word: str, text: str) -> int:
    """Parse the page size of the database; raise UsageError if SQLite does not support it."""
    size = parse_size(word, text, "8K")
    if not PAGE_BYTES_MIN <= size <= PAGE_BYTES_MAX or size & (size - 1):
        raise UsageError(
            f"{word}={text} is not a power of two between {PAGE_BYTES_MIN} and"
            f" {size_text(PAGE_BYTES_MAX)}"
        )
    return size


def page_cache(word: str, text: str) -> int:
    """Parse the size of SQLite's page cache; return pages, or KiB as a negative number."""
    if _INTEGER.fullmatch(text):
        return int(text)
    return -(parse_size(word, text) >> 10)


def cache_bytes(word: str, text: str) -> int:
    """Parse the size of the block cache; raise UsageError below CACHE_BYTES_MIN."""
    size = parse_size(word, text)
    if size < CACHE_BYTES_MIN:
        raise UsageError(f"{word}={text} is below the minimum, {CACHE_BYTES_MIN >> 20}M")
    return size


def mode_mask(word: str, text: str) -> int:
    """Parse permission bits in octal digits."""
    if not re.fullmatch(r"0*[0-7]{1,3}", text):
        raise UsageError(f"{word}={text} is not an octal mask such as 022")
    return int(text, 8) & MODE_BITS_MAX


def flag(value: object) -> Callable[[str, str], object]:
    """Return the parser of a flag; the parser ignores its arguments and returns *value*."""
    return lambda _word, _text: value


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a question that suggests the most similar known word, or "" if no word is similar."""
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=_LIKENESS)
    return f"; did you mean {near[0]!r}?" if near else ""
