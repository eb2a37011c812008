"""Tests of hiding a passphrase in the environment from other processes and child processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contrib.bench import machine
from s3fs_meta.console.secret_environment import VARIABLE, take
from tests.cli.conftest import Place
from tests.programs import ROOT, Program

pytestmark = pytest.mark.thorough

SECRET = "correct horse battery staple"

_TAKES = f"""
import os, subprocess, sys
from s3fs_meta.console import passphrase_source, secret_environment
before = open("/proc/self/environ", "rb").read()
secret_environment.take()
secret_environment.take()
child = subprocess.run([sys.executable, "-c", "import os; print(dict(os.environ))"],
                       capture_output=True, text=True, check=True)
print(b"{SECRET}" in before, b"{SECRET}" in open("/proc/self/environ", "rb").read())
print("{SECRET}" in child.stdout, "{SECRET}" in str(os.environ), "OTHER" in child.stdout)
print(passphrase_source.from_environment())
pid = os.fork()
if pid == 0:
    print(b"{SECRET}" in open(f"/proc/{{os.getpid()}}/environ", "rb").read(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def test_passphrase_is_overwritten_in_proc_environ() -> None:
    """Child processes inherit all variables except the passphrase."""
    done = subprocess.run(
        [sys.executable, "-u", "-c", _TAKES],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, VARIABLE: SECRET, "OTHER": "stays", "PYTHONPATH": str(ROOT)},
    )

    assert done.stdout.split("\n") == [
        "True False",
        "False False True",
        SECRET,
        "False",
        "",
    ]


def test_proc_environ_without_a_passphrase_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path("/proc/self/environ").read_bytes()
    take()
    assert Path("/proc/self/environ").read_bytes() == before

    monkeypatch.setenv(f"{VARIABLE}_FILE", "kept")
    take()

    assert os.environ[f"{VARIABLE}_FILE"] == "kept"
    assert Path("/proc/self/environ").read_bytes() == before


@pytest.mark.mount
@pytest.mark.parametrize("module", ["s3fs_meta", "s3fs_meta.cli.mount_helper"])
def test_daemon_does_not_expose_its_passphrase(empty: Place, program: Program, module: str) -> None:
    """No process of the daemon or of the mount helper has the passphrase in its environment."""
    program.executes = True
    program.environment[VARIABLE] = SECRET
    program.ok("mkfs", empty.url)
    here = module == "s3fs_meta"
    words = ["mount"] if here else ["-o", f"cachedir={program.cachedir}"]
    done = program.run(*words, empty.url, empty.mountpoint, module=module, here=here)
    assert done.returncode == 0, done.stderr
    try:
        shown = _environments(program.status(empty.mountpoint)["pid"])
        assert shown
        assert [one for one in shown if SECRET.encode() in one] == []
    finally:
        program.ok("umount", empty.mountpoint)


@pytest.mark.mount
def test_daemon_keeps_the_bucket_credentials_in_its_environment(
    place: Place, program: Program
) -> None:
    """The daemon reads the credentials again if the store refuses them; see SECURITY.md."""
    program.executes = True  # /proc/PID/environ changes only at execve(2).
    program.environment["AWS_SECRET_ACCESS_KEY"] = SECRET
    program.ok("mount", place.url, place.mountpoint)
    try:
        assert SECRET.encode() in _environments(program.status(place.mountpoint)["pid"])[0]
    finally:
        program.ok("umount", place.mountpoint)


def _environments(pid: int) -> list[bytes]:
    """Return the environments of a process and all its descendants."""
    return [Path(f"/proc/{each}/environ").read_bytes() for each in machine.family(pid)]
