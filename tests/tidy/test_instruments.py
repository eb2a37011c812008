"""Tests of the test tools. If a tool failed silently, all tests that use it would pass."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from contrib.lint import prose
from s3fs_meta.options.option_syntax import parse_size
from s3fs_meta.options.settings import parse_mount_options
from tests import forked
from tests.calls import counting
from tests.sampled import sampled

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "S3FS_META_PASSPHRASE": "one"}


# --- samples of running code (tests.sampled) ------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3, 4])
def test_test_parameters_outside_the_sample_are_marked_as_slow(every: int) -> None:
    """``sampled`` keeps the order of parameters, and marks parameters not in the sample as slow."""
    values = [(number, str(number)) for number in range(10)]
    found = sampled(values, every)

    plain = [one if isinstance(one, tuple) and len(one) == 2 else one.values for one in found]
    assert plain == values
    slow = [one.values for one in found if hasattr(one, "marks")]
    assert slow == [value for value in values if value[0] % every]
    assert all(mark.name == "slow" for one in found if hasattr(one, "marks") for mark in one.marks)


# --- forked commands (tests.forked) ---------------------------------------------------------------


def _run(
    script: Path, text: str, *words: str, s_max: float = 50
) -> "subprocess.CompletedProcess[str]":
    return forked.run(script.stem, words, ENVIRONMENT | {"FOLDER": str(script.parent)}, text, s_max)


def test_forked_command_has_its_own_streams_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "said_in_a_test.py").write_text(
        "import os, sys\n"
        "print(sys.stdin.read(), sys.argv[1:], os.getcwd(), sorted(os.environ))\n"
        "print('wrong', file=sys.stderr)\n"
        "os.system('echo a child')\n"
        "sys.exit(7)\n"
    )

    done = _run(tmp_path / "said_in_a_test.py", "typed", "a", "b")

    names = sorted([*ENVIRONMENT, "FOLDER"])
    assert sorted(done.stdout.splitlines()) == ["a child", f"typed ['a', 'b'] {tmp_path} {names}"]
    assert (done.returncode, done.stderr) == (7, "wrong\n")


def test_failed_or_killed_forked_command_has_a_failure_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked command that raises an exception or is killed has a non-zero exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    raises, dies, hangs = (
        tmp_path / f"{name}_in_a_test.py" for name in ("raises", "dies", "hangs")
    )
    raises.write_text("raise RuntimeError('oops')\n")
    dies.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    hangs.write_text("import signal\nsignal.pause()\n")

    done = _run(raises, "")
    assert (done.returncode, "RuntimeError: oops" in done.stderr) == (1, True)
    assert _run(dies, "").returncode == -9
    with pytest.raises(subprocess.TimeoutExpired):
        _run(hangs, "", s_max=0.2)


def test_forked_shell_command_has_its_own_streams_and_directory_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "said_to_a_shell.py").write_text(
        "import os, sys\n"
        "print(sys.stdin.read(), sys.argv[1:], os.getcwd(), os.environ['KIND'])\n"
        "print('wrong', file=sys.stderr)\n"
        "sys.exit(7)\n"
    )
    (tmp_path / "folder").mkdir()
    command = f"{sys.executable} -I -S {ROOT}/tests/forked_client.py {tmp_path}/address a 'b c'"

    with forked.serving("said_to_a_shell", tmp_path / "address"):
        done = subprocess.run(
            ["bash", "-c", f"cd folder; echo first; echo -n typed | KIND=x {command}; echo $?"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )

    said = f"typed ['a', 'b c'] {tmp_path}/folder x"
    assert (done.stdout, done.stderr) == (f"first\n{said}\n7\n", "wrong\n")


# --- counted calls (tests.calls) ------------------------------------------------------------------


def test_calls_between_functions_and_between_files_are_counted() -> None:
    """Only calls in the package are counted, and a resumed generator is not counted again."""
    with counting() as none:
        prose.offences("x", "text")
    assert (none.calls, none.moves, none.trip) == (0, 0, [])

    with counting() as one:
        parse_size("cachesize", "1G")
    assert one.trip == [("options/option_syntax.py", "parse_size")]
    assert (one.calls, one.moves) == (1, 0)
    with counting() as many:
        parse_mount_options(["cachesize=1G"])
    assert {"options/settings.py", "options/option_syntax.py"} <= {file for file, _ in many.trip}
    assert 1 <= many.moves < many.calls == len(many.trip)


# --- linter rules (contrib.lint) ------------------------------------------------------------------


def test_lint_finds_words_that_the_project_avoids(capsys: pytest.CaptureFixture[str]) -> None:
    """Lint finds avoided words in text, in test names and in docstring summaries."""
    bad = {
        "x = 1  # some" + "body else": "the caller",
        "def test_no" + "body_hears_it(): pass": "the passive",
        '    """What it does."""': "question word",
        "the remains are set" + " aside": "quarantined",
    }
    for line, hint in bad.items():
        assert any(hint in found for found in prose.offences("x.py", line)), line
    assert prose.offences("x.py", '"""Return the caller\'s state."""') == []
    assert prose.main(["no/such/file.md"]) == 1, "a missing path must be an error"
    assert "no/such/file.md" in capsys.readouterr().out


def _check_async(*files: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", _CHECK, *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_lint_runs_both_engines_of_flake8_async(tmp_path: Path) -> None:
    """Lint reports violations of rules from both engines of flake8-async."""
    call, scope, blocked = (tmp_path / name for name in ("call.py", "scope.py", "blocked.py"))
    call.write_text("import time\n\n\nasync def f():\n    time.sleep(1)\n    await g()\n")
    scope.write_text("import trio\n\n\ndef h():\n    with trio.fail_after(1):\n        yield 1\n")
    blocked.write_text("import os\n\n\nasync def k():\n    os.fsync(1)\n    await g()\n")
    done = _check_async(call, scope, blocked)

    assert done.returncode == 1
    for path, code in ((call, "ASYNC251"), (scope, "ASYNC101"), (blocked, "ASYNC200")):
        assert re.search(rf"{path.name}:\d+:\d+: {code} ", done.stdout), done.stdout + done.stderr


def test_lint_accepts_problems_of_async_code_that_a_comment_permits(tmp_path: Path) -> None:
    """A comment with the code of a rule permits one line. A comment with another code does not."""
    permitted, other = tmp_path / "permitted.py", tmp_path / "other.py"
    text = "import time\n\n\nasync def f():\n    await g()\n    time.sleep(1)  # noqa: %s\n"
    permitted.write_text(text % "ASYNC251")
    other.write_text(text % "ASYNC250")

    assert _check_async(permitted).returncode == 0
    done = _check_async(other)
    assert done.returncode == 1
    assert "ASYNC251" in done.stdout


_CHECK = """
import pathlib
import sys
from contrib.lint import async_rules
sys.exit(async_rules.check([pathlib.Path(name) for name in sys.argv[1:]]))
"""
