"""The request counts of one filesystem on this host, stored by day in a small file.

Owns: the file ``requests.json`` in the state directory, its format and bounds, and when a mount
saves it. Does not know: prices, the causes of requests.
Keeps: the file is replaced atomically. Each process adds its counts since its last save, under a
flock(2) on the directory. A damaged file loses its counts, but causes no error. A file of a newer
version is not changed.
Tasks: ``RequestLog.run`` is one background task of a mount.
Design: docs/design/format.md, "Counted requests".
"""

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.errors import ThreadShortageError
from s3fs_meta.hashed_dir import can_lock, replace_durably
from s3fs_meta.limits import (
    REQUEST_DAYS_MAX,
    REQUEST_LOG_BYTES_MAX,
    REQUEST_NAMES_MAX,
    REQUESTS_LOCK_S_MAX,
    REQUESTS_SAVE_S,
)
from s3fs_meta.objects import billing
from s3fs_meta.objects.billing import DAY_NS, NOTHING, Billed, Meter, Usage
from s3fs_meta.sync.host_state.json_file import DAMAGED, NewerFileError, number, read_fields

_log = logging.getLogger(__name__)

VERSION: Final = 1
_NAME: Final = "requests.json"
# files that exist only in a state directory that was used before
_STATE: Final = ("meta.db", "superblock", _NAME)
_DIRECTORY: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
_EPOCH: Final = date(1970, 1, 1).toordinal()
_LOCK_POLL_S: Final = 0.01


class Ledger(NamedTuple):
    """The counts of requests from this host, as the file stores them."""

    since_ns: int  # time at which this host counted the first request
    usage: Usage
    stored_bytes: dict[int, int]  # by day: the size of all packs, as last measured by a mount


def read(state: Path) -> Ledger | None:
    """Return the counts in a state directory, or None if it has no valid file. The call blocks.

    Raises:
        NewerFileError: a newer version of the program wrote the file.
        OSError: the file cannot be read.
    """
    try:
        fields = read_fields(state / _NAME, VERSION, REQUEST_LOG_BYTES_MAX)
        return None if fields is None else _decode(fields)
    except DAMAGED as exc:
        _log.warning(
            "the request counts in %s are damaged; counting starts again from zero: %s", state, exc
        )
        return None


def add(state: Path, usage: Usage, stored_bytes: Mapping[int, int], now_ns: int) -> Ledger:
    """Add counts to the counts in a state directory; return the totals. The call blocks.

    Raises:
        NewerFileError, OSError: nothing was saved.
    """
    with _locked(state):
        ledger = read(state) or Ledger(now_ns, {}, {})
        # The stored time may be in the future if the clock was wrong when counting began.
        ledger = ledger._replace(since_ns=min(ledger.since_ns, now_ns))
        billing.merge(ledger.usage, usage)
        ledger.stored_bytes.update(stored_bytes)
        _forget_oldest(ledger)
        replace_durably(state / _NAME, _encode(ledger))
    return ledger


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    """Lock the directory of the file; raise BlockingIOError after REQUESTS_LOCK_S_MAX."""
    fd = os.open(state, _DIRECTORY)
    try:
        deadline_s = time.monotonic() + REQUESTS_LOCK_S_MAX
        while not can_lock(fd, state):
            if time.monotonic() >= deadline_s:
                raise BlockingIOError(
                    errno.EAGAIN, "another process locks the request counts", str(state)
                )
            time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(fd)


def _forget_oldest(ledger: Ledger) -> None:
    """Delete the counts of the oldest days beyond REQUEST_DAYS_MAX.

    The limit is a number of days, not an age. If the clock is wrong at one boot, for example
    because its battery is empty, the counts of other days must remain.
    """
    days: dict[int, Any]
    for days in (ledger.usage, ledger.stored_bytes):
        for day in sorted(days)[:-REQUEST_DAYS_MAX]:
            del days[day]


def _encode(ledger: Ledger) -> bytes:
    days = {
        date.fromordinal(_EPOCH + day).isoformat(): {
            "stored_bytes": ledger.stored_bytes.get(day),
            "requests": {
                f"{cause} {kind}": list(billed)
                for (cause, kind), billed in sorted(ledger.usage.get(day, {}).items())
            },
        }
        for day in sorted({*ledger.usage, *ledger.stored_bytes})
    }
    fields = {"version": VERSION, "since_ns": ledger.since_ns, "days": days}
    return json.dumps(fields, indent=1).encode("ascii")


def _decode(fields: dict[str, Any]) -> Ledger:
    ledger = Ledger(number(fields["since_ns"]), {}, {})
    if len(fields["days"]) > 2 * REQUEST_DAYS_MAX:
        raise ValueError(f"the file has counts for too many days: {len(fields['days'])}")
    for text, content in fields["days"].items():
        day = date.fromisoformat(text).toordinal() - _EPOCH
        if content["stored_bytes"] is not None:
            ledger.stored_bytes[day] = number(content["stored_bytes"])
        counts = list(content["requests"].items())[:REQUEST_NAMES_MAX]
        if counts:
            ledger.usage[day] = {_name(name): _billed(numbers) for name, numbers in counts}
    return ledger


def _name(text: str) -> tuple[str, str]:
    cause, kind = text.split(" ")
    return cause, kind


def _billed(numbers: Any) -> Billed:
    requests, sent_bytes, received_bytes = map(number, numbers)
    return Billed(requests, sent_bytes, received_bytes)


async def save(state: Path, meter: Meter, stored_bytes: int | None = None) -> Ledger | None:
    """Add the counts of a meter to the counts in a state directory; return the totals.

    A failure is logged, and the meter keeps its counts. If the directory contains no filesystem
    state, it stays unchanged, because a mistyped URL must not create state.
    """
    try:
        return await in_thread(_save, state, meter, stored_bytes)
    except (OSError, NewerFileError, ThreadShortageError) as exc:
        _log.warning("cannot save the request counts in %s: %s", state, exc)
        return None


def _save(state: Path, meter: Meter, stored_bytes: int | None) -> Ledger | None:
    """Save the counts of a meter. The call blocks, even if cancelled, so no counts are lost."""
    if not any((state / name).exists() for name in _STATE):
        return None
    taken = meter.take()
    if not taken:
        return read(state)
    now_ns = meter.now_ns()
    try:
        return add(
            state, taken, {} if stored_bytes is None else {now_ns // DAY_NS: stored_bytes}, now_ns
        )
    except BaseException:
        meter.add(taken)
        raise


class RequestLog:
    """The request counts of one mount and of earlier processes."""

    def __init__(self, state: Path, meter: Meter, stored_bytes: Callable[[], int]) -> None:
        """Start with the counts of *meter*; the first save adds the counts in the file.

        Args:
            state: the state directory of the filesystem.
            meter: counts the requests of the mount.
            stored_bytes: returns the size of all packs.
        """
        self.state = state
        self._meter = meter
        self._stored_bytes = stored_bytes
        self._saved: Ledger | None = None

    async def run(self) -> None:
        """Save the counts at regular intervals until cancelled."""
        while True:
            await self.save()
            await trio.sleep(REQUESTS_SAVE_S)

    async def save(self) -> None:
        """Save the counts of the mount; a failure is only logged, and the next call retries."""
        saved = await save(self.state, self._meter, self._stored_bytes())
        self._saved = saved or self._saved

    def today(self) -> dict[str, Billed]:
        """Return the requests of the current day (UTC) by class. Never yields to other tasks."""
        day = self._meter.today()
        usage: Usage = {}
        if self._saved is not None:
            billing.merge(usage, {day: self._saved.usage.get(day, {})})
        billing.merge(usage, {day: self._meter.seen().get(day, {})})
        found: dict[str, Billed] = {}
        for (_cause, kind), billed in usage[day].items():
            found[kind] = found.get(kind, NOTHING).plus(billed)
        return found
