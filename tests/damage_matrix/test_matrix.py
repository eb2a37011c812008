"""The test of the damage matrix: each kind of object × each damage × each operation.

Each cell requires that only the expected content is lost. ``make test`` runs a random sample of
cells. A failure prints the seed of its sample; the environment variable S3FS_META_MATRIX_SEED
repeats it. ``make test-slow`` runs every cell.
"""

import os
import random
import shutil
import sys
import traceback
from pathlib import Path
from typing import Final

import pytest

from tests.damage_matrix import oracle
from tests.damage_matrix.damages import DAMAGES, KINDS, damaged
from tests.damage_matrix.judge import Judge, NoSuchCellError
from tests.damage_matrix.known import KNOWN, known
from tests.damage_matrix.oracle import Oracle
from tests.damage_matrix.rules import RULES, Coordinates, all_cells
from tests.damage_matrix.world import Worlds

pytestmark = pytest.mark.thorough

SEED: Final = "S3FS_META_MATRIX_SEED"
SAMPLE_CELLS: Final = 6
SAMPLES: Final = 2


def failures(worlds: Worlds, cells: list[Coordinates], home: Path) -> list[str]:
    """Run cells of the damage matrix; describe each cell that deviates from its rule."""
    found: list[str] = []
    for number, where in enumerate(cells):
        cell = home / str(number)
        cell.mkdir()
        try:
            problems = Judge(worlds[where.encrypted], where, cell).run()
        except NoSuchCellError:
            continue
        except Exception:  # noqa: BLE001 - any exception is a failure
            problems = [traceback.format_exc(limit=-5)]
        expected = known(where)
        if expected is None and problems:
            found.append(
                "\n    ".join([str(where), f"rule: {where.rule.verdict.value}", *problems])
            )
        elif expected is not None and not problems:
            found.append(f"{where} passes: remove its entry from known.py ({expected.item})")
        shutil.rmtree(cell)
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(SAMPLES))
def test_random_sample_of_damage_has_the_expected_effects(
    worlds: Worlds, tmp_path: Path, part: int
) -> None:
    """The test prints the seed of the random sample so that a failure can be repeated."""
    seed = os.environ.get(SEED) or str(random.SystemRandom().randrange(1 << 32))
    sys.stdout.write(f"{SEED}={seed}\n")
    cells = random.Random(f"{seed} {part}").sample(all_cells(), SAMPLE_CELLS)

    found = failures(worlds, cells, tmp_path)

    assert not found, f"repeat with {SEED}={seed}:\n" + "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_damage_to_the_bucket_has_the_expected_effect(
    worlds: Worlds, tmp_path: Path, kind: str, damage: str
) -> None:
    cells = [where for where in all_cells() if (where.kind, where.damage) == (kind, damage)]

    found = failures(worlds, cells, tmp_path)

    assert not found, "\n".join(found)


@pytest.mark.slow
def test_damage_matrix_has_at_least_five_kinds_of_damage_for_each_kind_of_object(
    worlds: Worlds,
) -> None:
    """The bucket contains each kind of object; each kind can be damaged in five or more ways."""
    for world in worlds.values():
        for kind, find in KINDS.items():
            assert world.objects.keys() >= set(find(world)), kind
            possible = [name for name in DAMAGES if damaged(world, kind, name) is not None]
            assert len(possible) >= 5, (kind, possible)


def test_oracle_computes_the_recorded_trees_from_a_healthy_bucket(worlds: Worlds) -> None:
    for world in worlds.values():
        healthy = Oracle(world, world.objects)
        assert healthy.reachable == world.points.keys()
        for txg, tree in world.points.items():
            assert not oracle.differences(tree, healthy.tree(txg))


def test_every_rule_of_the_damage_matrix_covers_at_least_one_cell() -> None:
    """Each rule and each known failure covers at least one cell of the damage matrix."""
    cells = all_cells()
    assert {where.rule for where in cells} == set(RULES)
    assert {one for one in map(known, cells) if one is not None} == set(KNOWN)
