"""Tests of everyday use with a real S3 server: compilation, git clone, kills, another host."""

import os
import signal
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.browse.serving import serving
from tests.cli.conftest import Place
from tests.end_to_end.conftest import URL
from tests.end_to_end.contents import contents, differing
from tests.end_to_end.projects import SOURCE, copying, modes, run, write_project
from tests.programs import QuickProgram, wait_until_gone
from tests.servers import S3Server

pytestmark = [pytest.mark.mount, pytest.mark.s3]


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
    """Run git with a made-up author name."""
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "gc.auto=0"]
    return run("git", *who, *words, here=folder)


def remount_elsewhere(place: Place, program: QuickProgram) -> QuickProgram:
    """Unmount, and then mount on a host without local state."""
    program.ok("umount", place.mountpoint)
    other = QuickProgram(program.cachedir.with_name("other-state"))
    other.environment = program.environment
    other.ok("mount", place.url, place.mountpoint)
    return other


def test_compiled_program_and_git_clone_are_identical_on_another_host(
    on_server: Place, program: QuickProgram, tmp_path: Path
) -> None:
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


def test_daemon_killed_during_a_copy_loses_no_synced_data(
    on_server: Place, program: QuickProgram
) -> None:
    """If the daemon is killed during a copy, synced files are complete and cp can continue."""
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
    (mnt / "d" / last).unlink(missing_ok=True)  # The kill interrupted the last copy.
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
def test_command_prints_one_line_if_the_server_refuses_access(
    empty: Place,
    program: QuickProgram,
    bucket: S3Server,
    change: dict[str, str],
    url: str,
    says: str,
) -> None:
    """If the server refuses access, a command prints one line and exits with its error status."""
    if bucket.make == "moto" and change:
        pytest.skip("moto does not check credentials")
    program.environment |= {**bucket.environment(), "AWS_ENDPOINT_URL": bucket.endpoint_url}
    program.environment |= change

    for words in (["mount", url, empty.mountpoint], ["mkfs", "--plain", url], ["status", url]):
        done = program.run(*words)
        assert says in done.stderr
        # On a loaded machine, the first output line may report that the server did not respond yet.
        assert len([one for one in done.stderr.splitlines() if "responded yet" not in one]) == 1
        assert done.returncode == ExitStatus.STORE_ACCESS


def test_commands_about_points_in_time_use_the_s3_options_of_the_mount(
    on_server: Place, program: QuickProgram
) -> None:
    """Commands about the past, and commands that they suggest, use the endpoint of the mount."""
    mnt, url = on_server.mountpoint, on_server.url
    (mnt / "report").write_bytes(b"first")
    program.ok("umount", mnt)
    endpoint = program.environment.pop("AWS_ENDPOINT_URL")
    program.ok("mount", "--endpoint-url", endpoint, url, mnt)
    (mnt / "report").write_bytes(b"overwritten")
    program.ok("flush", mnt)
    assert "report" in program.ok("diff", mnt, "txg=2")
    assert "report" in program.ok("diff", mnt / "report", "txg=2")
    assert len(program.ok("log", "-n", "1", mnt / "report").splitlines()) == 1
    with serving([str(mnt)], program.environment, mnt, 2) as served:
        page = served.page("/at/2/report")
    assert f"restore --at txg=2 --to restored --endpoint-url {endpoint} {url} report" in page
    program.ok("umount", mnt)
