"""The program of ``make soak``: random events on one filesystem after another, until one fails."""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from contrib.soak import damage_events, events, namespace, past_events
from contrib.soak.commands import FindingError, Journal
from contrib.soak.run import Run

EVENTS: Final[dict[Callable[[Run], None], int]] = {
    events.use: 10,
    events.use_while_busy: 6,
    events.hold_open: 5,
    events.flush: 6,
    events.reclaim: 5,
    events.check: 4,
    events.remount: 4,
    events.hand_over: 5,
    events.kill: 8,
    events.stand_still: 3,
    events.take_over: 8,
    events.follow: 6,
    events.promote: 4,
    events.outage: 5,
    events.turn_clock: 3,
    past_events.mount_past_txgs: 8,
    past_events.restore: 4,
    past_events.roll_back: 3,
    damage_events.damage: 14,
}
ROUND_S: Final = 600.0
LEFT_S_MAX: Final = 30.0
_FOUND: Final = 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m contrib.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="default: drawn at random")
    parser.add_argument("--folder", type=Path, help="working directory; default: TMPDIR")
    parser.add_argument("--only", default="", help="events to choose from, separated by commas")
    parser.add_argument("--quiet", action="store_true", help="print no events")
    return parser.parse_args()


def main() -> int:
    """Run the soak in new process and mount namespaces; return the exit status."""
    arguments = _arguments()
    if os.geteuid() != 0:
        print("soak: root is needed to create namespaces", file=sys.stderr)
        return 2
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
    folder = Path(tempfile.mkdtemp(prefix="s3fs-meta-soak-", dir=arguments.folder))
    print(f"soak: seed {seed}, {arguments.minutes:g} minutes, in {folder}", flush=True)
    status = namespace.run_inside(lambda: _soak(arguments, seed, folder), folder)
    if status != _FOUND:
        shutil.rmtree(folder)
    return status


def _soak(arguments: argparse.Namespace, seed: int, folder: Path) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    deadline_s = time.monotonic() + 60 * arguments.minutes
    rounds = 0
    while time.monotonic() < deadline_s:
        one = seed + rounds
        rounds += 1
        home = folder / f"seed-{one}"
        home.mkdir()
        journal = Journal(home / "journal", loud=not arguments.quiet)
        try:
            _round(one, home, journal, deadline_s, _chosen(arguments.only))
        except KeyboardInterrupt:
            print(f"soak: interrupted; seed {seed}", flush=True)
            return 130
        except Exception as exc:  # noqa: BLE001 - every exception is a finding
            _report(exc, one, home, journal, arguments)
            return _FOUND
        shutil.rmtree(home)
    print(f"soak: {rounds} filesystems, nothing found; seed {seed}", flush=True)
    return 0


def _chosen(only: str) -> dict[Callable[[Run], None], int]:
    names = set(filter(None, only.split(",")))
    unknown = names - {event.__name__ for event in EVENTS}
    if unknown:
        raise SystemExit(f"soak: no such events: {sorted(unknown)}")
    return {event: n for event, n in EVENTS.items() if not names or event.__name__ in names}


def _round(
    seed: int,
    home: Path,
    journal: Journal,
    deadline_s: float,
    chosen: dict[Callable[[Run], None], int],
) -> None:
    """Trigger random events on one filesystem for at most ROUND_S seconds."""
    deadline_s = min(deadline_s, time.monotonic() + ROUND_S)
    run = Run(seed, home, journal)
    try:
        run.make()
        while time.monotonic() < deadline_s:
            [event] = run.rnd.choices([*chosen], [*chosen.values()])
            journal.step += 1
            journal.note(f"=== {event.__name__}")
            event(run)
            run.check_logs()
        run.judge_at_end()
        run.check_logs()
        run.close()
        _require_nothing_left(home)
    finally:
        run.close()


def _require_nothing_left(home: Path) -> None:
    """Require that the run has left no process and no mount.

    Raises: FindingError: a process or mount still exists.
    """
    deadline_s = time.monotonic() + LEFT_S_MAX
    while left := namespace.others():
        if time.monotonic() > deadline_s:
            raise FindingError(f"the soak test left these processes running: {left}")
        time.sleep(0.1)
    mounts = namespace.mountpoints(home)
    if mounts:
        raise FindingError(f"the soak test left these filesystems mounted: {mounts}")


def _report(
    exc: BaseException, seed: int, home: Path, journal: Journal, arguments: argparse.Namespace
) -> None:
    text = str(exc) if isinstance(exc, FindingError) else traceback.format_exc()
    if exc.__context__ is not None and isinstance(exc, FindingError):
        text += "\n" + "".join(traceback.format_exception(exc))[-4000:]
    journal.note(f"FINDING in step {journal.step}")
    (home / "finding").write_text(text)
    print((home / "journal").read_text()[-6000:])
    print(f"soak: FINDING, seed {seed}, step {journal.step}:\n{text}")
    print(f"soak: the files of the run are in {home}; the journal of events is {home}/journal")
    command = command_of_repetition(seed, arguments.minutes, arguments.only)
    print(f"soak: repeat this run with: {command}", flush=True)


def command_of_repetition(seed: int, minutes: float, only: str) -> str:
    """Return the command that repeats a run. The chosen events also depend on *only*."""
    command = f"make soak SOAK_SEED={seed} SOAK_MINUTES={minutes:g}"
    return f"{command} ARGS=--only={only}" if only else command


if __name__ == "__main__":
    sys.exit(main())
