"""Tests of the command that runs benchmarks."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from contrib.bench import __main__ as bench
from contrib.bench import awake, memory, plans, samples
from contrib.bench.subjects import PROJECT

VARIABLE = "S3FS_META_PASSPHRASE"


def _arguments(scratch: Path) -> list[str]:
    return ["cut", f"--scratch={scratch}"]


def _measure(monkeypatch: pytest.MonkeyPatch, scratch: Path, run: object) -> bench.Figures:
    """Measure a module that contains only *run* as a benchmark."""
    module = types.ModuleType("contrib.bench.cut")
    vars(module)["run"] = run
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with awake.kept() as processors:
        return bench.measured("cut", bench.parse(_arguments(scratch)), processors)


def test_environment_variables_of_a_benchmark_are_unset_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A passphrase left in the environment would make a later unencrypted benchmark fail."""
    monkeypatch.delenv(VARIABLE, raising=False)

    def run(_scratch: Path, **_sizes: int) -> bench.Figures:
        os.environ[VARIABLE] = "secret"
        return {}

    assert "error" not in _measure(monkeypatch, tmp_path, run)
    assert VARIABLE not in os.environ


def test_error_of_a_failed_benchmark_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def run(_scratch: Path, **_sizes: int) -> bench.Figures:
        raise ValueError("a failure")

    assert _measure(monkeypatch, tmp_path, run)["error"] == "ValueError: a failure"


@pytest.mark.parametrize("signalled", [SystemExit(143), KeyboardInterrupt()])
def test_signal_ends_the_run_even_if_the_cleanup_of_a_benchmark_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signalled: BaseException
) -> None:
    def run(_scratch: Path, **_sizes: int) -> bench.Figures:
        try:
            raise signalled
        finally:
            raise BrokenPipeError

    with pytest.raises(type(signalled)):
        _measure(monkeypatch, tmp_path, run)


def test_memory_of_a_benchmark_is_measured_even_if_a_signal_ends_the_benchmark() -> None:
    """The cleanup of a benchmark can measure memory even after a signal to the process group."""
    program = """
import os, signal
from contrib.bench import memory
signal.signal(signal.SIGTERM, lambda *_: None)
with memory.sampled() as sampler:
    sampler.watch(os.getpid())
    os.killpg(0, signal.SIGTERM)
    sampler.end(os.getpid(), "one", counts=True)
print(sampler.peaks["one"].pss_bytes > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=memory.PROJECT,
        start_new_session=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_size_option_overrides_one_size_of_the_benchmark_plan() -> None:
    for plan in plans.PLANS:
        arguments = bench.parse(["follow", f"--plan={plan}", "--rounds=7"])
        entries = plans.BENCHMARKS["follow"]["entries"].of(plan)
        assert bench.sized("follow", arguments) == {"entries": entries, "rounds": 7}
    assert bench.parse(["--quick"]).plan == plans.QUICK


@pytest.mark.parametrize("size", ["0", "-1", "many"])
def test_size_that_measures_nothing_is_a_usage_error(
    size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the benchmark would fail after it has mounted all filesystems."""
    with pytest.raises(SystemExit):
        bench.parse(["peers", f"--files={size}"])

    assert "--files" in capsys.readouterr().err


def test_benchmark_of_few_files_measures_one_full_turn() -> None:
    assert [samples.full_turns(files, 500) for files in (1, 499, 999, 1000)] == [1, 1, 1, 2]


def test_benchmark_sizes_of_a_longer_plan_are_not_below_those_of_a_shorter_plan() -> None:
    for sizes in plans.BENCHMARKS.values():
        for size in sizes.values():
            assert size.complete >= size.hour >= size.quick


def test_missing_scratch_directory_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.parse(_arguments(tmp_path / "missing"))

    assert "missing is not a directory" in capsys.readouterr().err


def test_recorded_revision_ignores_changed_results(tmp_path: Path) -> None:
    """A run writes its results after each benchmark.

    These files do not change the recorded revision.
    """
    results = tmp_path / bench.KEPT.relative_to(PROJECT)
    results.parent.mkdir(parents=True)
    code = tmp_path / "code.py"
    for path in (results, code):
        path.write_text("old")
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "files")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    committed = bench.revision(tmp_path)

    results.write_text("new")
    assert bench.revision(tmp_path) == committed
    code.write_text("new")
    assert bench.revision(tmp_path) == f"{committed}-dirty"
