"""Events of hosts and their store: unmounts, failovers, kills, outages, wrong clocks."""

import errno
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from contrib.soak.commands import FindingError
from contrib.soak.hand import HELD
from contrib.soak.history import COMMIT_S_MAX, History
from contrib.soak.hosts import Host
from contrib.soak.run import Run
from contrib.soak.states import State

HOUR_S: Final = 3600.0
YEAR_S: Final = 365 * 24 * HOUR_S
_REFUSED: Final = frozenset({errno.EROFS, errno.EIO})


# --- commands of users ---------------------------------------------------------------------------


def use(run: Run) -> None:
    """Perform a random number of random operations on the filesystem."""
    run.operate_somewhat(30)
    if run.rnd.random() < 0.5:
        time.sleep(run.rnd.random() * 2)
    run.check()


def flush(run: Run) -> None:
    """Flush all changes to the bucket."""
    run.operate_somewhat()
    run.flush(*(["--image"] if run.rnd.random() < 0.3 else []))


def use_while_busy(run: Run) -> None:
    """Let programs write during a flush, an image upload or a reclaim."""
    run.operate_somewhat()
    first = run.history.last
    words = run.rnd.choice((("flush",), ("flush", "--image"), ("reclaim",)))
    with ThreadPoolExecutor(1) as other:
        busy = other.submit(run.writer.run, *words, run.writer.mnt)
        run.operate(20)
        while not busy.done():
            run.operate(1)
            time.sleep(0.1)
        busy.result()
    if words[0] == "flush":
        run.history.bucket_floor = max(run.history.bucket_floor, first)
    run.check()


def hold_open(run: Run) -> None:
    """Append lines to an open file; a line older than the commit interval must survive a kill."""
    name = f"{HELD}{run.rnd.getrandbits(32):x}"
    run.hand.ask("hold", f"{run.writer.mnt}/{name}")
    lines: list[tuple[float, bytes]] = []
    for number in range(run.rnd.randrange(5, 40)):
        line = b"%d %d\n" % (number, run.rnd.getrandbits(64))
        run.hand.ask("line", line)
        lines.append((time.monotonic(), line))
        time.sleep(run.rnd.random() / 5)
    killed = run.rnd.random() < 0.5
    asked_s = time.monotonic()
    if killed:
        sure_s = asked_s - run.writer.status()["kernel"]["age_s"] - COMMIT_S_MAX
        low = max(run.history.local_floor, run.history.floor_before(sure_s))
        run.writer.kill()
        run.hand.ask("release")
        run.mount(run.writer)
        run.recover("after a kill, with a file open", low)
        found = run.hand.ask("content", f"{run.writer.mnt}/{name}")
    else:
        sure_s = asked_s
        run.flush()
        cold = run.cold()
        cold.mount("ro")
        found = run.hand.ask("content", f"{cold.mnt}/{name}")
        cold.umount()
        run.discard(cold)
        run.hand.ask("release")
    run.hand.ask("unlink", f"{run.writer.mnt}/{name}")
    sure = b"".join(line for at_s, line in lines if at_s <= sure_s)
    all_of_it = b"".join(line for _, line in lines)
    count = f"{len(found)} of {len(all_of_it)} bytes, at least {len(sure)} required"
    run.journal.note(f"the file that was held open has {count}")
    if not found.startswith(sure) or not all_of_it.startswith(found):
        raise FindingError(
            f"the open file {name} has wrong content: {found!r} does not begin with {sure!r},"
            " or has bytes that were not written"
        )


def reclaim(run: Run) -> None:
    """Make an image, compact packs, and delete objects that retention no longer keeps."""
    for _ in range(run.rnd.randrange(1, 4)):
        run.operate_somewhat()
        run.flush("--image")
        time.sleep(run.rnd.random() * 2)
    run.writer.run("reclaim", run.writer.mnt)
    run.check()


def check(run: Run) -> None:
    """Run fsck while the filesystem is mounted, or after unmounting it."""
    run.operate_somewhat()
    if run.rnd.random() < 0.5:
        run.flush()
        run.writer.on_bucket("fsck", "-n")
        return
    run.umount()
    deep = ["--deep"] if run.rnd.random() < 0.5 else []
    host = run.rnd.choice((run.writer, run.cold()))
    host.on_bucket("fsck", "-n", *deep)
    run.mount(run.writer)
    run.check()


# --- unmounts, kills, takeovers ------------------------------------------------------------------


def remount(run: Run) -> None:
    """Unmount, then mount again on the same host, with or without its local state."""
    run.operate_somewhat()
    run.umount()
    if run.rnd.random() < 0.3:
        run.writer.forget()
    run.mount(run.writer)
    run.check()


def hand_over(run: Run) -> None:
    """Unmount the writer, and make the other host the writer."""
    run.operate_somewhat()
    run.umount()
    if run.rnd.random() < 0.2:
        run.other.forget()
    run.mount(run.other)
    run.check()


def kill(run: Run) -> None:
    """Kill the daemon, perhaps in the middle of an operation. The next mount recovers."""
    run.operate_somewhat()
    if run.rnd.random() < 0.3:
        time.sleep(run.rnd.random() * 3)
    operation = run.begin_operation() if run.rnd.random() < 0.5 else None
    if operation is not None:
        time.sleep(run.rnd.random() * 0.03)
    killed_s = time.monotonic()
    run.writer.kill()
    if operation is not None:
        run.end_operation(operation)
    low = max(run.history.local_floor, run.history.floor_before(killed_s - COMMIT_S_MAX))
    run.mount(run.writer)
    run.recover("after a kill", low)


def stand_still(run: Run) -> None:
    """Stop the daemon with SIGSTOP; let it continue after a while."""
    run.operate_somewhat()
    run.writer.stop()
    operation = run.begin_operation()
    time.sleep(run.rnd.random() * 6)
    run.writer.go_on()
    if not run.end_operation(operation):
        raise FindingError(
            f"the operation {operation} failed while the daemon was suspended or after it continued"
        )
    run.check()


def take_over(run: Run) -> None:
    """Take over on the other host while the writer is running, stopped or killed."""
    old, new = run.writer, run.other
    run.operate_somewhat()
    way = run.rnd.choice(("alive", "stopped", "killed"))
    asked_s = time.monotonic()
    low = run.shipped_floor(old.status(), asked_s)
    if way == "killed":
        run.operate_somewhat(3)
        asked_s = time.monotonic()
        old.kill()
    branch = run.history.fork()
    branch_low = branch.last
    if way == "killed":
        branch_low = max(branch.local_floor, branch.floor_before(asked_s - COMMIT_S_MAX))
    if way == "stopped":
        old.stop()
    if run.rnd.random() < 0.4:
        new.mount(run.follows)
        new.run("promote", "--takeover", new.mnt)
        run.writer = new
    else:
        run.mount(new, "--takeover")
    run.recover(f"takeover from a host that is {way}", low)
    taken = run.history.now
    if way == "stopped":
        old.go_on()
    run.operate_somewhat()
    if way != "killed":
        branch_low = _write_on(run, old, branch, taken)
    run.flush()
    run.check()
    _require_quarantined(run, old, branch, branch_low, taken)


def _write_on(run: Run, old: Host, branch: History, taken: State) -> int:
    """Write on a fenced host until the mount refuses a change. Unmount; return the last state."""
    low = branch.last
    for _ in range(run.rnd.randrange(5)):
        operation = run.chooser.choose(branch.now, new=True)
        branch.begin(operation)
        code = run.hand.do(old.mnt, operation)
        if code in _REFUSED:
            break
        if code:
            raise FindingError(
                f"operation {operation} on the fenced host {old.name} failed: {errno.errorcode[code]}"
            )
        branch.ended(operation)
        low = branch.last
    unshipped = branch.steps[low].state.view() != taken.view()
    flushed = old.run("flush", old.mnt, expected=None)
    if flushed.status == 0 and unshipped:
        raise FindingError(
            f"the fenced host {old.name} has unshipped changes, but its flush reports success"
        )
    done = old.end()
    if done.status == 0 and unshipped:
        raise FindingError(f"the unmount of the fenced host {old.name} reports no lost changes")
    return low


def _require_quarantined(run: Run, old: Host, branch: History, low: int, taken: State) -> None:
    """Require that the fenced host quarantined its unshipped changes."""
    before = set(old.kept())
    run.follow(old)
    old.umount()
    run.require_kept(old, before, branch, low, taken)


# --- followers -----------------------------------------------------------------------------------


def follow(run: Run) -> None:
    """Require that a follower shows all changes that the writer has flushed."""
    run.operate_somewhat()
    run.follow(run.follower)
    if run.rnd.random() < 0.2:
        run.follower.umount()


def promote(run: Run) -> None:
    """Promote a follower after the writer has unmounted."""
    new = run.other
    run.follow(new)
    run.operate_somewhat()
    run.umount()
    new.run("promote", new.mnt)
    run.writer = new
    run.check()


# --- outages and clocks --------------------------------------------------------------------------


def outage(run: Run) -> None:
    """Write during an outage of the store; only a kill in the outage may lose the last changes."""
    run.operate_somewhat()
    run.check()  # Read all content into the host's cache.
    run.bucket.go_away(run.rnd.randrange(2))
    run.journal.note("the store is unreachable")
    killed_s = 0.0
    run.chooser.syncs = not run.history.remote  # With fsync=remote, fsync fails during the outage.
    try:
        run.operate(run.rnd.randrange(10))
        if run.rnd.random() < 0.3:
            _mount_offline(run)
        time.sleep(run.rnd.random() * 5)
        run.check()
        if run.rnd.random() < 0.3:
            killed_s = time.monotonic()
            run.writer.kill()
    finally:
        run.bucket.come_back()
        run.chooser.syncs = True
        run.journal.note("the store is reachable again")
    if not run.writer.pid:
        low = max(run.history.local_floor, run.history.floor_before(killed_s - COMMIT_S_MAX))
        run.mount(run.writer)
        run.recover("after a kill in an outage", low)
    run.flush()
    run.check()


def _mount_offline(run: Run) -> None:
    """Mount read-only on the other host during an outage, and check the names that it shows."""
    done = run.other.mount("ro", expected=(0, 2, 3, 9))  # 2: the bucket's directory is missing
    if done.status == 0:
        names = run.hand.ask("names", str(run.other.mnt))
        steps = [step for step in run.history.steps if not step.dead]
        if not any(names == step.state.names.keys() for step in steps):
            raise FindingError(
                f"the offline mount of {run.other.name} shows the names of no earlier state: {names}"
            )
        run.other.umount()


def turn_clock(run: Run) -> None:
    """Set the writer's clock wrong and later right. Require that no history is lost."""
    run.operate_somewhat()
    run.flush()
    offset_s = run.rnd.choice((-10 * YEAR_S, -HOUR_S, HOUR_S, 10 * YEAR_S))
    host = run.writer
    # S3 refuses requests whose time differs too much from its own.
    expected = (0,) if run.bucket.url.startswith("local:") else None
    run.clock_was_off = True
    run.chooser.syncs = expected is not None or not run.history.remote
    host.set_clock(offset_s)
    try:
        for _ in range(run.rnd.randrange(1, 4) if expected else 1):
            run.operate_somewhat()
            run.flush("--image", expected=expected)
        if expected and run.rnd.random() < 0.5:
            run.umount()
            run.mount(host)
        run.check()
    finally:
        host.set_clock(0)
        run.chooser.syncs = True
    run.operate_somewhat()
    run.flush()
    run.check()
