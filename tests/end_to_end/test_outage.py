"""Tests of a bucket that becomes unreachable during a mount, and later reachable again.

During the outage cached content can be read, and metadata requests are answered. Writes succeed
until the cache is full. Then they fail with ENOSPC after ``write_timeout``. Reads of uncached
content fail with EIO after ``read_timeout``. No data is lost.
"""

import contextlib
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest

from tests.cli.conftest import Place
from tests.end_to_end.contents import MIB, contents, differing, write_synced, write_until_refused
from tests.end_to_end.system_calls import drop_page_cache, refused
from tests.polling import PROCESS_S_MAX, wait_until
from tests.programs import QuickProgram, suspend, wait_until_gone
from tests.servers import S3Server, running_s3, running_versitygw, versitygw_program

pytestmark = pytest.mark.mount

OPTIONS = "read_timeout=2,write_timeout=1,cachesize=64M"
PATIENT = "read_timeout=1h,cachesize=64M"  # No read times out during an outage.
WAITING = 450  # This number exceeds pyfuse3's number of worker tasks.
FORWARDED_MIN = 12  # The kernel forwards at least so many direct reads at the same time (fuse(4)).


class Cold(NamedTuple):
    """A mount on a host without local state, which must read all content from the bucket."""

    url: str
    mountpoint: Path
    program: QuickProgram
    content: dict[str, bytes]

    def elsewhere(self) -> QuickProgram:
        """Return a runner of the command for another host, with separate local state."""
        other = QuickProgram(self.program.cachedir.with_name("third-state"))
        other.environment = self.program.environment
        return other


def make_cold(
    url: str,
    mountpoint: Path,
    program: QuickProgram,
    more: Mapping[str, bytes] | None = None,
    options: str = OPTIONS,
) -> Cold:
    """Make a filesystem with some files in the bucket, and mount it without local state."""
    content = {"warm": os.urandom(100_000), "cold": os.urandom(6 * MIB), **(more or {})}
    program.ok("mkfs", "--plain", url)
    program.ok("mount", url, mountpoint)
    for name, data in content.items():
        (mountpoint / name).write_bytes(data)
    program.ok("umount", mountpoint)
    program.cachedir = program.cachedir.with_name("second-state")
    program.ok("mount", "-o", options, url, mountpoint)
    assert (mountpoint / "warm").read_bytes() == content["warm"]
    return Cold(url, mountpoint, program, content)


@pytest.fixture
def cold(empty: Place, program: QuickProgram) -> Cold:
    """Return a mount without local state, whose bucket is a local directory."""
    return make_cold(empty.url, empty.mountpoint, program)


@contextlib.contextmanager
def away(bucket: Path) -> Iterator[None]:
    """Make the directory of the bucket unavailable until the context ends."""
    elsewhere = bucket.with_name("bucket-away")
    bucket.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(bucket)


def read_direct(path: Path, offset: int = 0) -> bytes:
    """Read a page of a file, bypassing the kernel's page cache and read-ahead."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.pread(fd, 4096, offset)
    finally:
        os.close(fd)


def require_work_in_an_outage(cold: Cold) -> None:
    """Run operations that must succeed during an outage, and a read that must fail."""
    mnt = cold.mountpoint
    drop_page_cache(mnt / "warm")
    assert (mnt / "warm").read_bytes() == cold.content["warm"]
    assert (mnt / "cold").stat().st_size == 6 * MIB
    with refused(errno.EIO):
        read_direct(mnt / "cold")
    cold.content["new"] = os.urandom(2 * MIB + 17)
    write_synced(mnt / "new", cold.content["new"])
    (mnt / "d").mkdir()
    (mnt / "warm").rename(mnt / "d" / "warm")
    cold.content["d/warm"] = cold.content.pop("warm")
    drop_page_cache(mnt / "new")
    assert (mnt / "new").read_bytes() == cold.content["new"]


def assert_nothing_is_lost(cold: Cold) -> None:
    """Unmount, compare every byte on another host, and run fsck."""
    cold.program.ok("umount", cold.mountpoint)
    other = cold.elsewhere()
    other.ok("mount", "-o", "ro", cold.url, cold.mountpoint)
    found = contents(cold.mountpoint)
    other.ok("umount", cold.mountpoint)
    assert differing(found, cold.content) == []
    other.ok("fsck", "-n", "--deep", cold.url)


def test_flush_that_begins_during_an_outage_completes_when_the_outage_ends(
    cold: Cold, empty: Place
) -> None:
    with away(empty.bucket):
        require_work_in_an_outage(cold)
        flush = cold.program.begin("flush", cold.mountpoint)
        assert flush.stderr is not None
        assert any("uploading" in line for line in flush.stderr)
        assert cold.program.status(cold.mountpoint)["state"] == "serving"
    flush.communicate(timeout=PROCESS_S_MAX)
    assert flush.returncode == 0

    assert read_direct(cold.mountpoint / "cold") == cold.content["cold"][:4096]
    assert cold.program.status(cold.mountpoint)["upload"]["pending_blocks"] == 0
    assert_nothing_is_lost(cold)


def test_clone_of_the_present_prints_the_upload_that_it_waits_for(cold: Cold, empty: Place) -> None:
    """Without a terminal there is no progress bar, so the command prints lines."""
    source, copy = cold.mountpoint / "new", cold.mountpoint / "copy"
    with away(empty.bucket):
        write_synced(source, b"new content")
        clone = cold.program.begin("clone", "--at=now", source, copy)
        assert clone.stderr is not None
        assert any("uploading 11 B in 1 block" in line for line in clone.stderr)
    clone.communicate(timeout=PROCESS_S_MAX)
    assert clone.returncode == 0
    assert copy.read_bytes() == b"new content"


def in_threads(count: int, work: Callable[[int], None]) -> list[threading.Thread]:
    """Run a function in several threads; return the threads."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def use_metadata(cold: Cold) -> None:
    """Make and list directories; the daemon needs no bucket to do this."""
    for number in range(20):
        (cold.mountpoint / f"d{number}").mkdir()
        assert f"d{number}" in os.listdir(cold.mountpoint)
        assert (cold.mountpoint / "cold").stat().st_size == 6 * MIB


def use_content(cold: Cold) -> None:
    """Write a file; the daemon needs no bucket to do this."""
    write_synced(cold.mountpoint / "f", b"x")
    cold.content["f"] = b"x"


def read_some(cold: Cold, number: int) -> bool:
    """Read one of many pages of a large file; return whether its content is correct."""
    offset = number % 6 * MIB + 4096 * (number // 6)
    return read_direct(cold.mountpoint / "cold", offset) == cold.content["cold"][offset:][:4096]


def test_metadata_requests_are_answered_while_450_readers_wait(
    empty: Place, program: QuickProgram
) -> None:
    """All reads wait until the end of the outage, and then succeed."""
    cold = make_cold(empty.url, empty.mountpoint, program, options=PATIENT)
    begun: list[int] = []
    outcomes: list[bool] = []

    def read(number: int) -> None:
        begun.append(number)
        outcomes.append(read_some(cold, number))

    with away(empty.bucket):
        readers = in_threads(WAITING, read)
        wait_until(lambda: len(begun) == WAITING, "the threads did not begin")
        wait_until(
            lambda: program.status(cold.mountpoint)["latency"]["waiting"] >= FORWARDED_MIN,
            "the daemon did not receive the reads",
        )
        use_metadata(cold)
        assert not outcomes
    for reader in readers:
        reader.join()

    assert outcomes == [True] * WAITING
    assert_nothing_is_lost(cold)


def test_waiting_reads_of_450_readers_fail_or_succeed(cold: Cold, empty: Place) -> None:
    """Each of the reads fails with EIO, or succeeds if the outage ends in time."""
    outcomes: list[object] = []

    def read(number: int) -> None:
        try:
            outcomes.append(read_some(cold, number))
        except OSError as exc:
            outcomes.append(exc.errno)

    with away(empty.bucket):
        readers = in_threads(WAITING, read)
        wait_until(lambda: outcomes, "no read has failed")
        use_content(cold)
    for reader in readers:
        reader.join()

    assert errno.EIO in outcomes
    assert set(outcomes) <= {errno.EIO, True}
    assert len(outcomes) == WAITING
    assert_nothing_is_lost(cold)


def test_metadata_requests_are_answered_while_450_truncations_wait(
    empty: Place, program: QuickProgram
) -> None:
    """The kernel does not limit waiting truncations, so the daemon refuses some with EAGAIN."""
    names = [f"small{number}" for number in range(WAITING)]
    more = dict.fromkeys(names, b"x" * 100)
    cold = make_cold(empty.url, empty.mountpoint, program, more, PATIENT)
    outcomes: list[int | None] = []

    def cut(number: int) -> None:
        try:
            os.truncate(cold.mountpoint / names[number], 50)
        except OSError as exc:
            outcomes.append(exc.errno)
        else:
            outcomes.append(0)
            cold.content[names[number]] = b"x" * 50

    with away(empty.bucket):
        waiting = in_threads(WAITING, cut)
        wait_until(lambda: outcomes, "no request was refused with EAGAIN")
        use_metadata(cold)
        use_content(cold)
        assert set(outcomes) == {errno.EAGAIN}
    for thread in waiting:
        thread.join()

    assert set(outcomes) == {errno.EAGAIN, 0}
    assert len(outcomes) == WAITING
    assert_nothing_is_lost(cold)


def test_writes_to_a_full_cache_fail_and_lose_no_data(cold: Cold, empty: Place) -> None:
    """While the cache is full, writes fail with ENOSPC after ``write_timeout``."""
    mnt = cold.mountpoint
    with away(empty.bucket):
        taken = write_until_refused(mnt, 70)
        cold.content.update(taken)
        assert len(taken) > 50
        assert (mnt / "full-0").read_bytes() == taken["full-0"]
    cold.content["after"] = os.urandom(3 * MIB)
    cold.program.ok("flush", mnt)
    write_synced(mnt / "after", cold.content["after"])

    assert_nothing_is_lost(cold)


@pytest.mark.slow
def test_unmount_during_an_outage_keeps_unshipped_data_on_this_host(
    cold: Cold, empty: Place
) -> None:
    """An interrupted umount keeps the mount in place. SIGTERM keeps dirty data on this host."""
    cold.content["new"] = os.urandom(2 * MIB)
    pid = cold.program.status(cold.mountpoint)["pid"]
    with away(empty.bucket):
        (cold.mountpoint / "new").write_bytes(cold.content["new"])
        with waiting_for_the_bucket(cold, "umount") as unmount:
            unmount.send_signal(signal.SIGINT)
            assert unmount.wait(PROCESS_S_MAX) == 130
        assert (cold.mountpoint / "new").read_bytes() == cold.content["new"]
        subprocess.run(["umount", cold.mountpoint], check=True)
        with waiting_for_the_bucket(cold, "umount") as unmount:
            os.kill(pid, signal.SIGTERM)
            _output, said = unmount.communicate(timeout=PROCESS_S_MAX)
            assert "the rest stays on this host" in said
            assert unmount.returncode == 9
        wait_until_gone(pid)
    cold.program.ok("mount", cold.url, cold.mountpoint)

    assert (cold.mountpoint / "new").read_bytes() == cold.content["new"]
    assert_nothing_is_lost(cold)


@pytest.mark.slow
def test_forced_umount_during_an_outage_keeps_changes_on_this_host(
    cold: Cold, empty: Place
) -> None:
    cold.content["new"] = os.urandom(2 * MIB)
    pid = cold.program.status(cold.mountpoint)["pid"]
    with away(empty.bucket):
        (cold.mountpoint / "new").write_bytes(cold.content["new"])
        done = cold.program.run("umount", "--force", cold.mountpoint)
        wait_until_gone(pid)

    assert done.returncode == 9
    assert "unmounted, but not everything is in the bucket (bucket unavailable for" in done.stderr
    assert "the rest stays on this host, and the next mount uploads it" in done.stderr
    cold.program.ok("mount", cold.url, cold.mountpoint)
    assert (cold.mountpoint / "new").read_bytes() == cold.content["new"]
    assert_nothing_is_lost(cold)


@pytest.mark.slow
def test_forced_umount_stops_a_daemon_that_still_uploads(cold: Cold, empty: Place) -> None:
    """After an unmount, umount --force ends the daemon, which is waiting for its upload."""
    cold.content["new"] = os.urandom(2 * MIB)
    pid = cold.program.status(cold.mountpoint)["pid"]
    with away(empty.bucket):
        (cold.mountpoint / "new").write_bytes(cold.content["new"])
        subprocess.run(["umount", cold.mountpoint], check=True)
        done = cold.program.run("umount", "--force", cold.mountpoint)
        wait_until_gone(pid)

    assert (done.returncode, "the rest stays on this host" in done.stderr) == (9, True)
    cold.program.ok("mount", cold.url, cold.mountpoint)
    assert_nothing_is_lost(cold)


@contextlib.contextmanager
def waiting_for_the_bucket(cold: Cold, command: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a command; yield it after it has reported that it waits for the bucket."""
    with cold.program.begin(command, cold.mountpoint) as process:
        try:
            assert process.stderr is not None
            assert f"uploading 2 MiB in 2 blocks (about 1 pack) to {cold.url}\n" in (
                process.stderr.readline()
            )
            wanted = f"requests to {cold.url} have failed for"
            assert any(wanted in line for line in process.stderr)
            yield process
        finally:
            process.kill()


# --- outage of an S3 server -----------------------------------------------------------------------


@pytest.fixture
def folder_of_server(tmp_path: Path) -> Path:
    """Return an empty directory for a server's data."""
    folder = tmp_path / "server"
    folder.mkdir()
    return folder


def make_cold_on(server: S3Server, place: Place, program: QuickProgram) -> Cold:
    """Make a bucket on a server and a filesystem in the bucket; mount without local state."""
    server.make_bucket("bucket")
    program.environment |= {**server.environment(), "AWS_ENDPOINT_URL": server.endpoint_url}
    return make_cold("s3://bucket/home", place.mountpoint, program)


@pytest.mark.s3
def test_hanging_server_does_not_block_the_mount(
    empty: Place, program: QuickProgram, folder_of_server: Path
) -> None:
    """Connections to a suspended server hang, as in a broken network."""
    with running_s3(folder_of_server) as server:
        cold = make_cold_on(server, empty, program)
        with stopped(server):
            require_work_in_an_outage(cold)

        cold.program.ok("flush", cold.mountpoint)
        assert_nothing_is_lost(cold)


@contextlib.contextmanager
def stopped(server: S3Server) -> Iterator[None]:
    """Suspend a server until the context ends, so that connections to the server hang."""
    assert server.process is not None
    suspend(server.process.pid)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def shown(
    program: QuickProgram, words: tuple[str | Path, ...], *, on_terminal: bool
) -> Iterator[tuple["subprocess.Popen[str]", TextIO]]:
    """Start a command with a terminal or a pipe as stderr; yield the process and its stderr."""
    reader, writer = os.openpty() if on_terminal else os.pipe()
    with (
        program.begin(*words, stderr=writer) as process,
        os.fdopen(reader, encoding="utf-8", errors="replace") as text,
    ):
        os.close(writer)
        try:
            yield process, text
        finally:
            process.kill()


def until(text: TextIO, part: str) -> str:
    """Return the first line of the output that contains *part*."""
    for line in text:
        if part in line:
            return line
    raise AssertionError(f"no line of the command's output contains {part!r}")


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("on_terminal", [True, False])
def test_warm_command_reports_that_the_server_hangs(
    empty: Place, program: QuickProgram, folder_of_server: Path, on_terminal: bool
) -> None:
    """The warm command names the bucket and the server that hangs, and later continues."""
    with running_s3(folder_of_server) as server:
        cold = make_cold_on(server, empty, program)
        with (
            stopped(server),
            shown(program, ("warm", cold.mountpoint), on_terminal=on_terminal) as (process, text),
        ):
            line = until(text, "no response")
            assert f"no response from {cold.url} at {server.endpoint_url} for" in line
            assert server.process is not None
            server.process.send_signal(signal.SIGCONT)
            assert process.wait(PROCESS_S_MAX) == 0
        assert_nothing_is_lost(cold)


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("on_terminal", [True, False])
@pytest.mark.parametrize("words", [("flush", "--json"), ("umount",)])
def test_interrupted_command_reports_changes_that_a_hanging_server_has_not_received(
    empty: Place,
    program: QuickProgram,
    folder_of_server: Path,
    words: tuple[str, ...],
    on_terminal: bool,
) -> None:
    """The interrupted command prints bucket, server and size of changes, and the mount stays."""
    with running_s3(folder_of_server) as server:
        cold = make_cold_on(server, empty, program)
        where = f"{cold.url} at {server.endpoint_url}"
        with stopped(server):
            cold.content["new"] = os.urandom(2 * MIB)
            write_synced(cold.mountpoint / "new", cold.content["new"])
            with shown(program, (*words, cold.mountpoint), on_terminal=on_terminal) as (
                process,
                text,
            ):
                assert f"uploading 2 MiB in 2 blocks (about 1 pack) to {where}" in until(
                    text, "uploading"
                )
                assert where in until(text, "no response")
                process.send_signal(signal.SIGINT)
                remains = until(text, "interrupted")
                assert process.wait(PROCESS_S_MAX) == 130
            assert "only on this host: 2 MiB in 2 blocks" in remains
            assert f"{cold.mountpoint} stays mounted and continues to upload" in remains
            assert f"run: s3fs-meta {words[0]} {cold.mountpoint}" in remains
            assert (cold.mountpoint / "new").read_bytes() == cold.content["new"]

        program.ok("flush", cold.mountpoint)
        assert_nothing_is_lost(cold)


@pytest.mark.s3
@pytest.mark.slow
def test_keep_command_reports_that_the_server_hangs(
    empty: Place, program: QuickProgram, folder_of_server: Path
) -> None:
    """The keep command names the server during its upload; Ctrl-C reports what may remain."""
    with running_s3(folder_of_server) as server:
        cold = make_cold_on(server, empty, program)
        with stopped(server):
            cold.content["new"] = os.urandom(2 * MIB)
            write_synced(cold.mountpoint / "new", cold.content["new"])
            words = ("keep", cold.mountpoint, "point")
            with shown(program, words, on_terminal=False) as (process, text):
                assert f"to {cold.url} at {server.endpoint_url}" in until(text, "uploading")
                process.send_signal(signal.SIGINT)
                listing = f"s3fs-meta keep --list --cachedir {program.cachedir} {cold.url}"
                assert listing in until(text, "interrupted")
                assert process.wait(PROCESS_S_MAX) == 130

        program.ok("flush", cold.mountpoint)
        assert_nothing_is_lost(cold)


@pytest.mark.s3
@pytest.mark.skipif(versitygw_program() is None, reason="moto loses all objects when it stops")
def test_server_that_refuses_connections_does_not_block_the_mount(
    empty: Place, program: QuickProgram, folder_of_server: Path
) -> None:
    with running_versitygw(folder_of_server) as server:
        cold = make_cold_on(server, empty, program)
    require_work_in_an_outage(cold)
    port = int(server.endpoint_url.rpartition(":")[2])
    with running_versitygw(folder_of_server, port=port):
        cold.program.ok("flush", cold.mountpoint)
        assert_nothing_is_lost(cold)
