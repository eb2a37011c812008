"""Tests of followers on real mounts: one writer and two followers of one filesystem."""

import contextlib
import errno
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.end_to_end.hosts import Host, host
from tests.polling import PROCESS_S_MAX
from tests.programs import suspend, wait_until_gone

pytestmark = pytest.mark.mount

_WRITES = "sync_interval=60"  # The long interval delays uploads until a flush.
_FOLLOWS = "ro,follow,poll=0.1"


class Trio(NamedTuple):
    """Three hosts: one writer and two followers."""

    writer: Host
    first: Host
    second: Host

    def ship(self) -> None:
        """Upload all writes, and wait until the two followers show the writes."""
        txg = self.writer.ship()
        self.first.wait_for(txg)
        self.second.wait_for(txg)


@pytest.fixture
def hosts(place: Place, tmp_path: Path) -> Iterator[Trio]:
    """Return three hosts that mount one filesystem."""
    with (
        host(tmp_path, place.url, "writer", _WRITES) as writer,
        host(tmp_path, place.url, "first", _FOLLOWS) as first,
        host(tmp_path, place.url, "second", _FOLLOWS) as second,
    ):
        yield Trio(writer, first, second)


def test_followers_show_uploaded_changes(hosts: Trio) -> None:
    """Followers show uploaded changes even if the kernel has cached older names and content."""
    ours, theirs = hosts.writer.mnt, (hosts.first.mnt, hosts.second.mnt)
    (ours / "d").mkdir()
    (ours / "kept").write_bytes(b"old")
    (ours / "d" / "moved").write_bytes(b"moved")
    (ours / "removed").write_bytes(b"x")
    (ours / "grown").write_bytes(b"a" * 5000)
    hosts.ship()
    for mnt in theirs:  # The kernel now caches all names, sizes and content.
        assert (mnt / "kept").read_bytes() == b"old"
        assert (mnt / "d" / "moved").read_bytes() == b"moved"
        assert (mnt / "grown").read_bytes() == b"a" * 5000
        assert (mnt / "removed").stat().st_size == 1
        assert not (mnt / "later").exists()

    (ours / "kept").write_bytes(b"new")  # The new content has the same size as the old.
    os.utime(ours / "kept", ns=(1, 1))
    (ours / "d" / "moved").rename(ours / "later")
    (ours / "removed").unlink()
    with (ours / "grown").open("ab") as file:
        file.write(b"b" * 3000)
    (ours / "d").chmod(0o700)
    hosts.ship()

    for mnt in theirs:
        assert (mnt / "kept").read_bytes() == b"new"
        assert (mnt / "kept").stat().st_mtime_ns == 1
        assert (mnt / "later").read_bytes() == b"moved"
        assert sorted(os.listdir(mnt)) == ["d", "grown", "kept", "later"]
        assert os.listdir(mnt / "d") == []
        assert not (mnt / "removed").exists()
        assert (mnt / "grown").read_bytes() == b"a" * 5000 + b"b" * 3000
        assert (mnt / "d").stat().st_mode & 0o777 == 0o700


def test_follower_refuses_changes_to_files(hosts: Trio) -> None:
    """A follower refuses changes with EROFS, although the kernel's mount is not read-only."""
    (hosts.writer.mnt / "f").write_bytes(b"x")
    hosts.ship()
    mnt = hosts.first.mnt

    for change in (
        lambda: (mnt / "f").open("r+b"),
        (mnt / "g").touch,
        (mnt / "f").unlink,
        lambda: (mnt / "f").chmod(0o600),
        lambda: os.truncate(mnt / "f", 0),
        (mnt / "d").mkdir,
    ):
        with pytest.raises(OSError, match="Read-only") as refused:
            change()
        assert refused.value.errno == errno.EROFS
    assert hosts.first.program.status(mnt)["state"] == "following"


def _generation_in_name(mnt: Path) -> int:
    """Return the highest generation in the names; raise FileNotFoundError if no name exists.

    A listing takes several requests. During a rename it may therefore show two names or no name.
    """
    names = os.listdir(mnt / "names")
    if not names:
        raise FileNotFoundError
    return max(map(int, names))


def _read_generations(mnt: Path, last: int) -> Iterator[int]:
    """Yield the generation that each kind of read returns in turn, until *last* is seen."""
    looks: tuple[Callable[[], int], ...] = (
        lambda: int((mnt / "a").read_bytes()),
        lambda: _generation_in_name(mnt),
        lambda: (mnt / "size").stat().st_size,
        lambda: int(os.readlink(mnt / "link")),
        lambda: int((mnt / "b").read_bytes()),
        lambda: (mnt / "mode").stat().st_mtime_ns,
    )
    seen = 0
    while seen < last:
        for look in looks:
            # A read may fail while the writer renames the file.
            with contextlib.suppress(FileNotFoundError):
                seen = look()
                yield seen


def _write_generation(mnt: Path, number: int) -> None:
    for name in ("a", "b"):
        (mnt / name).write_bytes(b"%09d" % number)  # The content always has 9 bytes.
    [present] = (mnt / "names").iterdir()
    present.rename(present.with_name(str(number)))
    os.truncate(mnt / "size", number)
    (mnt / "link.new").symlink_to(str(number))
    (mnt / "link.new").rename(mnt / "link")
    os.utime(mnt / "mode", ns=(number, number))


def test_follower_never_returns_to_an_earlier_state(hosts: Trio) -> None:
    ours = hosts.writer.mnt
    (ours / "names").mkdir()
    (ours / "names" / "0").touch()
    for name in ("size", "mode"):
        (ours / name).touch()
    _write_generation(ours, 1)
    hosts.ship()

    with ThreadPoolExecutor() as pool:
        readers = [
            pool.submit(lambda mnt: list(_read_generations(mnt, 30)), host.mnt)
            for host in (hosts.first, hosts.second)
        ]
        for number in range(2, 31):
            _write_generation(ours, number)
            hosts.writer.ship()
        seen = [reader.result(timeout=PROCESS_S_MAX) for reader in readers]

    for generations in seen:
        assert generations == sorted(generations)
        assert len(set(generations)) > 5


def test_follower_takes_over_from_a_killed_writer(hosts: Trio) -> None:
    """After the promotion, open files stay readable, and the other follower sees new writes."""
    writer, first, second = hosts
    (writer.mnt / "f").write_bytes(b"before")
    (writer.mnt / "open").write_bytes(b"open")
    hosts.ship()
    with (first.mnt / "open").open("rb") as held:
        pid = writer.pid
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        refused = first.program.run("promote", first.mnt)
        assert refused.returncode == ExitStatus.HELD
        assert "--takeover" in refused.stderr
        assert first.program.status(first.mnt)["state"] == "following"

        first.program.ok("promote", "--takeover", first.mnt)

        assert held.read() == b"open"
    assert (first.mnt / "f").read_bytes() == b"before"
    (first.mnt / "f").write_bytes(b"after")
    (first.mnt / "new").mkdir()
    found = first.program.status(first.mnt)
    assert (found["state"], found["read_only"]) == ("serving", False)
    second.wait_for(first.ship())
    assert (second.mnt / "f").read_bytes() == b"after"
    assert sorted(os.listdir(second.mnt)) == ["f", "new", "open"]


def test_writer_that_resumes_after_a_promotion_is_fenced(hosts: Trio, place: Place) -> None:
    """A writer that SIGCONT resumes is fenced, and the new writer's file is intact."""
    writer, first, second = hosts
    (writer.mnt / "f").write_bytes(b"shipped")
    hosts.ship()
    (writer.mnt / "f").write_bytes(b"not shipped")
    pid = writer.pid
    suspend(pid)
    try:
        first.program.ok("promote", "--takeover", first.mnt)
        (first.mnt / "f").write_bytes(b"of the new one")
        txg = first.ship()
    finally:
        os.kill(pid, signal.SIGCONT)

    assert writer.program.run("flush", writer.mnt).returncode == ExitStatus.FENCED
    assert writer.program.status(writer.mnt)["state"] == "fenced"
    with pytest.raises(OSError, match="Read-only"):
        (writer.mnt / "g").touch()
    second.wait_for(txg)
    assert (second.mnt / "f").read_bytes() == b"of the new one"
    for one in (writer, first, second):
        one.program.run("umount", one.mnt)
    first.program.ok("fsck", "-n", place.url)


def test_follower_without_the_next_changelog_restores_an_image(hosts: Trio, place: Place) -> None:
    """After the restore, open files of a follower are readable, or fail with ESTALE if removed."""
    writer, first, _ = hosts
    for name in ("kept", "gone", "changed"):
        (writer.mnt / name).write_bytes(b"old")
    hosts.ship()
    assert [(first.mnt / name).read_bytes() for name in ("kept", "gone", "changed")] == [b"old"] * 3
    assert not (first.mnt / "new").exists()
    pid = first.pid
    txg = first.program.status(first.mnt)["chain"]["txg"]
    with (first.mnt / "kept").open("rb") as kept, (first.mnt / "gone").open("rb") as gone:
        suspend(pid)
        try:
            (writer.mnt / "gone").unlink()
            writer.ship()
            (writer.mnt / "changed").write_bytes(b"new")
            (writer.mnt / "new").write_bytes(b"new")
            last = json.loads(writer.program.ok("flush", "--image", "--json", writer.mnt))["txg"]
            [changelog] = place.bucket.rglob(f"*{txg + 1:012d}*")
            changelog.unlink()  # Simulate that retention has deleted the changelog.
        finally:
            os.kill(pid, signal.SIGCONT)
        first.wait_for(last)

        assert kept.read() == b"old"
        with pytest.raises(OSError, match="Stale"):
            gone.read()
    assert sorted(os.listdir(first.mnt)) == ["changed", "kept", "new"]
    assert (first.mnt / "changed").read_bytes() == b"new"
    assert (first.mnt / "new").read_bytes() == b"new"
    assert not (first.mnt / "gone").exists()


def test_followers_see_cloned_and_removed_trees(hosts: Trio) -> None:
    """Followers show a complete clone, and they show no cached name of a removed tree."""
    ours, theirs = hosts.writer.mnt, (hosts.first.mnt, hosts.second.mnt)
    for number in range(40):
        (ours / "tree" / f"d{number}").mkdir(parents=True)
        (ours / "tree" / f"d{number}" / "f").write_bytes(b"%d" % number * 3000)
    (ours / "tree" / "linked").hardlink_to(ours / "tree" / "d3" / "f")
    hosts.ship()
    program = hosts.writer.program
    program.ok("clone", ours / "tree", ours / "copy")
    program.ok("lock", ours / "copy")
    hosts.ship()
    for mnt in theirs:
        subprocess.run(["diff", "-r", ours / "tree", mnt / "copy"], check=True)
        assert (mnt / "copy" / "linked").samefile(mnt / "copy" / "d3" / "f")
        assert sorted(os.listdir(mnt)) == ["copy", "tree"]
        with (mnt / "tree" / "d5" / "f").open("rb") as file:
            assert file.read(2) == b"55"

    program.ok("rm", "--wait", ours / "tree")
    hosts.ship()
    for mnt in theirs:
        assert os.listdir(mnt) == ["copy"]
        assert not (mnt / "tree" / "d5" / "f").exists()
        figures = os.statvfs(mnt)
        # One of the 40 files has the second name "linked".
        assert figures.f_files - figures.f_ffree == 1 + 1 + 40 + 40
        subprocess.run(["diff", "-r", ours / "copy", mnt / "copy"], check=True)
