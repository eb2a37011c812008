"""Limits of a transfer rate, fixed or by timetable, and their syntax in options.

Owns: the value, its parser, the rate at a local time. Does not know: clocks, waiting
(``objects.throttle``).
Source: rclone's option ``--bwlimit``, which has the same form of timetables.
"""

import re
import time
from dataclasses import dataclass
from typing import Final, NamedTuple

from typing_extensions import override

from s3fs_meta.errors import UsageError
from s3fs_meta.limits import RATE_BYTES_PER_S_MIN, RATE_SLOTS_MAX
from s3fs_meta.options.option_syntax import parse_size

UNLIMITED: Final = "off"
_STRICT: Final = "strict"
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY_CHARS: Final = 3  # length of an abbreviated weekday, such as "mon"
_MINUTES_PER_DAY: Final = 24 * 60
# Matches "08:00,512K" or "Mon-08:00=512K". A comma ends an option of -o, so -o needs "=" instead.
_SLOT: Final = re.compile(r"(?:([a-z]+)-)?(\d\d):(\d\d)[,=](\S+)", re.IGNORECASE)
_SEPARATORS: Final = re.compile(r"[\s;]+")
_EXAMPLE: Final = "08:00,512K 23:00,off"


class Slot(NamedTuple):
    """One entry of a timetable: the rate that applies from one minute of the week onwards."""

    minute: int  # minutes since Monday 00:00, local time
    bytes_per_s: int | None  # maximum rate; None means unlimited


@dataclass(frozen=True)
class RateLimit:
    """A limit of the transfer rate in one direction."""

    text: str  # the limit as the user typed it, with single spaces
    slots: tuple[Slot, ...]  # slots sorted by time; each slot lasts until the next slot starts
    strict: bool = False  # True if the limit also applies to transfers for which a program waits

    @override
    def __str__(self) -> str:
        """Return the limit in the syntax of the option."""
        return self.text

    def bytes_per_s(self, now: time.struct_time) -> int | None:
        """Return the maximum rate at a local time; None means unlimited."""
        minute = now.tm_wday * _MINUTES_PER_DAY + now.tm_hour * 60 + now.tm_min
        current = self.slots[-1]
        for slot in self.slots:
            if slot.minute > minute:
                break
            current = slot
        return current.bytes_per_s


def rate_limit(word: str, text: str) -> RateLimit:
    """Parse a limit: a rate, ``off`` or a timetable, optionally followed by ``strict``.

    Raises:
        UsageError: the text is not a limit.
    """
    parts = [part for part in _SEPARATORS.split(text.strip()) if part]
    rest = [part for part in parts if part.lower() != _STRICT]
    if not rest or len(parts) > RATE_SLOTS_MAX:
        raise _invalid(word, text)
    is_timetable = len(rest) > 1 or ":" in rest[0]
    weekly: dict[int, int | None] = {}
    daily: dict[int, int | None] = {}
    for part in rest if is_timetable else [f"00:00,{rest[0]}"]:
        day, minute, rate = _slot(word, text, part)
        for one in range(len(_DAYS)) if day is None else [day]:
            (daily if day is None else weekly)[one * _MINUTES_PER_DAY + minute] = rate
    slots = tuple(Slot(*one) for one in sorted({**daily, **weekly}.items()))
    shown = " ".join([*rest, _STRICT] if len(rest) < len(parts) else rest)
    return RateLimit(shown, slots, strict=len(rest) < len(parts))


def _slot(word: str, text: str, part: str) -> tuple[int | None, int, int | None]:
    """Return a timetable entry's weekday, minute of the day and rate."""
    match = _SLOT.fullmatch(part)
    if match is None:
        raise _invalid(word, text)
    day_name, hours, minutes, rate = match.groups()
    day = None if day_name is None else _day(day_name)
    minute = int(hours) * 60 + int(minutes)
    if day == -1 or minute >= _MINUTES_PER_DAY or int(minutes) >= 60:  # noqa: PLR2004 - an hour
        raise _invalid(word, text)
    return day, minute, _rate(word, text, rate)


def _day(name: str) -> int:
    """Return the number of a weekday by its name or first three letters; -1 if unknown."""
    given = name.lower()
    found = [n for n, day in enumerate(_DAYS) if given in {day, day[:_DAY_CHARS]}]
    return found[0] if found else -1


def _rate(word: str, text: str, rate: str) -> int | None:
    if rate.lower() in {UNLIMITED, "0"}:
        return None
    try:
        found = parse_size(word, rate)
    except UsageError as exc:
        raise _invalid(word, text) from exc
    if found < RATE_BYTES_PER_S_MIN:
        raise UsageError(
            f"{word}={text}: {rate} is below the minimum of {RATE_BYTES_PER_S_MIN >> 10}K bytes per"
            " second; for an unlimited rate use 'off'"
        )
    return found


def _invalid(word: str, text: str) -> UsageError:
    return UsageError(
        f"{word}={text} is not a rate; write for example {word}=512K (bytes per second), off, or"
        f' a timetable such as {word}="{_EXAMPLE}"; in -o write = instead of each comma'
    )
