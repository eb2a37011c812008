"""Tests of measuring the memory of daemons while a benchmark runs."""

import subprocess
import sys

from contrib.bench import __main__ as bench
from contrib.bench import memory
from contrib.bench.memory import Peak

LARGE = 64 << 20
PROGRAM = f"""
import os, sys
if os.fork():
    os.wait()
    sys.exit()
print("ready", flush=True)
sys.stdin.readline()
held = b"x" * {LARGE}
print("large", flush=True)
sys.stdin.readline()
del held
print("freed", flush=True)
sys.stdin.readline()
"""


def test_peak_memory_includes_child_processes_and_is_reset_after_each_reading() -> None:
    words = [sys.executable, "-c", PROGRAM]
    with (
        memory.sampled() as sampler,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        sampler.watch(process.pid)
        small = sampler.peak_bytes(process.pid)
        process.stdin.write("\n")
        process.stdout.readline()
        large = sampler.peak_bytes(process.pid)
        process.stdin.write("\n")
        process.stdout.readline()
        # Discard this peak, which may include readings from before the process freed its memory.
        sampler.peak_bytes(process.pid)
        freed = sampler.peak_bytes(process.pid)
        process.stdin.write("\n")
        process.wait()
        sampler.end(process.pid, "one", counts=True)

    assert 0 < small < LARGE <= large
    assert freed < LARGE
    assert sampler.peaks["one"].pss_bytes >= large
    assert memory.sampler() is None


def test_peak_memory_is_the_largest_among_processes_with_the_same_name() -> None:
    """A benchmark reports the largest memory peak.

    A daemon with a changed cache size has no memory target.
    """
    with memory.sampled() as sampler, subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        sampler.peaks["one"] = Peak(LARGE, counts=True)
        for counts in (True, False):
            sampler.watch(process.pid)
            sampler.end(process.pid, "one", counts=counts)

    assert sampler.peaks == {"one": Peak(LARGE, counts=False)}


def test_memory_target_applies_only_to_daemons_with_default_options() -> None:
    figures: bench.Figures = {"targets": []}
    peaks = {"s3fs-meta": Peak(160_000_000, counts=True), "JuiceFS": Peak(10**9, counts=False)}

    bench.add_memory(figures, peaks)

    (target,) = figures["targets"]
    assert (target["measured"], target["met"]) == (160.0, False)
    assert figures["largest memory"]["JuiceFS"] == {"PSS, MB": 1000.0}
