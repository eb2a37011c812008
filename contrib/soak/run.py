"""One filesystem under test: its hosts, bucket and history, and the steps of each event."""

import errno
import json
import random
import shutil
import subprocess
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from contrib.soak.buckets import Bucket, LocalBucket, S3Bucket
from contrib.soak.commands import FindingError, Hand, Journal
from contrib.soak.history import History
from contrib.soak.hosts import CLOCK_LIBRARY, Host
from contrib.soak.states import Chooser, Observed, Operation, State
from tests.servers import versitygw_program

PASSPHRASE: Final = "a passphrase for the soak"
FOLLOWS: Final = "ro,follow,poll=0.3"
_SOURCE: Final = Path(__file__).with_name("wrong_clock.c")


class Run:
    """One filesystem, from mkfs to the last check."""

    def __init__(self, seed: int, folder: Path, journal: Journal) -> None:
        self.rnd = random.Random(seed)
        self.folder = folder
        self.journal = journal
        self.hand = Hand(journal)
        self.history = History()
        self.chooser = Chooser(random.Random(self.rnd.getrandbits(32)))
        self.encrypted = self.rnd.random() < 0.4
        self.retention_s = self.rnd.choice((5, 15, 40))
        on_s3 = self.rnd.random() < 0.5 and versitygw_program() is not None
        self.bucket: Bucket = S3Bucket(folder) if on_s3 else LocalBucket(folder)
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(folder / CLOCK_LIBRARY)]
        subprocess.run([*command, str(_SOURCE), "-ldl"], check=True)
        self.a, self.b, self.follower = (self._host(name) for name in ("a", "b", "follower"))
        self._colds = 0
        # True if the clock was wrong at any time, because then times do not identify txgs.
        self.clock_was_off = False
        self.writer = self.a
        interval = self.rnd.choice(("0.5", "1", "3"))
        images = self.rnd.choice(("4", "20"))
        self.options = (
            f"sync_interval={interval},commit=1,image_interval={images},cachesize=64M,"
            "read_timeout=15,write_timeout=15"
        )
        self.history.remote = self.rnd.random() < 0.25
        if self.history.remote:
            self.options += ",fsync=remote"
        journal.note(
            f"seed {seed}: {self.bucket.url}, encrypted {self.encrypted},"
            f" retention {self.retention_s} s, {self.options}"
        )

    def _host(self, name: str) -> Host:
        host = Host(name, self.folder, self.bucket, self.journal)
        if self.encrypted:
            host.environment["S3FS_META_PASSPHRASE"] = PASSPHRASE
        return host

    def make(self) -> None:
        """Create the filesystem and mount it."""
        plain = [] if self.encrypted else ["--plain"]
        retention = f"{self.retention_s}s"
        self.a.on_bucket("mkfs", "--block-size", "64K", "--retention", retention, *plain)
        self.a.mount(self.options)

    @property
    def follows(self) -> str:
        """Return the options of a follower, including options that it needs after its promotion."""
        return f"{FOLLOWS},{self.options}"

    @property
    def other(self) -> Host:
        """Return the second host, which is not the writer."""
        return self.b if self.writer is self.a else self.a

    def cold(self) -> Host:
        """Return a new host, which has no local state."""
        self._colds += 1
        return self._host(f"cold-{self._colds}")

    def discard(self, host: Host) -> None:
        """Remove the folder of a host with all its local state."""
        shutil.rmtree(host.folder)

    # --- use of the mounted filesystem -----------------------------------------------------------

    def operate(self, count: int, *, new: bool = False) -> None:
        """Perform operations on the writer, each of which must succeed.

        Raises: FindingError: an operation is refused.
        """
        for _ in range(count):
            operation = self.chooser.choose(self.history.now, new=new)
            self.history.begin(operation)
            code = self.hand.do(self.writer.mnt, operation)
            if code:
                raise FindingError(f"the operation {operation} failed with {errno.errorcode[code]}")
            self.history.ended(operation)

    def operate_somewhat(self, most: int = 12) -> None:
        """Perform a random number of operations on the writer."""
        self.operate(self.rnd.randrange(1, most + 1))

    def begin_operation(self) -> Operation:
        """Send an operation to the writer without waiting for the result."""
        operation = self.chooser.choose(self.history.now)
        self.history.begin(operation)
        self.journal.note(f"  {operation} …")
        self.hand.start(("do", str(self.writer.mnt), operation))
        return operation

    def end_operation(self, operation: Operation) -> bool:
        """Wait for the result of an operation; return whether it was acknowledged."""
        kind, result = self.hand.answer()
        self.journal.note(f"  … {kind} {result}")
        if kind == "done":
            self.history.ended(operation)
        return kind == "done"

    def flush(self, *words: str, expected: Collection[int] | None = (0,)) -> int | None:
        """Flush all changes to the bucket; return the txg, or None if the flush failed."""
        done = self.writer.run("flush", "--json", *words, self.writer.mnt, expected=expected)
        if done.status != 0:
            return None
        shipped = json.loads(done.out)["txg"]
        if shipped is None:  # None if there were no changes to ship.
            txg = int(self.writer.status()["chain"]["txg"])
            self.history.points.setdefault(txg, self.history.last)
        else:
            txg = int(shipped)
            self.history.points[txg] = self.history.last
        self.history.reached_bucket()
        return txg

    def observe(self, host: Host) -> Observed:
        """Return the tree that a host's mount shows."""
        observed = self.hand.see(host.mnt)
        self.journal.note(f"{host.name}: saw {len(observed.entries)} entries")
        return observed

    def check(self) -> None:
        """Compare every byte on the writer with the model."""
        self.history.require_now(self.observe(self.writer), f"the writer {self.writer.name}")

    # --- mounts of the filesystem ----------------------------------------------------------------

    def mount(self, host: Host, *words: str) -> None:
        """Mount a host for writing, which makes it the writer."""
        host.mount(self.options, *words)
        self.writer = host

    def umount(self) -> None:
        """Unmount the writer, after which the bucket contains all changes."""
        self.writer.umount()
        self.history.reached_bucket()

    def recover(self, what: str, low: int) -> None:
        """After a kill or takeover, compare the tree with the allowed states; adopt the match."""
        observed = self.observe(self.writer)
        number = self.history.require(observed, what, low, self.history.last)
        lost = self.history.last - number
        self.journal.note(f"{what}: state {number} of {low} to {self.history.last}, {lost} undone")
        self.history.adopt(number, observed)
        self.history.local_floor = self.history.last

    def shipped_floor(self, figures: dict[str, Any], asked_s: float) -> int:
        """Return the newest state that must be in the bucket according to the writer's status."""
        if self.writer.clock_off:
            return self.history.bucket_floor
        age_s = figures["chain"]["unshipped_age_s"] + figures["kernel"]["age_s"]
        return self.history.floor_before(asked_s - age_s - 0.1)

    def follow(self, host: Host) -> None:
        """Mount a host as a follower, and require that it shows all shipped changes."""
        if not host.pid:
            host.mount(self.follows)
        txg = self.flush()
        assert txg is not None
        host.wait_for(txg)
        self.history.require_now(self.observe(host), f"the follower {host.name}")

    def require_kept(
        self, host: Host, before: set[str], branch: History, low: int, base: State
    ) -> None:
        """Require that a host has quarantined its unshipped changes, if it had any.

        If it quarantined nothing, a state from *low* on must equal *base*.

        Raises: FindingError: the host has quarantined no state, or a different state.
        """
        kept = sorted(set(host.kept()) - before)
        if not kept:
            states = [step.state for step in branch.steps[low:] if not step.dead]
            if all(state.view() != base.view() for state in states):
                raise FindingError(
                    f"the host {host.name} had unshipped changes, but did not quarantine them"
                )
            return
        target = host.folder / "rescued"
        words = ("--everything", "--kept", kept[-1], "--to", str(target))
        host.on_bucket("recover-state", *words)
        observed = self.hand.see(target)
        branch.require(observed, f"quarantined state of {host.name}", low, branch.last)
        shutil.rmtree(target)
        for name in kept:
            for path in host.cachedir.glob(f"*/{name}"):
                shutil.rmtree(path)

    # --- reads of past states --------------------------------------------------------------------

    def txgs(self, host: Host) -> list[dict[str, Any]]:
        """Return the newest txgs that s3fs-meta log lists."""
        return list(json.loads(host.on_bucket("log", "--json", "-n", "40").out)["txgs"])

    def is_retained(self, txg: dict[str, Any]) -> bool:
        """Return whether a txg is within the retention and reachable."""
        age_s = time.time() - txg["created_ns"] / 1e9
        return age_s < self.retention_s and not self.history.in_hole(txg["txg"])

    # --- checks at the end -----------------------------------------------------------------------

    def judge_at_end(self) -> None:
        """Unmount all hosts. A new machine must read all content, and fsck must find no damage."""
        self.journal.note("the end of this filesystem")
        if self.follower.pid:
            self.follower.umount()
        self.check()
        self.umount()
        cold = self.cold()
        cold.on_bucket("fsck", "-n", "--deep")
        cold.mount("ro")
        self.history.require_now(self.observe(cold), "a new machine")
        cold.umount()
        self.writer.on_bucket("fsck", "-n", "--deep")

    def check_logs(self) -> None:
        """Require that no daemon has logged a traceback.

        Raises:
            FindingError: a log contains a traceback.
        """
        for host in (self.a, self.b, self.follower):
            log = host.log()
            if "Traceback (most recent call last)" in log:
                raise FindingError(f"the log of {host.name} contains a traceback:\n{log[-6000:]}")

    def close(self) -> None:
        """Stop all processes that the run started."""
        self.hand.end()
        self.bucket.close()
