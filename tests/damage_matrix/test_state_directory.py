"""Tests of damage to each file of a state directory: missing, truncated, old, or foreign.

No shipped data may be lost. The next mount must ship unshipped data or keep it on this disk.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.sync.volume import OpenOptions
from tests.damage_matrix import entrances
from tests.damage_matrix.entrances import Cell, Result
from tests.damage_matrix.oracle import differences
from tests.damage_matrix.world import Objects, Tree, World, Worlds

UNSHIPPED: Final = b"unshipped"
CONTENT: Final = b"only on this host " * 100
UNPRIVILEGED: Final = 65534

# A damaging function changes a file of a state directory, or returns False if it cannot.
Damage = Callable[[World, Path, Path], bool]


def missing(_world: World, _state: Path, path: Path) -> bool:
    """Delete the file."""
    path.unlink()
    return True


def empty(_world: World, _state: Path, path: Path) -> bool:
    """Truncate the file to zero bytes."""
    os.truncate(path, 0)
    return True


def truncated(_world: World, _state: Path, path: Path) -> bool:
    """Remove the second half of the file."""
    os.truncate(path, path.stat().st_size // 2)
    return True


def older(world: World, state: Path, path: Path) -> bool:
    """Replace the file with an earlier version; a database is replaced together with its WAL."""
    return _replaced(world.early_state, state, path)


def foreign(world: World, state: Path, path: Path) -> bool:
    """Replace the file with that of another filesystem; a database together with its WAL."""
    return _replaced(world.foreign_state, state, path)


def of_another_user(_world: World, _state: Path, path: Path) -> bool:
    """Change the owner of the file."""
    os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
    return True


DAMAGES: Final = (missing, empty, truncated, older, foreign, of_another_user)
FILES: Final = (
    "meta.db",
    "meta.db-wal",
    "superblock",
    "holder",
    "lock",
    "clean block",
    "dirty block",
)
# Each known failure is a file name, a kind of damage, and True if the mount was killed.
KNOWN: Final[set[tuple[str, str, bool]]] = set()
_HOLD_WHAT_WAS_NOT_SHIPPED: Final = ("meta.db-wal", "dirty block")


def _replaced(source: Path, state: Path, path: Path) -> bool:
    if "blocks" in path.parts:
        return False  # A filesystem never reuses a block number.
    if path.name == "meta.db":
        for left in state.glob("meta.db*"):
            left.unlink()
        for one in source.glob("meta.db*"):
            shutil.copy(one, state / one.name)
        return True
    if not (source / path.name).exists():
        return False
    shutil.copy(source / path.name, path)
    return True


def _file(cell: Cell, name: str) -> Path | None:
    """Return the path of one file in the state directory, or None."""
    if name.endswith(" block"):
        dirty = name == "dirty block"
        blocks = [path for path in (cell.state / "blocks").rglob("*") if path.is_file()]
        found = [path for path in blocks if (path.read_bytes() == CONTENT) == dirty]
        return found[0] if found else None
    path = cell.state / name
    return path if path.exists() else None


def _use(cell: Cell) -> None:
    """Write and sync a file, and kill the mount before the file is shipped."""

    async def body(_result: Result) -> None:
        async with cell.opened() as mounted:
            await mounted.write(UNSHIPPED, CONTENT)
            await mounted.kill()

    done = cell.run(body)
    assert done.status == 0, done.said


def _quarantined(cell: Cell) -> bool:
    """Return whether any block file on this disk contains the unshipped content."""
    return any(
        path.is_file() and path.read_bytes() == CONTENT for path in cell.home.rglob("blocks/**/*")
    )


def _mounted(cell: Cell, *, takeover: bool = False) -> Result:
    """Mount for writing, read all files, and upload all changes."""

    async def body(result: Result) -> None:
        async with cell.opened(OpenOptions(force_takeover=takeover)) as mounted:
            result.tree = await mounted.observe()
            result.said += "\n".join(mounted.session.volume.notices)

    return cell.run(body)


def _judge(cell: Cell, name: str, damage: Damage, *, killed: bool) -> list[str]:
    """Mount after damage to a file; return the deviations from the expected result."""
    world = cell.world
    result = _mounted(cell)
    # The program checks who owns the private directories and files, but not each block file.
    if damage is of_another_user and not name.endswith(" block"):
        if result.status == ExitStatus.SETTINGS and "as that user" in result.said:
            return []
        return [f"the mount is not refused with advice: {result.status}: {result.said}"]
    result, problems = _after_advice(cell, result)
    if result.tree is None:
        return [*problems, f"the filesystem cannot be mounted: {result.status}: {result.said}"]
    problems += _compare(world.points[world.last], result.tree)
    there = result.tree.get(b"/" + UNSHIPPED) == (CONTENT,)
    if killed and not (there or name in _HOLD_WHAT_WAS_NOT_SHIPPED or _quarantined(cell)):
        problems.append("the content that was not uploaded is lost")
    problems += [f"{key} was changed" for key in _changed(cell.damaged, cell.bucket.read())]
    seen = entrances.other_host(cell)
    if seen.tree is None:
        return [*problems, f"another host cannot mount: {seen.said}"]
    return problems + _compare(world.points[world.last], seen.tree)


def _after_advice(cell: Cell, refused: Result) -> tuple[Result, list[str]]:
    """Follow the advice of a refused mount and mount again; return the result and the problems."""
    if refused.status == 0:
        return refused, []
    if refused.status == ExitStatus.HELD and "copy or a backup" in refused.said:
        # The host has an older copy of the database and has not released the lease.
        return _mounted(cell, takeover=True), []
    if refused.status == ExitStatus.SETTINGS and "move it away" in refused.said:
        cell.state.rename(cell.home / "moved")
        return _mounted(cell, takeover=True), []
    problems: list[str] = []
    if "fsck" not in refused.said:
        problems.append(f"the mount is refused without advice: {refused.status}: {refused.said}")
    repaired = cell.command("fsck", "-y", cell.bucket.url)
    if repaired.status != 1:
        problems.append(f"fsck -y exited with {repaired.status}: {repaired.said[:300]}")
    return _mounted(cell), problems


def _compare(expected: Tree, found: Tree) -> list[str]:
    shipped = {path: blocks for path, blocks in found.items() if path != b"/" + UNSHIPPED}
    return differences(expected, shipped)


def _changed(before: Objects, after: Objects) -> list[str]:
    mutable = {"lease", "superblock"}
    return [key for key in before if key not in mutable and after.get(key) != before[key]]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("killed", [False, True], ids=["unmounted", "killed"])
def test_damage_to_the_state_directory_loses_no_uploaded_data(
    worlds: Worlds, tmp_path: Path, name: str, damage: Damage, killed: bool
) -> None:
    """After the damage a mount succeeds, perhaps after fsck -y, and no shipped data is lost."""
    if damage is of_another_user and os.geteuid() != 0:
        pytest.skip("only root can change the owner of a file")
    problems: list[str] = []
    is_damaged = False
    for encrypted, world in worlds.items():
        home = tmp_path / str(encrypted)
        home.mkdir()
        cell = Cell(world, world.objects, home)
        cell.bucket.write(world.objects)
        cell.with_state()
        if killed:
            _use(cell)
            cell.damaged = cell.bucket.read()
        path = _file(cell, name)
        if path is None or not damage(world, cell.state, path):
            continue
        is_damaged = True
        problems += _judge(cell, name, damage, killed=killed)
    if not is_damaged:
        pytest.skip("the file does not exist, or this damage is impossible")
    expected = (name, damage.__name__, killed) in KNOWN
    assert bool(problems) == expected, "\n".join(problems) or "it passes: remove it from KNOWN"
