"""Tests of the sources from which a command reads the passphrase."""

import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.console import passphrase_source
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.errors import PassphraseError, UsageError


def _typing(*answers: str) -> passphrase_source.Ask:
    left: Iterator[str] = iter(answers)
    return lambda _prompt: next(left)


def test_passphrase_file_has_priority_over_the_environment_and_the_terminal(tmp_path: Path) -> None:
    """A passphrase file has priority over the environment, which has priority over the terminal."""
    file = tmp_path / "p"
    file.write_bytes(b"from file\n")

    assert passphrase_source.existing("from env", file, _typing("typed")) == b"from file"
    assert passphrase_source.existing("from env", None, _typing("typed")) == b"from env"
    assert passphrase_source.existing(None, None, _typing("typed")) == b"typed"


def test_passphrase_is_the_first_line_of_the_passphrase_file(tmp_path: Path) -> None:
    """The line end and all later lines of a passphrase file are ignored."""
    file = tmp_path / "p"
    file.write_bytes(b" pass word \r\nnote\n")

    assert passphrase_source.existing(None, file) == b" pass word "


def test_unreadable_passphrase_file_is_reported_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing.*No such file"):
        passphrase_source.existing(None, tmp_path / "missing")


def test_first_line_without_an_end_is_not_cut_to_a_passphrase(tmp_path: Path) -> None:
    """A disk image or /dev/zero is certainly no passphrase file."""
    file = tmp_path / "p"
    file.write_bytes(b"x" * passphrase_source.PASSPHRASE_BYTES_MAX + b"\r\nnote")
    assert passphrase_source.from_file(file) == b"x" * passphrase_source.PASSPHRASE_BYTES_MAX

    for endless in (Path("/dev/zero"), file):
        with pytest.raises(PassphraseError, match="longer than 65536 bytes"):
            passphrase_source.from_file(endless)
        file.write_bytes(b"x" * (passphrase_source.PASSPHRASE_BYTES_MAX + 1) + b"\n")


def test_error_about_a_long_first_line_says_what_earlier_versions_read(tmp_path: Path) -> None:
    """Earlier versions cut the line; the command writes the part that they used to a file."""
    file, new = tmp_path / "a b", tmp_path / "new"
    file.write_bytes(b"x" * (passphrase_source.PASSPHRASE_BYTES_MAX + 1))

    with pytest.raises(PassphraseError) as caught:
        passphrase_source.from_file(file)
    command = str(caught.value).rpartition(": ")[2].replace("NEW", shlex.quote(str(new)))
    subprocess.run(["sh", "-c", command], check=True)

    assert passphrase_source.from_file(new) == b"x" * passphrase_source.PASSPHRASE_BYTES_MAX


def test_only_a_regular_file_that_others_can_read_causes_a_warning(tmp_path: Path) -> None:
    """The warning advises "chmod 600", which for /dev/null or a directory would harm the host."""
    file = tmp_path / "p"
    file.touch(0o644)
    file.chmod(0o644)
    tmp_path.chmod(0o755)
    assert passphrase_source.readable_by_others(file).endswith("chmod 600")
    assert not passphrase_source.readable_by_others(tmp_path)
    assert not passphrase_source.readable_by_others(Path("/dev/null"))


def test_empty_passphrase_is_refused(tmp_path: Path) -> None:
    """An empty passphrase is refused from a file, the environment and the terminal."""
    file = tmp_path / "p"
    file.write_bytes(b"\nx\n")

    with pytest.raises(PassphraseError, match="first line"):
        passphrase_source.existing(None, file)
    with pytest.raises(PassphraseError, match="empty"):
        passphrase_source.existing("", None)
    with pytest.raises(PassphraseError, match="empty"):
        passphrase_source.new(None, None, _typing("", ""))


def test_new_passphrase_is_requested_twice() -> None:
    """A new passphrase is refused if the user types it differently the second time."""
    assert passphrase_source.new(None, None, _typing("ü", "ü")) == "ü".encode()
    with pytest.raises(PassphraseError, match="differ"):
        passphrase_source.new(None, None, _typing("a", "b"))


def test_missing_passphrase_is_an_error_without_a_terminal() -> None:
    """The program does not wait for input that cannot be entered."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from s3fs_meta.console import passphrase_source as p\n"
            "try: p.existing(None, None)\n"
            "except Exception as e: print(type(e).__name__, e)",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )

    assert done.stdout.startswith("PassphraseError no terminal")


@pytest.mark.parametrize(
    ("typed", "why"), [(b"\x04", "no passphrase was typed"), (b"\xfc\n", "is not valid utf-8")]
)
def test_answer_without_a_valid_passphrase_is_an_error(typed: bytes, why: str) -> None:
    """Ctrl-D at the prompt, or a letter in another character encoding, is not a bug."""
    code = (
        "import fcntl, sys, termios\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "from s3fs_meta.console import boundary, passphrase_source\n"
        "sys.exit(boundary.run(lambda: len(passphrase_source.ask_terminal('Passphrase: '))))"
    )
    ours, theirs = pty.openpty()
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUTF8": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stderr is not None
        assert process.stderr.read(len("Passphrase: ")) == b"Passphrase: "
        os.write(ours, typed)
        said = process.stderr.read().decode()
    os.close(ours)
    os.close(theirs)

    assert process.returncode == ExitStatus.PASSPHRASE
    assert said.startswith("\ns3fs-meta: ")
    assert why in said
    assert said.count("\n") == 2
