"""Events that use past points in time: mounts, restores and rollbacks."""

import shutil
from typing import Any

from contrib.soak.commands import FindingError
from contrib.soak.run import Run
from contrib.soak.states import Observed

_REFUSED = (0, 3, 12)


def _known(run: Run) -> list[dict[str, Any]]:
    """Return the newest txgs whose changelogs are readable."""
    found = [txg for txg in run.txgs(run.writer) if "created_ns" in txg and txg.get("kind")]
    if not found:
        raise FindingError("s3fs-meta log lists no txg with a readable changelog")
    return found


def _one_of(run: Run, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Choose a random txg, which in most cases is within the retention."""
    retained = [txg for txg in found if run.is_retained(txg)]
    return run.rnd.choice(retained if retained and run.rnd.random() < 0.7 else found)


def _require_then(run: Run, txg: dict[str, Any], observed: Observed, what: str) -> None:
    """Require that a tree matches the recorded state of a txg."""
    low, high = run.history.range_of(txg["txg"])
    run.history.require_past(observed, f"{what} of txg {txg['txg']}", low, high)


def mount_past_txgs(run: Run) -> None:
    """Mount a past point in time; compare its tree with the recorded state."""
    run.operate_somewhat()
    run.flush()
    found = _known(run)
    txg = _one_of(run, found)
    cold = run.cold()
    when = f"txg={txg['txg']}"
    if run.rnd.random() < 0.3 and not run.clock_was_off:
        # The printed time is rounded up to whole milliseconds, so it may select a later txg.
        when = txg["time"]
        txg = max(
            (one for one in found if one["created_ns"] < txg["created_ns"] + 10**6),
            key=lambda one: (one["time"] == when, one["txg"]),
        )
    retained = run.is_retained(txg)
    done = cold.mount(f"ro,at={when}", expected=_REFUSED)
    if done.status:
        if retained and run.is_retained(txg):
            raise FindingError(
                f"the mount of the retained point in time {when} was refused: {done.err}"
            )
    else:
        observed = run.observe(cold)
        if not observed.failed or run.is_retained(txg):
            _require_then(run, txg, observed, f"mount at={when}")
        cold.umount()
    run.discard(cold)


def restore(run: Run) -> None:
    """Copy files out of the current state or a past point in time."""
    run.operate_somewhat()
    run.flush()
    txg = _one_of(run, _known(run))
    newest = run.rnd.random() < 0.3
    cold = run.cold()
    target = cold.folder / "restored"
    when = "newest" if newest else f"txg={txg['txg']}"
    expected = (0,) if newest and not run.history.tainted else _REFUSED
    done = cold.on_bucket("restore", "--at", when, "--to", str(target), expected=expected)
    if done.status == 0:
        observed = run.hand.see(target)
        if newest:
            run.history.require_now(observed, "restore of the present")
        else:
            _require_then(run, txg, observed, "restore")
    elif run.is_retained(txg) and not run.history.past_tainted:
        raise FindingError(f"the restore of the retained point in time {when} failed: {done.err}")
    shutil.rmtree(target, ignore_errors=True)
    run.discard(cold)


def roll_back(run: Run) -> None:
    """Roll the filesystem back to a past point in time."""
    run.operate_somewhat()
    run.umount()
    found = _known(run)[1:]  # Skip the first txg in the list, which is the current txg.
    if not found:
        run.mount(run.writer)
        return
    txg = _one_of(run, found)
    host = run.rnd.choice((run.a, run.b))
    words = ("--yes", "--at", f"txg={txg['txg']}")
    done = host.on_bucket("rollback", *words, expected=_REFUSED)
    if done.status and run.is_retained(txg) and not run.history.past_tainted:
        raise FindingError(f"the rollback to the retained txg {txg['txg']} failed")
    run.mount(host)
    if done.status:
        run.check()
        return
    observed = run.observe(host)
    if observed.failed:
        raise FindingError(f"files cannot be read after a rollback to {txg}: {observed.failed}")
    _require_then(run, txg, observed, "rollback")
    run.history.go_on_from(observed)
    run.flush()
