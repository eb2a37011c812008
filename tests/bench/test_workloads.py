"""The benchmark ``workloads``: its steps, its input files and its table."""

import subprocess
from pathlib import Path

import pytest

from contrib.bench.names import DISK
from contrib.bench.subjects import PlainDirectory
from contrib.bench.workloads import materials, session, steps

pytestmark = pytest.mark.thorough

MISSING = "no-such-program"


def _names(only: list[str]) -> list[str]:
    return [step.name for step in steps.chosen(only)[0]]


def test_benchmark_step_runs_after_the_steps_that_it_needs() -> None:
    """The benchmark step rm runs after the two steps that create the trees for rm."""
    assert _names(["rm -rf of both"]) == ["untar of sources", "cp -a", "rm -rf of both trees"]


def test_unknown_benchmark_step_is_refused_before_any_measurement() -> None:
    with pytest.raises(ValueError, match=r"no step name begins with 'fnd'.*find"):
        steps.chosen(["fnd"])


def test_benchmark_step_is_skipped_if_its_program_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The report of a skipped benchmark step names the missing program."""
    monkeypatch.setenv("PATH", str(tmp_path))

    found, skipped = steps.chosen(["rsync", "find"])

    assert [step.name for step in found] == ["untar of sources", "find"]
    assert skipped == ["rsync, nothing to do: no rsync"]


def test_benchmark_steps_are_listed_after_the_steps_that_they_depend_on() -> None:
    """The input files of each benchmark step can be created."""
    earlier: list[str] = []
    for step in steps.STEPS:
        assert set(step.needs) <= set(earlier), step.name
        assert not step.material or step.material in materials.MATERIALS, step.name
        earlier.append(step.name)


def test_benchmark_source_trees_of_two_runs_are_identical(tmp_path: Path) -> None:
    """Results of different source trees could not be compared."""
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        materials.source(tmp_path / name, 40)
        tree = tmp_path / name / "source"
        made.append({path.relative_to(tree): path.read_bytes() for path in tree.rglob("*.c")})

    assert made[0] == made[1]
    # All 41 files have different content.
    assert len(set(made[0].values())) == 41


def test_benchmark_results_contain_only_the_chosen_steps(tmp_path: Path) -> None:
    """The benchmark step grep needs the step untar, which then runs without a result."""
    figures = session.run(
        tmp_path,
        files=30,
        messages=5,
        turns=2,
        only=["grep", "SQLite", "maildir"],
        subjects=[DISK],
        tree=None,
    )

    assert list(figures["seconds"]) == [
        "grep -r", "SQLite inserts, DELETE", "SQLite inserts, WAL",
        "maildir, deliver", "maildir, read",
    ]  # fmt: skip
    for row in figures["seconds"].values():
        assert len(row[DISK]["values"]) == 2
    assert figures["failed"] == []
    assert "grep -r" in figures["commands"]["grep -r"]


def test_next_benchmark_step_runs_after_a_failed_step(tmp_path: Path) -> None:
    """A failed benchmark step has a reason instead of a result."""
    disk = PlainDirectory(DISK, tmp_path / "disk")
    todo = [
        steps.Step("broken", ("sh", "-c", "echo no room >&2; exit 3")),
        steps.Step("fine", ("touch", "{work}/file")),
    ]
    table: session.Table = {step.name: {} for step in todo}
    failed: dict[str, str] = {}

    session.Session({"{materials}": str(tmp_path)}, [disk], table, failed).turn(0, todo)

    assert failed == {f"turn 1, broken, {DISK}": "no room"}
    assert table["broken"] == {}
    assert list(table["fine"]) == [DISK]
    assert (disk.mountpoint / "turn-0" / "file").exists()


def test_benchmark_continues_if_a_filesystem_refuses_a_directory(tmp_path: Path) -> None:
    disk, full = PlainDirectory(DISK, tmp_path / "disk"), PlainDirectory("full", tmp_path / "full")
    (full.mountpoint / "turn-0").touch()
    fine = steps.Step("fine", ("touch", "{work}/file"))
    table: session.Table = {"fine": {}}
    failed: dict[str, str] = {}

    session.Session({"{materials}": str(tmp_path)}, [full, disk], table, failed).turn(0, [fine])

    assert list(failed) == ["turn 1, mkdir, full"]
    assert list(table["fine"]) == [DISK]


def test_hanging_benchmark_step_is_killed() -> None:
    """A benchmark command that exceeds its time limit raises TimeoutExpired."""
    with pytest.raises(subprocess.TimeoutExpired):
        session.call(["sh", "-c", "sleep 60 & wait"], 0.1)
