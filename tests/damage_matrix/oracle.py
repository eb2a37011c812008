"""The oracle computes the readable content of a damaged bucket without the program.

An object is intact if its bytes are unchanged. A point in time is reachable if a path of intact
objects leads to it: an image, and then changelogs or levels, each of which begins at the txg where
the previous object ends. A block is readable if the bytes of its record are unchanged. The program
must show every reachable point in time and every readable block.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Final

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.model import ObjectKey, Txg
from tests.damage_matrix.world import Record, Tree, World

CHAIN_START: Final = Txg(0)


class Oracle:
    """The reachable points in time and the readable content of one damaged bucket."""

    def __init__(self, world: World, damaged: Mapping[ObjectKey, bytes]) -> None:
        """Compare a damaged bucket with its recorded history.

        Objects of *damaged* that the history does not contain are ignored.
        """
        self._world = world
        self._damaged = damaged

    def intact(self, key: ObjectKey) -> bool:
        """Return whether an object in the bucket is unchanged."""
        return self._damaged.get(key) == self._world.objects[key]

    @functools.cached_property
    def reachable(self) -> frozenset[Txg]:
        """Return the points in time that are reachable from an intact image."""
        whole = [txg for txg, keys in images(self._world).items() if all(map(self.intact, keys))]
        return self.reachable_from(whole)

    def reachable_from(self, starts: Iterable[Txg]) -> frozenset[Txg]:
        """Return the points in time that are reachable from any point of *starts*."""
        found: set[Txg] = set()
        steps = self._steps()
        waiting = list(starts)
        while waiting:
            txg = waiting.pop()
            if txg not in found:
                found.add(txg)
                waiting += steps.get(txg, [])
        return frozenset(found)

    def _steps(self) -> dict[Txg, list[Txg]]:
        """Return the last txgs of all intact changelogs and levels, grouped by their first txg."""
        steps: dict[Txg, list[Txg]] = {}
        parts = parts_of(self._world)
        for key in self._world.objects:
            if not self.intact(key):
                continue
            txg = changelog_codec.parse_key(key)
            if txg is not None and all(map(self.intact, parts.get(txg, ()))):
                steps.setdefault(Txg(txg - 1), []).append(txg)
            level = level_codec.parse_key(key)
            if level is not None:
                first = level_codec.first_of(*level)
                steps.setdefault(Txg(first - 1), []).append(level[1])
        return steps

    @property
    def newest(self) -> Txg | None:
        """Return the last reachable point in time, or None."""
        return max(self.reachable, default=None)

    def tree(self, txg: Txg, *, cached: bool = False) -> Tree:
        """Return the content that is readable at a point in time.

        If *cached* is true, the host has every block in its cache, so all content is readable.
        """
        whole = self._world.points[txg]
        if cached:
            return whole
        records = self._world.records[txg]
        return {
            path: tuple(
                block if self._readable(record) else None
                for block, record in zip(blocks, records[path], strict=True)
            )
            if path in records
            else blocks
            for path, blocks in whole.items()
        }

    def _readable(self, record: Record | None) -> bool:
        if record is None:
            return True  # A hole of a file has no record and is always readable.
        stored = slice(record.start, record.stop)
        return (
            self._damaged.get(record.pack, b"")[stored] == self._world.objects[record.pack][stored]
        )


def images(world: World) -> dict[Txg, list[ObjectKey]]:
    """Return the objects of each image by txg: its manifest and all listed pieces."""
    keyring = world.keyring()
    found: dict[Txg, list[ObjectKey]] = {}
    for key, data in world.objects.items():
        name = image_codec.parse_manifest_key(key)
        if name is not None:
            manifest = image_codec.decode(key, data, keyring)
            found[name.txg] = [key, *(piece.key for piece in manifest.pieces)]
    return found


def parts_of(world: World) -> dict[Txg, list[ObjectKey]]:
    """Return the keys of each changelog's parts by txg."""
    found: dict[Txg, list[ObjectKey]] = {}
    for key in world.objects:
        txg = changelog_codec.parse_part_key(key)
        if txg is not None:
            found.setdefault(txg, []).append(key)
    return found


def differences(expected: Tree, found: Tree) -> list[str]:
    """Return the differences between two trees, with one line per path."""
    lines: list[str] = []
    for path in sorted({*expected, *found}):
        if path not in found:
            lines.append(f"{path!r} is missing")
        elif path not in expected:
            lines.append(f"{path!r} is unexpected")
        elif len(expected[path]) != len(found[path]):
            lines.append(f"{path!r} has {len(found[path])} blocks, not {len(expected[path])}")
        else:
            for number, (wanted, got) in enumerate(zip(expected[path], found[path], strict=True)):
                if wanted != got:
                    lines.append(f"{path!r}, block {number}: {_word(got)}, not {_word(wanted)}")
    return lines


def _word(block: bytes | None) -> str:
    return "an error" if block is None else f"{len(block)} bytes {block[:8]!r}…"
