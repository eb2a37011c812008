"""Processes that keep the processors awake while a benchmark runs."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from contrib.bench import awake
from tests.polling import wait_until

PARENT = """
import sys
from contrib.bench import awake
with awake.kept() as processors:
    print(*(process.pid for process in processors.processes), flush=True)
    sys.stdin.readline()
"""


def test_processors_are_kept_busy_only_while_a_benchmark_runs() -> None:
    with awake.kept() as processors:
        processes = processors.processes
        wait_until(lambda: all(_is_idle_class(each.pid) for each in processes), "the policy")
        assert {frozenset(os.sched_getaffinity(each.pid)) for each in processes} == {
            frozenset([number]) for number in os.sched_getaffinity(0)
        }
        assert {_state(each.pid) for each in processes} == {"R"}

    _assert_ended(processes)


def test_processors_are_idle_while_the_load_processes_are_paused() -> None:
    with awake.kept() as processors:
        processes = processors.processes
        wait_until(lambda: all(_is_idle_class(each.pid) for each in processes), "the policy")
        with awake.paused():
            wait_until(lambda: {_state(each.pid) for each in processes} == {"T"}, "the pause")
        wait_until(
            lambda: {_state(each.pid) for each in processes} == {"R"}, "the end of the pause"
        )


def test_failed_benchmark_stops_the_processes_that_keep_processors_busy() -> None:
    processors: list[awake.Awake] = []

    def fail() -> None:
        with awake.kept() as kept:
            processors.append(kept)
            raise ValueError("a failure")

    with pytest.raises(ValueError, match="a failure"):
        fail()

    _assert_ended(processors[0].processes)


def test_killed_benchmark_stops_the_processes_that_keep_processors_busy() -> None:
    words = [sys.executable, "-c", PARENT]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=awake.PROJECT
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        wait_until(lambda: all(map(_is_idle_class, pids)), "the policy")
        parent.kill()

    assert len(pids) == len(os.sched_getaffinity(0))
    wait_until(lambda: all(_state(pid) in "ZX" for pid in pids), "the end of the processes")


def test_reported_load_excludes_keep_awake_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = len(os.sched_getaffinity(0))
    with awake.kept() as processors:
        monkeypatch.setattr(os, "getloadavg", lambda: (count + 0.5, 0.0, 0.0))
        assert processors.other_load() == pytest.approx(count + 0.5, abs=0.2)
        assert processors.other_load(window_s=1e-9) == pytest.approx(0.5)


def _assert_ended(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    assert [each.returncode for each in processes] == [-signal.SIGKILL] * len(processes)
    assert not any(Path(f"/proc/{each.pid}").exists() for each in processes)


def _is_idle_class(pid: int) -> bool:
    return os.sched_getscheduler(pid) == os.SCHED_IDLE


def _state(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return "X"
    return stat[stat.rindex(")") + 2]
