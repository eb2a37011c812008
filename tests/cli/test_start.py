"""The choice between the fast path of rm and the complete command line parser."""

import subprocess
import sys
from pathlib import Path

import pytest

from s3fs_meta.cli.start import is_plain_removal
from s3fs_meta.console import exits
from s3fs_meta.console.exits import ExitStatus
from tests.programs import Program


@pytest.mark.parametrize("words", [["rm", "a"], ["rm", "a b", "/c"]])
def test_rm_with_only_paths_uses_the_fast_path(words: list[str]) -> None:
    assert is_plain_removal(words)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["rm"],
        ["rm", "a", ""],  # the parser refuses an empty path
        ["rm", "--wait", "a"],
        ["rm", "a", "--", "-b"],
        ["rm", "-h"],
        ["lock", "a"],
    ],
)
def test_rm_with_other_arguments_and_all_other_commands_skip_the_fast_path(
    words: list[str],
) -> None:
    assert not is_plain_removal(words)


_SLOW_MODULES = ("apsw", "rich", "trio", "typer", "typing_extensions")


def test_fast_path_of_rm_imports_no_slow_modules(program: Program) -> None:
    """Importing one slow module takes at least as long as removing a tree."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import s3fs_meta.mount.existing.mount_paths, sys; print(*sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
        env=program.environment,
    )

    imported = set(done.stdout.split())
    assert "s3fs_meta.mount.existing.mount_paths" in imported
    assert imported.isdisjoint(_SLOW_MODULES)


_INTERRUPTED = """
import os, signal, sys
from s3fs_meta.mount.existing import mount_paths as entries
from s3fs_meta.cli import start
entries.existing = lambda *_: os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["s3fs-meta", "rm", "a"]
start.program()
"""


def test_interrupted_rm_prints_one_line_and_exits_with_130(program: Program) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED],
        capture_output=True,
        text=True,
        check=False,
        env=program.environment,
    )

    assert done.returncode == ExitStatus.INTERRUPTED
    assert done.stderr == "s3fs-meta: interrupted: some of the paths may be removed already\n"


_INTERRUPTED_WHILE_LOADING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv.pop(1))
from s3fs_meta.cli import start
start.program()
"""


@pytest.mark.parametrize(
    ("command", "status"),
    [("status", ExitStatus.INTERRUPTED), ("fsck", exits.FSCK_CANCELLED)],
)
def test_command_interrupted_while_it_loads_prints_one_line(
    program: Program, tmp_path: Path, command: str, status: int
) -> None:
    """On a busy host a command may load for seconds, during which the user may press Ctrl-C."""
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")

    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_WHILE_LOADING, tmp_path, command],
        capture_output=True,
        text=True,
        check=False,
        env=program.environment,
    )

    assert done.returncode == status
    assert done.stderr == "s3fs-meta: interrupted: nothing was changed\n"


def test_mount_command_does_not_load_the_library_for_progress_bars(program: Program) -> None:
    """The library would occupy 3 MB of memory in every daemon."""
    code = "import sys; from s3fs_meta.cli import entry; entry.make_app(['mount']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=program.environment,
    )

    assert "s3fs_meta.cli.mount" in done.stdout.split()
    assert "rich" not in done.stdout.split()
