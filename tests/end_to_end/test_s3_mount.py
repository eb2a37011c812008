"""A bucket on a real S3 server, lived on: compiled in, cloned into, killed, moved to another host."""

import contextlib
import os
import signal
import subprocess
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place, wait_until_gone
from tests.end_to_end.contents import contents, differing
from tests.programs import QuickProgram
from tests.servers import S3Server

pytestmark = [pytest.mark.mount, pytest.mark.s3]

URL = "s3://bucket/home"
SOURCE = Path(sysconfig.get_path("stdlib")) / "email"

MAIN = """
#include <stdio.h>
#include "parts.h"
int main(void) { printf("%d\\n", PARTS); return 0; }
"""
MAKEFILE = """
OBJECTS = main.o PARTS_OBJECTS
program: $(OBJECTS)
\tgcc -o $@ $(OBJECTS)
%.o: %.c parts.h
\tgcc -c -o $@ $<
"""


@pytest.fixture
def on_server(
    empty: Place, program: QuickProgram, bucket: S3Server, request: pytest.FixtureRequest
) -> Place:
    """Return a place with an encrypted filesystem in the bucket, mounted."""
    place = empty._replace(url=f"{URL}/{request.node.name}")
    program.environment |= {
        **bucket.environment(),
        "AWS_ENDPOINT_URL": bucket.endpoint_url,
        "S3FS_META_PASSPHRASE": "correct horse battery staple",
    }
    program.ok("mkfs", place.url)
    program.ok("mount", place.url, place.mountpoint)
    return place


def run(*command: str | Path, here: Path) -> str:
    """Run a program that must succeed; return what it prints."""
    done = subprocess.run(command, cwd=here, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_project(folder: Path, parts: int) -> None:
    """Write a small C program in several files."""
    folder.mkdir()
    names = [f"part{number}" for number in range(parts)]
    for number, name in enumerate(names):
        (folder / f"{name}.c").write_text(f"int {name}(void) {{ return {number}; }}\n")
    declared = "\n".join(f"int {name}(void);" for name in names)
    (folder / "parts.h").write_text(
        f"{declared}\n#define PARTS {' + '.join(f'{name}()' for name in names)}\n"
    )
    (folder / "main.c").write_text(MAIN)
    objects = " ".join(f"{name}.o" for name in names)
    (folder / "Makefile").write_text(MAKEFILE.replace("PARTS_OBJECTS", objects))


def make_repository(folder: Path) -> None:
    """Make a git repository with some commits and a file of a few MiB."""
    write_project(folder, 5)
    git(folder, "init", "-q", "-b", "main")
    for number in range(5):
        (folder / "random").write_bytes(os.urandom(500_000))
        (folder / f"part{number}.c").write_text(f"int part{number}(void) {{ return 1; }}\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"change {number}")


def git(folder: Path, *words: str | Path) -> str:
    """Run git with a made-up author."""
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "gc.auto=0"]
    return run("git", *who, *words, here=folder)


def modes(root: Path) -> dict[str, int]:
    """Return the modes of everything below a directory."""
    return {str(path.relative_to(root)): path.lstat().st_mode for path in root.rglob("*")}


def remount_elsewhere(place: Place, program: QuickProgram) -> QuickProgram:
    """Unmount, and mount on a machine without local state."""
    program.ok("umount", place.mountpoint)
    other = QuickProgram(program.cachedir.with_name("other-state"))
    other.environment = program.environment
    other.ok("mount", place.url, place.mountpoint)
    return other


def test_program_is_compiled_and_a_repository_cloned_in_a_bucket(
    on_server: Place, program: QuickProgram, tmp_path: Path
) -> None:
    """And on another machine every byte and mode is the same, and still works."""
    mnt = on_server.mountpoint
    make_repository(tmp_path / "origin")
    write_project(tmp_path / "project", 8)
    run("tar", "-cf", tmp_path / "p.tar", "project", here=tmp_path)
    run("tar", "-xf", tmp_path / "p.tar", here=mnt)
    run("make", "-j4", here=mnt / "project")
    assert run("./program", here=mnt / "project") == "28\n"
    assert "up to date" in run("make", here=mnt / "project")
    git(mnt, "clone", "-q", "--no-local", tmp_path / "origin", "clone")
    git(mnt / "clone", "fsck", "--full", "--strict")
    run("make", here=mnt / "clone")
    assert run("./program", here=mnt / "clone") == "5\n"
    expected, expected_modes = contents(mnt), modes(mnt)

    other = remount_elsewhere(on_server, program)

    assert differing(contents(mnt), expected) == []
    assert modes(mnt) == expected_modes
    assert run("./program", here=mnt / "project") == "28\n"
    assert "up to date" in run("make", here=mnt / "project")
    git(mnt / "clone", "fsck", "--full", "--strict")
    assert git(mnt / "clone", "status", "--porcelain", "--untracked-files=no") == ""
    other.ok("umount", mnt)
    other.ok("fsck", "-n", "--deep", on_server.url)


class Copying(threading.Thread):
    """Copies files one after another, over and over, until that fails."""

    def __init__(self, sources: Sequence[Path], target: Path) -> None:
        super().__init__()
        self.sources, self.target = sources, target
        self.done: list[tuple[str, Path]] = []  # name of the copy, source

    @override
    def run(self) -> None:
        """Copy."""
        number = 0
        with contextlib.suppress(OSError):
            while True:
                source = self.sources[number % len(self.sources)]
                name = f"{number}-{source.name}"
                (self.target / name).write_bytes(source.read_bytes())
                self.done.append((name, source))
                number += 1


@contextlib.contextmanager
def copying(sources: Sequence[Path], target: Path) -> Iterator[Copying]:
    """Copy in a thread, which must have failed when the context ends."""
    thread = Copying(sources, target)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def test_daemon_that_is_killed_in_the_middle_of_a_copy_loses_nothing_synced(
    on_server: Place, program: QuickProgram
) -> None:
    """Synced files are complete, later ones are complete or a prefix; the copy can continue."""
    mnt = on_server.mountpoint
    sources = sorted(SOURCE.glob("*.py"))
    pid = program.status(mnt)["pid"]
    (mnt / "d").mkdir()
    with copying(sources, mnt / "d") as copy:
        while len(copy.done) < 20:
            pass
        synced = list(copy.done)
        directory = os.open(mnt, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        while len(copy.done) < len(synced) + 20:
            pass
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
    program.ok("mount", on_server.url, mnt)

    found = contents(mnt / "d")
    assert [name for name, source in synced if found.get(name) != source.read_bytes()] == []
    for name, source in copy.done:
        assert source.read_bytes().startswith(found.get(name, b""))
    for name, source in copy.done:
        (mnt / "d" / name).write_bytes(source.read_bytes())
    last = f"{len(copy.done)}-{sources[len(copy.done) % len(sources)].name}"
    (mnt / "d" / last).unlink(missing_ok=True)  # the copy that was killed
    other = remount_elsewhere(on_server, program)
    expected = {name: source.read_bytes() for name, source in copy.done}
    assert differing(contents(mnt / "d"), expected) == []
    other.ok("umount", mnt)
    other.ok("fsck", "-n", on_server.url)


@pytest.mark.parametrize(
    ("change", "url", "says"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, URL, "secret key"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, URL, "access key"),
        ({"AWS_ACCESS_KEY_ID": ""}, URL, "credentials"),
        ({}, "s3://missing-bucket/home", "bucket"),
    ],
    ids=["wrong secret", "unknown key", "no credentials", "missing bucket"],
)
def test_refusal_by_the_server_is_one_clear_line(
    empty: Place,
    program: QuickProgram,
    bucket: S3Server,
    change: dict[str, str],
    url: str,
    says: str,
) -> None:
    """With the status that scripts can tell, for every command that needs the bucket."""
    if bucket.make == "moto" and change:
        pytest.skip("moto checks no credentials")
    program.environment |= {**bucket.environment(), "AWS_ENDPOINT_URL": bucket.endpoint_url}
    program.environment |= change

    for words in (["mount", url, empty.mountpoint], ["mkfs", "--plain", url], ["status", url]):
        done = program.run(*words)
        assert says in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.returncode == ExitStatus.STORE_ACCESS
