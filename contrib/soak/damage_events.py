"""Events that damage one object in the bucket, which fsck then repairs."""

import re
import time
from dataclasses import dataclass
from typing import Final

from contrib.soak.commands import FindingError
from contrib.soak.history import trimmed
from contrib.soak.hosts import Host
from contrib.soak.run import PASSPHRASE, Run
from contrib.soak.states import BLOCK_BYTES, Observed, State
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import CorruptionError
from s3fs_meta.model import ObjectKey

_KINDS: Final = {
    "superblock": r"superblock(-copy)?",
    "lease": r"lease",
    "changelog": r"changelog/\d+",
    "part": r"changelog-part/.*",
    "level": r"level/.*",
    "manifest": r"image/[^/]+/manifest",
    "piece": r"image/[^/]+/\d+",
    "pack": r"pack/.*",
}
_REPAIRED: Final = (0, 1)


@dataclass
class Damage:
    """One damaged object: its kind, its key, the damage, and its original content."""

    kind: str
    key: str
    how: str
    original: bytes


def _choose(run: Run) -> Damage:
    keys = run.bucket.keys()
    by_kind = {
        kind: [key for key in keys if re.fullmatch(pattern, key)]
        for kind, pattern in _KINDS.items()
    }
    kind = run.rnd.choice([kind for kind, found in by_kind.items() if found])
    found = by_kind[kind]
    # Damage newer objects more often, because the current state needs them.
    key = run.rnd.choice(found[-3:] if run.rnd.random() < 0.5 else found)
    ways = ["missing", "empty", "truncated", "bit"]
    if len(found) > 1 and kind not in {"superblock", "lease"}:
        ways.append("another")
    return Damage(kind, key, run.rnd.choice(ways), run.bucket.get(key))


def _do(run: Run, damage: Damage) -> None:
    run.journal.note(f"damage: {damage.key} is {damage.how}")
    data = damage.original
    if damage.how == "missing":
        run.bucket.delete(damage.key)
        return
    if damage.how == "empty":
        data = b""
    elif damage.how == "truncated":
        data = data[: run.rnd.randrange(len(data))]
    elif damage.how == "bit":
        at = run.rnd.randrange(len(data))
        data = data[:at] + bytes([data[at] ^ 1 << run.rnd.randrange(8)]) + data[at + 1 :]
    else:
        others = [
            key
            for key in run.bucket.keys()  # noqa: SIM118 - not a mapping
            if re.fullmatch(_KINDS[damage.kind], key) and key != damage.key
        ]
        data = run.bucket.get(run.rnd.choice(others))
    run.bucket.put(damage.key, data)


def _keyring(run: Run) -> Keyring:
    """Return the encryption keys of the filesystem; the superblock must be intact."""
    superblock = superblock_codec.decode(superblock_codec.KEY, run.bucket.get(superblock_codec.KEY))
    if run.encrypted:
        return superblock_codec.unlock(superblock, PASSPHRASE.encode())
    return superblock_codec.unlock_plain(superblock)


def _note_tainted(run: Run, damage: Damage) -> None:
    """Record the content and the points in time that the damage may have destroyed."""
    if damage.kind == "pack":
        key = ObjectKey(damage.key)
        try:
            opened = pack_codec.open_pack(_keyring(run), key, damage.original)
            blocks = {trimmed(data) for _, data in opened}
        except CorruptionError:
            return  # The pack was damaged before, and its blocks are recorded.
        run.history.tainted |= blocks
        run.history.past_tainted |= blocks
    elif damage.kind not in {"superblock", "lease"}:
        run.history.holes.append((0, max(run.history.points, default=0) + 50))


def damage(run: Run) -> None:
    """Damage an object; fsck on one host repairs the bucket, and every host continues."""
    if run.follower.pid:
        run.follower.umount()
    run.operate_somewhat()
    run.flush(*(["--image"] if run.rnd.random() < 0.3 else []))
    run.check()  # Read all content into the cache of the host.
    chosen = _choose(run)
    _note_tainted(run, chosen)
    way = run.rnd.choice((_while_mounted, _while_unmounted, _by_another_host))
    if chosen.kind in {"manifest", "piece"} and _images(run) < 2:
        # Without an intact image, only a host with local state has all names.
        way = _while_unmounted
    run.journal.note(f"damage: {way.__name__}")
    way(run, chosen)
    run.history.tainted.clear()
    run.operate_somewhat()
    txg = run.flush()
    if run.history.holes:
        assert txg is not None
        first, _ = run.history.holes[-1]
        run.history.holes[-1] = (first, txg)
    run.check()
    _judge_cold(run)


def _images(run: Run) -> int:
    return sum(1 for key in run.bucket.keys() if key.endswith("/manifest"))  # noqa: SIM118


def _while_mounted(run: Run, chosen: Damage) -> None:
    _do(run, chosen)
    run.operate(run.rnd.randrange(6), new=True)
    run.flush(expected=None)
    run.check()
    if run.rnd.random() < 0.4:
        time.sleep(run.rnd.random() * 4)
    done = run.writer.end()
    if done.status == 0:
        run.history.reached_bucket()
    _repair_here(run)


def _while_unmounted(run: Run, chosen: Damage) -> None:
    run.umount()
    _do(run, chosen)
    if run.rnd.random() < 0.4:
        _read_damaged(run)
    if run.rnd.random() < 0.3:
        done = run.writer.mount(run.options, expected=None)
        if done.status == 0:
            run.check()
            run.operate(run.rnd.randrange(6), new=True)
            run.writer.end()
    _repair_here(run)


def _read_damaged(run: Run) -> None:
    """Mount a damaged bucket on a new machine. The mount must fail or return correct content."""
    cold = run.cold()
    done = cold.mount("ro", expected=None)
    if done.status == 0:
        observed = run.observe(cold)
        run.history.require(observed, "a mount of a damaged bucket", 0, run.history.last)
        cold.umount()
    cold.on_bucket("fsck", "-n", "--deep", expected=(0, 4, 8))
    run.discard(cold)


def _repair_here(run: Run) -> None:
    """Repair the bucket on the host that has all content cached, so that no content is lost."""
    host = run.writer
    if run.rnd.random() < 0.3:
        host.on_bucket("fsck", "-y", expected=None)
    host.on_bucket("fsck", "-y", "--deep", expected=_REPAIRED)
    host.on_bucket("fsck", "-n", "--deep")
    run.mount(host)
    run.history.tainted.clear()
    run.check()


def _by_another_host(run: Run, chosen: Damage) -> None:
    """Repair the bucket on the second host. Only content of the damaged object may be lost."""
    before = run.history.fork()
    run.umount()
    old, new = run.writer, run.other
    _do(run, chosen)
    if run.rnd.random() < 0.5:
        new.forget()
    _repair_there(run, new)
    new.on_bucket("fsck", "-n", "--deep")
    run.mount(new)
    low = run.history.last
    if chosen.kind in {"changelog", "part"}:
        number = re.search(r"\d{6,}", chosen.key)
        assert number is not None, "the name of a changelog contains its number"
        low = run.history.range_of(int(number[0]) - 1)[0]
        run.history.forget_points(int(number[0]))
    observed = run.observe(new)
    if observed.failed:
        raise FindingError(
            f"after the repair of the filesystem, files cannot be read: {observed.failed}"
        )
    _go_on(run, observed, low)
    taken = run.history.now
    run.flush()
    kept = set(old.kept())
    done = old.mount(run.follows, expected=None)
    if done.status == 0:
        run.follow(old)
        old.umount()
        # Damage to a pack abandons no txg, so the host quarantines nothing.
        if chosen.kind != "pack":
            run.require_kept(old, kept, before, before.last, taken)
    elif taken.view() != before.now.view():
        run.journal.note(f"{old.name} cannot mount: some of its changes are not in the bucket")
        old.forget()
    else:
        raise FindingError(
            f"the bucket has all changes of {old.name}, but a mount was refused: {done.err}"
        )


def _repair_there(run: Run, host: Host) -> None:
    done = host.on_bucket("fsck", "-y", "--deep", expected=(0, 1, 4, 8))
    if done.status in _REPAIRED:
        return
    named = re.search(r"--end-at[= ](\d+)", done.out + done.err)
    if named is None:
        raise FindingError(
            f"fsck -y exited with status {done.status} and does not suggest "
            f"--end-at=TXG:\n{done.out}{done.err}"
        )
    host.on_bucket("fsck", "-y", "--deep", "--end-at", named[1], expected=_REPAIRED)
    run.history.forget_points(int(named[1]) + 1)


def _go_on(run: Run, observed: Observed, low: int) -> None:
    """Require that only content of damaged objects is lost; continue with the repaired tree.

    Raises:
        FindingError: other content was lost, or a loss was not reported.
    """
    history = run.history
    for number in range(history.last, low - 1, -1):
        step = history.steps[number]
        if not step.dead and _is_rest(observed, step.state, history.tainted):
            history.adopt(number, observed)
            history.reached_bucket()
            return
    history.require(observed, "after the repair by another host", low, history.last)
    raise FindingError(
        "content that was not in the damaged object is lost, or fsck did not report lost content"
    )


def _is_rest(observed: Observed, state: State, tainted: set[bytes]) -> bool:
    """Return whether a tree matches a state, except for lost blocks that fsck has reported."""
    view = state.view()
    if observed.entries.keys() != view.keys():
        return False
    for path, seen in observed.entries.items():
        wanted = view[path]
        if seen == wanted:
            continue
        if seen._replace(digest=b"") != wanted._replace(digest=b"") or seen.kind != "f":
            return False
        found, data = observed.data[path], state.data(path)
        for at in range(0, len(data), BLOCK_BYTES):
            block, old = found[at : at + BLOCK_BYTES], data[at : at + BLOCK_BYTES]
            if block == old:
                continue
            reported = any(
                first < at + len(old) and at < last for first, last in observed.lost.get(path, [])
            )
            if any(block) or not reported or trimmed(old) not in tainted:
                return False
    return True


def _judge_cold(run: Run) -> None:
    """Run fsck on a machine without local state, and compare all content there."""
    cold = run.cold()
    cold.on_bucket("fsck", "-n", "--deep")
    cold.mount("ro")
    run.history.require_now(run.observe(cold), "a new machine after the repair")
    cold.umount()
    run.discard(cold)
