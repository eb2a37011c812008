"""The judge compares the result of one cell of the damage matrix with the cell's rule.

For every cell, the judge also requires that no traceback is printed, that time and memory are
bounded, and that no healthy object is changed or deleted. Every point in time that intact objects
make reachable must stay reachable.
"""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.limits import MIB
from s3fs_meta.model import ObjectKey, Txg
from tests.damage_matrix import build, entrances
from tests.damage_matrix.damages import KINDS, damaged
from tests.damage_matrix.entrances import ENTRANCES, Cell, Result
from tests.damage_matrix.oracle import CHAIN_START, Oracle, differences, images
from tests.damage_matrix.rules import Coordinates, Verdict
from tests.damage_matrix.world import Objects, Tree, World

CPU_SECONDS_MAX: Final = 40
MEMORY_BYTES_MAX: Final = 200 * MIB
_CHANGES_NOTHING: Final = ("mount -o ro", "mount -o ro,at=", "restore", "fsck -n")
_MUTABLE: Final = (superblock_codec.KEY, superblock_codec.COPY_KEY, lease_codec.KEY)
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\)|this is a bug")
_REFUSALS: Final = frozenset(
    {
        ExitStatus.SETTINGS,
        ExitStatus.PASSPHRASE,
        ExitStatus.NO_FILESYSTEM,
        ExitStatus.STORE,
        ExitStatus.CORRUPTION,
    }
)


class NoSuchCellError(Exception):
    """Error: the damage cannot be applied to the object."""


class Judge:
    """A judge that records how one cell of the damage matrix deviates from its rule."""

    def __init__(self, world: World, where: Coordinates, home: Path) -> None:
        """Prepare a cell of the damage matrix.

        Raises NoSuchCellError if the damage cannot be applied to the object.
        """
        self.world = world
        self.where = where
        bucket = damaged(world, where.kind, where.damage)
        if bucket is None:
            raise NoSuchCellError(str(where))
        self.keys = KINDS[where.kind](world)
        self.oracle = Oracle(world, bucket)
        self.cell = Cell(world, bucket, home)
        self.problems: list[str] = []
        self.result = Result()
        self.after: Objects = {}

    def run(self) -> list[str]:
        """Run a cell of the damage matrix; return its deviations from the rule."""
        began_s, before = time.process_time(), _reset_peak()
        self.result = ENTRANCES[self.where.entrance](self.cell)
        taken_s, taken = time.process_time() - began_s, _peak() - before
        self.after = self.cell.bucket.read()
        self._expect(taken_s < CPU_SECONDS_MAX, f"the operation used {taken_s:.0f} s of CPU time")
        self._expect(taken < MEMORY_BYTES_MAX, f"the operation used {taken // MIB} MiB of memory")
        self._expect(not _TRACEBACK.search(self.result.said), "the output contains a traceback")
        self._nothing_healthy_changed()
        _VERDICTS[self.where.rule.verdict](self)
        if not self.problems and self.after != self.cell.damaged:
            self._all_points_are_there()
        if self.problems:
            said = " ".join(self.result.said.split())
            self.problems.append(f"status {self.result.status}, said: {said[:600]}")
        return self.problems

    def _expect(self, held: bool, otherwise: str) -> None:
        if not held:
            self.problems.append(otherwise)

    # --- rules for all cells of the matrix ------------------------------------------------------

    def _is_superseded(self, key: ObjectKey) -> bool:
        """Return whether an object belongs to an image that is older than two other images."""
        name = image_codec.parse_manifest_key(key) or image_codec.parse_piece_key(key)
        manifests = map(image_codec.parse_manifest_key, self.after)
        newer = [one for one in manifests if one and name and one.txg > name.txg]
        return len(newer) > 1

    def _nothing_healthy_changed(self) -> None:
        """Require that no immutable object is changed or deleted."""
        hostile = self.where.kind == "both superblocks" and self.where.damage == "hostile"
        if hostile and not self.result.cached:
            return  # A new host accepts a changed superblock that disables the retention.
        for key, data in self.cell.damaged.items():
            if key in _MUTABLE:
                continue
            if key not in self.after:
                self._expect(self._is_superseded(key), f"{key} was deleted")
            elif self.after[key] != data:
                self.problems.append(f"{key} was overwritten")
        if self.where.entrance in _CHANGES_NOTHING:
            changed = sorted(
                key
                for key in {*self.after, *self.cell.damaged}
                if self.after.get(key) != self.cell.damaged.get(key)
            )
            self._expect(not changed, f"these objects were changed: {changed}")

    def _all_points_are_there(self) -> None:
        """Require that every point in time that was reachable from the bucket still is."""
        if self.where.damage == "hostile":
            return  # A hostile object is authentic, so its history is valid too.
        for key in _MUTABLE:
            if key in self.keys and self.after.get(key) == self.cell.damaged.get(key):
                self.after[key] = self.world.objects[key]
        self.cell.bucket.write(self.after)
        self._compare_points(entrances.points_of(self.cell), only_reachable=True)

    def _compare_points(self, found: Result, *, only_reachable: bool = False) -> None:
        for txg, seen in found.points.items():
            if isinstance(seen, str):
                self._expect(
                    txg not in self.oracle.reachable, f"txg {txg} is refused: {seen[:300]}"
                )
            elif txg in self.oracle.reachable:
                self._compare(txg, seen, cached=False)
            elif not only_reachable:
                wrong = differences(self.world.points[txg], seen)
                self._expect(not wrong, f"txg {txg} shows a wrong state: {wrong[:3]}")

    def _compare(self, txg: Txg, seen: Tree, *, cached: bool | None = None) -> None:
        """Compare a tree with the recorded tree.

        Lost data may be a hole or the original content.
        """
        whole = self.world.points[txg]
        expected = self.oracle.tree(txg, cached=self.result.cached if cached is None else cached)
        seen = {path: _without_lost(expected, whole, path, seen[path]) for path in seen}
        wrong = differences(expected, seen)
        self._expect(not wrong, f"txg {txg}: {len(wrong)} differences, {wrong[:3]}")

    @property
    def _end(self) -> Txg:
        """Return the last txg whose object is listed."""
        gone = self.where.kind == "last changelog" and self.where.damage == "missing"
        return Txg(self.world.last - 1) if gone else self.world.last

    # --- conditions of single rules --------------------------------------------------------------

    def works(self) -> None:
        """Require that the operation succeeds and reads the current tree."""
        allowed = {0}
        if self.where.entrance == "restore" and None in _blocks(self.oracle.tree(self._end)):
            allowed = {int(ExitStatus.CORRUPTION)}
        self._expect(self.result.status in allowed, f"status {self.result.status}")
        if self.result.tree is not None and self.result.txg is not None:
            shown = min(self.result.txg, self.world.last)
            self._expect(shown >= self._newest_for_this_host(), f"the mount shows only txg {shown}")
            self._compare(shown, self.result.tree)

    def _newest_for_this_host(self) -> Txg:
        if self.result.cached or self.where.entrance == "promote":
            return self.world.last
        if self.where.entrance == "running follower":
            return max(self.oracle.reachable | self.oracle.reachable_from([build.EARLY_AT]))
        newest = self.oracle.newest
        assert newest is not None, "no mount without local state can succeed"
        return newest

    def by_way(self) -> None:
        """Require the current tree if it is reachable, otherwise a refusal that advises fsck."""
        if self._end in self.oracle.reachable:
            self.works()
            return
        self.refused()
        self._expect("fsck" in self.result.said, "the error does not advise fsck")

    def points(self) -> None:
        """Require that every reachable point in time can be opened and has its content."""
        self._compare_points(self.result)

    def found(self) -> None:
        """Require that the exit status of fsck reports the damage."""
        needed = self._end not in self.oracle.reachable or (
            self.where.kind == "pack" and self.where.damage in {"missing", "empty", "truncated"}
        )
        allowed = {4} if needed or self.where.rule.kinds == ("lease",) else {0, 4}
        self._expect(
            self.result.status in allowed,
            f"the exit status is {self.result.status} instead of {allowed}",
        )

    def repaired(self) -> None:
        """Require that a second fsck finds no damage and another host sees all that remains."""
        if "--end-at" in self.result.said and self.oracle.newest is not None:
            # Another host may have acknowledged txgs, which fsck abandons only with --end-at.
            words = self.where.entrance.split(",")[0].split()[1:]
            end = f"--end-at={self.oracle.newest}"
            self.result.status = self.cell.command("fsck", *words, end, self.cell.bucket.url).status
        if self.result.status in {4, 5} and "I72" in self.result.said:
            self._drop_points(self.result.said)
            words = self.where.entrance.split(",")[0].split()
            self.result.status = self.cell.command(*words, self.cell.bucket.url).status
        self._expect(self.result.status in {0, 1}, f"status {self.result.status}")
        again = self.cell.command("fsck", "-n", self.cell.bucket.url)
        self._expect(again.status == 0, f"the second run has status {again.status}: {again.said}")
        if self.problems:
            return
        newest = self.world.last if self.result.cached else self.oracle.newest
        assert newest is not None
        seen = entrances.other_host(self.cell)
        self._expect(seen.status == 0, f"another host cannot mount: {seen.said[:300]}")
        if seen.tree is not None:
            self._compare(newest, seen.tree)

    def _drop_points(self, said: str) -> None:
        """Drop the damaged kept points that fsck lists; fsck leaves this decision to the user."""
        points = set(re.findall(r"kept point (kept-\d+)", said))
        self._expect(bool(points), "the output lists no kept point")
        for name in sorted(points):
            dropped = self.cell.command("keep", self.cell.bucket.url, "--drop", name)
            self._expect(dropped.status == 0, f"keep --drop: {dropped.said[:300]}")

    def reported(self) -> None:
        """Require that fsck reports the object without a change, and that the tree can be read."""
        self._expect(self.result.status == 4, f"status {self.result.status}")
        for key in self.keys:
            self._expect(key in self.result.said, f"the report does not name {key}")
        seen = entrances.other_host(self.cell)
        self._expect(seen.status == 0, f"another host cannot mount: {seen.said[:300]}")
        if seen.tree is not None:
            self._compare(self.world.last, seen.tree)
        for key in self.keys:
            dropped = self.cell.command("keep", self.cell.bucket.url, "--drop", key)
            self._expect(dropped.status == 0, f"keep --drop: {dropped.said[:300]}")
        again = self.cell.command("fsck", "-n", self.cell.bucket.url)
        self._expect(again.status == 0, f"after keep --drop: {again.status}: {again.said[:300]}")

    def refused(self) -> None:
        """Require a refusal that prints advice and leaves the bucket unchanged."""
        if self.where.entrance == "mount -o ro,at=":
            opened = [txg for txg, seen in self.result.points.items() if not isinstance(seen, str)]
            self._expect(not opened, f"these points in time were opened: {opened}")
            return
        if self.where.entrance == "fsck --rebuild -y":
            allowed = {8, 16}
        elif self.where.entrance.startswith("fsck"):
            allowed = {4, 8}
        else:
            allowed = {int(status) for status in _REFUSALS}
        self._expect(self.result.status in allowed, f"not refused: status {self.result.status}")
        self._expect(
            "create one with" not in self.result.said,
            "the error suggests mkfs although a filesystem exists",
        )
        advice = re.search(r"fsck -|leave the passphrase out", self.result.said)
        self._expect(bool(advice), f"the error gives no advice: {self.result.said[:300]}")
        unchanged = self.after == self.cell.damaged
        self._expect(unchanged, "the refused operation changed the bucket")

    def rebuilt(self) -> None:
        """Require all content, and the newest names that the chain or image pieces contain."""
        # Status 5 reports that a pack has an unreadable index.
        self._expect(self.result.status in {1, 5}, f"status {self.result.status}")
        again = self.cell.command("fsck", "-n", self.cell.bucket.url)
        if again.status == 4 and "I72" in again.said:  # A rebuild restores no kept points.
            self._drop_points(again.said)
            again = self.cell.command("fsck", "-n", self.cell.bucket.url)
        self._expect(again.status == 0, f"the second run has status {again.status}: {again.said}")
        seen = entrances.other_host(self.cell)
        self._expect(seen.tree is not None, f"another host cannot mount: {seen.said[:300]}")
        tree = seen.tree or {}
        there = {block for blocks in tree.values() for block in blocks}
        last = self.world.last
        present, remaining = self.world.points[last], self.oracle.tree(last)
        named = self.world.points[self._newest_names()]
        for path in self.world.records[last].keys() & named.keys():
            if named[path] == present[path]:
                found = _without_lost(remaining, present, path, tree.get(path, ()))
                self._expect(found == remaining[path], f"the name {path!r} is lost")
        for path in self.world.records[last]:
            missing = set(remaining[path]) - {None} - there
            self._expect(not missing, f"the content of {path!r} is lost")

    def _newest_names(self) -> Txg:
        """Return the last txg whose names are in intact objects other than manifests."""
        by_chain = self.oracle.reachable_from([CHAIN_START])
        by_pieces = [
            txg
            for txg, keys in images(self.world).items()
            if all(map(self.oracle.intact, keys[1:]))
        ]
        return max((*by_chain, *by_pieces))

    def held(self) -> None:
        """Require a refusal that advises --takeover, because another host may be the writer."""
        allowed = {8} if self.where.entrance.startswith("fsck") else {int(ExitStatus.HELD)}
        self._expect(self.result.status in allowed, f"status {self.result.status}")
        self._expect("--takeover" in self.result.said, "the error does not advise --takeover")

    def stops(self) -> None:
        """Require that the mount stops, and that unshipped data stays on this host."""
        self._expect(self.result.status != 0, "the mount continued without its lease")
        self._expect(not self.result.wrote, "the mount reported a successful upload")
        advice = re.search(r"fsck|takeover|fenced|epoch", self.result.said)
        self._expect(bool(advice), "the error gives no advice")
        if self.result.tree is not None:
            self._compare(self.world.last, self.result.tree)

    def safe(self) -> None:
        """Require only the conditions that every cell of the damage matrix must meet."""


_VERDICTS: Final[Mapping[Verdict, Callable[[Judge], None]]] = {
    Verdict.WORKS: Judge.works,
    Verdict.BY_WAY: Judge.by_way,
    Verdict.POINTS: Judge.points,
    Verdict.FOUND: Judge.found,
    Verdict.REPAIRED: Judge.repaired,
    Verdict.REPORTED: Judge.reported,
    Verdict.REFUSED: Judge.refused,
    Verdict.REBUILT: Judge.rebuilt,
    Verdict.HELD: Judge.held,
    Verdict.STOPS: Judge.stops,
    Verdict.SAFE: Judge.safe,
}


def _blocks(tree: Tree) -> list[bytes | None]:
    return [block for blocks in tree.values() for block in blocks]


def _without_lost(
    expected: Tree, whole: Tree, path: bytes, blocks: tuple[bytes | None, ...]
) -> tuple[bytes | None, ...]:
    """Mark a lost block as unreadable if the program showed a hole or the original content."""
    if path not in expected or len(expected[path]) != len(blocks):
        return blocks
    return tuple(
        None if wanted is None and (not any(got or b"") or got == written) else got
        for wanted, written, got in zip(expected[path], whole[path], blocks, strict=True)
    )


def _reset_peak() -> int:
    """Reset the peak memory use of this process; return its current memory use."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc/self/status has no VmHWM line (peak memory)")
