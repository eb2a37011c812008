"""How the values of mount options are written: sizes, times, masks, words.

Owns: the syntax, and the question after a misspelt word. Does not know: which option takes what.
Each parser takes the option's word, for its message, and the text after ``=``; each raises
UsageError for a text that it does not take.
"""

import difflib
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from s3fs_meta.errors import UsageError
from s3fs_meta.limits import CACHE_BYTES_MIN, PAGE_BYTES_MAX, PAGE_BYTES_MIN

INTERVAL_S_MAX: Final = 7 * 86_400.0
MODE_BITS_MAX: Final = 0o777

_LIKENESS: Final = 0.7  # "comit" is meant for "commit", "remount" is not for "read_timeout"

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_SIZE_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DURATION_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_size(word: str, text: str, example: str = "512M") -> int:
    """Return bytes; ``K``, ``M``, ``G`` and ``T`` are powers of 1024.

    Args:
        word: the option.
        text: what it was given.
        example: a sensible value, for the refusal.

    Raises:
        UsageError: not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{word}={text} is not a size; write for example {word}={example}")
    return int(float(match[1]) * _SIZE_UNITS[match[2].upper()])


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


def integer(minimum: int, maximum: int) -> Callable[[str, str], int]:
    """Return a parser of whole numbers in a closed range."""

    def parse(word: str, text: str) -> int:
        if not re.fullmatch(r"-?\d+", text) or not minimum <= int(text) <= maximum:
            raise UsageError(f"{word}={text} is not a number from {minimum} to {maximum}")
        return int(text)

    return parse


def one_of(*words: str) -> Callable[[str, str], str]:
    """Return a parser that takes only *words*, in any case."""

    def parse(word: str, text: str) -> str:
        if text.lower() not in words:
            raise UsageError(f"{word}={text} is none of {', '.join(words)}{nearest(text, words)}")
        return text.lower()

    return parse


def text_value(word: str, text: str) -> str:
    """Return any text but the empty one."""
    if not text:
        raise UsageError(f"{word} needs a value")
    return text


def path_value(word: str, text: str) -> Path:
    """Return a path; ``~`` is the home directory."""
    return Path(text_value(word, text)).expanduser()


def page_size(word: str, text: str) -> int:
    """Return a page size that SQLite knows."""
    size = parse_size(word, text, "8K")
    if not PAGE_BYTES_MIN <= size <= PAGE_BYTES_MAX or size & (size - 1):
        raise UsageError(
            f"{word}={text} is no power of two from {PAGE_BYTES_MIN} to {PAGE_BYTES_MAX}"
        )
    return size


def page_cache(word: str, text: str) -> int:
    """Return SQLite's notation: pages, or minus KiB."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return -(parse_size(word, text) >> 10)


def cache_bytes(word: str, text: str) -> int:
    """Return a size that is enough for the block cache."""
    size = parse_size(word, text)
    if size < CACHE_BYTES_MIN:
        raise UsageError(f"{word}={text} is below the least, {CACHE_BYTES_MIN >> 20}M")
    return size


def mode_mask(word: str, text: str) -> int:
    """Return permission bits from octal digits."""
    if not re.fullmatch(r"0*[0-7]{1,3}", text):
        raise UsageError(f"{word}={text} is not an octal mask such as 022")
    return int(text, 8) & MODE_BITS_MAX


def flag(value: object) -> Callable[[str, str], object]:
    """Return the parser of a bare word, which stands for *value*."""
    return lambda _word, _text: value


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a question that names the word that was probably meant, or nothing."""
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=_LIKENESS)
    return f"; did you mean {near[0]!r}?" if near else ""
