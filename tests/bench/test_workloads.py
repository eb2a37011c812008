"""The benchmark ``workloads``: its steps, its input files and its table."""

import subprocess
from pathlib import Path

import pytest

from contrib.bench import page
from contrib.bench.local_subjects import DISK
from contrib.bench.subjects import PlainDirectory
from contrib.bench.workloads import materials, session, steps

pytestmark = pytest.mark.thorough

MISSING = "no-such-program"


def _names(only: list[str]) -> list[str]:
    return [step.name for step in steps.chosen(only)[0]]


def test_chosen_step_runs_after_the_steps_that_it_needs() -> None:
    """The step rm is run after the two steps that make its trees."""
    assert _names(["rm -rf of both"]) == ["untar of sources", "cp -a", "rm -rf of both trees"]


def test_unknown_step_is_refused_before_any_measurement() -> None:
    with pytest.raises(ValueError, match=r"no step begins with 'fnd'.*find"):
        steps.chosen(["fnd"])


def test_step_without_its_program_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A step whose program is missing is skipped and reported with the program."""
    monkeypatch.setenv("PATH", str(tmp_path))

    found, skipped = steps.chosen(["rsync", "find"])

    assert [step.name for step in found] == ["untar of sources", "find"]
    assert skipped == ["rsync, nothing to do: no rsync"]


def test_list_of_steps_has_each_step_after_those_that_it_needs() -> None:
    """Each step is listed after the steps that it needs, and its input files can be made."""
    earlier: list[str] = []
    for step in steps.STEPS:
        assert set(step.needs) <= set(earlier), step.name
        assert not step.material or step.material in materials.MATERIALS, step.name
        earlier.append(step.name)


def test_input_files_are_equal_in_every_run(tmp_path: Path) -> None:
    """Equal input files in two runs make the figures comparable."""
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        materials.source(tmp_path / name, 40)
        tree = tmp_path / name / "source"
        made.append({path.relative_to(tree): path.read_bytes() for path in tree.rglob("*.c")})

    assert made[0] == made[1]
    # All contents differ, including that of the file with the searched word.
    assert len(set(made[0].values())) == 41


def test_figures_contain_only_the_chosen_steps(tmp_path: Path) -> None:
    """The step grep needs untar, which is run but has no figure."""
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


def test_failed_step_does_not_stop_the_next_step(tmp_path: Path) -> None:
    """A failed step has a reason instead of a figure, and the next step runs."""
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


def test_hanging_step_is_killed() -> None:
    """A command that takes too long raises TimeoutExpired."""
    with pytest.raises(subprocess.TimeoutExpired):
        session.call(["sh", "-c", "sleep 60 & wait"], 0.1)


def test_workload_table_has_medians_and_ratios() -> None:
    """In the table a missing figure is a dash; the load of the host is printed below."""
    seconds = {
        "find": {"ext4": {"median": 0.1}, "do-nothing": {"median": 0.2}, "JuiceFS": {"median": 1}},
        "npm ci": {"ext4": {"median": 2.5}},
    }
    ratios = {"find": {"ext4": 0.5, "JuiceFS": 5.0}, "npm ci": {}}
    entry = {
        "figures": {"seconds": seconds, "of do-nothing": ratios, "turns": 5},
        "load": {"before": 0.25, "after": 1.5},
        "command": "python -m contrib.bench workloads",
        "date": "2020-02-03",
        "revision": "abc",
    }

    made = page.table({"benchmarks": {"workloads": entry}, "machine": {"processors": 2}})

    assert made.splitlines()[:4] == [
        "| seconds | ext4 | do-nothing | JuiceFS |",
        "| --- | --- | --- | --- |",
        "| find | 0.1 (0.5) | 0.2 | 1 (5) |",
        "| npm ci | 2.5 | – | – |",
    ]
    assert "2 processors, load 0.2 to 1.5" in made
    assert "Medians of 5 turns" in made
