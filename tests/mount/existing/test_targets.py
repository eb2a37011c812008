"""Tests of finding the local state of a URL or a mountpoint."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.mount.existing import mount_table, targets
from s3fs_meta.mount.existing.mount_table import FS_TYPE, Mounted
from s3fs_meta.mount.limits import ENDED_NOTES_MAX
from s3fs_meta.mount_errors import NotMountedError


@pytest.fixture
def cachedir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the default directory of local state, inside the test's directory."""
    monkeypatch.setattr(targets, "own_cachedir", lambda: tmp_path / "state")
    monkeypatch.setattr(targets, "notes_dir", lambda: tmp_path / "state" / "notes")
    return tmp_path / "state"


def _note(mountpoint: Path) -> Path:
    """Write the note of a mount by this process; return the path of the note."""
    mounted = Mounted(str(mountpoint), "0:99", FS_TYPE, "local:///a")
    note = targets.write_note(targets.Target("local:///a", mountpoint / "s"), mounted)
    assert note is not None
    return note


def test_state_directory_is_determined_by_the_url(cachedir: Path, tmp_path: Path) -> None:
    """Two URLs have different state directories below the same --cachedir."""
    assert targets.of_url("local:///a", None) == targets.of_url("local:///a", cachedir)
    assert targets.of_url("local:///a", None).state != targets.of_url("local:///b", None).state
    assert targets.of_url("local:///a", tmp_path).state.parent == tmp_path


def test_unmounted_daemon_is_found_by_its_mountpoint_while_it_uploads(
    cachedir: Path, tmp_path: Path
) -> None:
    """After fusermount3 -u, only the daemon's mount note contains the mountpoint."""
    mounted = Mounted(str(tmp_path / "mnt"), "0:99", FS_TYPE, "local:///a")

    note = targets.write_note(targets.Target("local:///a", tmp_path / "elsewhere"), mounted)
    assert note is not None
    place = targets.of_mountpoint(tmp_path / "mnt", None)

    assert place[:3] == ("local:///a", tmp_path / "elsewhere", str(tmp_path / "mnt"))
    assert place in targets.all_mounted()


def test_outcome_of_a_finished_mount_is_kept_for_a_limited_time(
    cachedir: Path, tmp_path: Path
) -> None:
    """The mount note that contains the outcome of a mount is removed after a limited time."""
    note = _note(tmp_path)
    targets.end_note(note, {"complete": True, "why": ""})

    assert targets.of_mountpoint(tmp_path, None).outcome == {"complete": True, "why": ""}
    assert not [one for one in targets.all_mounted() if one.url == "local:///a"]

    os.utime(note, (0, 0))
    with pytest.raises(NotMountedError):
        targets.of_mountpoint(tmp_path, None)
    assert not note.exists()


def test_outcome_of_a_mount_is_not_read_from_the_note_of_another_daemon(
    cachedir: Path, tmp_path: Path
) -> None:
    """The outcome of a mount is not read from the note of another daemon with the same PID."""
    note = _note(tmp_path)
    place = targets.of_mountpoint(tmp_path, None)
    assert targets.outcome_of(place) is None

    targets.end_note(note, {"complete": True, "why": ""})

    assert targets.outcome_of(place) == {"complete": True, "why": ""}
    assert targets.outcome_of(place._replace(started=place.started + 1)) is None
    note.unlink()
    assert targets.outcome_of(place) is None


def test_mount_note_of_a_killed_daemon_is_removed(cachedir: Path, tmp_path: Path) -> None:
    """A command or mount that finds the note of a killed daemon removes the note."""
    notes = cachedir / "notes"
    notes.mkdir(parents=True)
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    note = {
        "url": "local:///a",
        "state": "/s",
        "mountpoint": str(tmp_path),
        "device": "0:1",
        "started": 1,
        "outcome": None,
    }
    left = notes / str(pid)
    left.write_text(json.dumps(note))
    with pytest.raises(NotMountedError):
        targets.of_mountpoint(tmp_path, None)
    assert not left.exists()

    left.write_text(json.dumps(note))
    mounted = Mounted(str(tmp_path), "0:99", FS_TYPE, "local:///a")
    assert targets.write_note(targets.Target("local:///a", tmp_path / "s"), mounted) is not None
    assert not left.exists()


def test_incomplete_mount_notes_of_killed_processes_are_removed(cachedir: Path) -> None:
    """Incomplete notes of running processes and all other files are kept."""
    notes = cachedir / "notes"
    notes.mkdir(parents=True)
    names = ("4194305.new", f"{os.getpid()}.new", "x.new", "\N{SUPERSCRIPT TWO}")
    for name in names:
        (notes / name).touch()

    targets.remove_stale_notes()

    assert {path.name for path in notes.iterdir()} == set(names[1:])
    assert all(place.state.parent != notes for place in targets.all_mounted())


def test_only_the_latest_mount_notes_of_unmounted_filesystems_are_kept(
    cachedir: Path, tmp_path: Path
) -> None:
    """A host that mounts often keeps only a limited number of mount notes."""
    own = _note(tmp_path)
    note = json.loads(own.read_text()) | {"mountpoint": "/m", "outcome": {"complete": 1, "why": ""}}
    now_s = own.stat().st_mtime
    for number in range(ENDED_NOTES_MAX + 3):
        path = own.with_name(str(5_000_000 + number))
        path.write_text(json.dumps(note | {"url": f"local:///{number}"}))
        os.utime(path, (now_s - number, now_s - number))

    with pytest.raises(NotMountedError):
        targets.of_mountpoint(tmp_path / "other", None)

    left = {int(path.name) - 5_000_000 for path in own.parent.iterdir()} - {os.getpid() - 5_000_000}
    assert left == set(range(ENDED_NOTES_MAX))
    assert targets.of_mountpoint(Path("/m"), None).url == "local:///0"
    assert own.exists()


def test_pid_namespace_is_found_only_while_it_has_a_process() -> None:
    if os.geteuid() != 0:
        pytest.skip("the test needs root privileges")
    command = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo; read line"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as inner:
        assert inner.stdin is not None
        assert inner.stdout is not None
        inner.stdout.readline()
        number = os.stat(f"/proc/{inner.pid}/ns/pid_for_children").st_ino
        assert number in targets.inner_namespaces()
        inner.stdin.close()
        inner.wait()

    assert number not in targets.inner_namespaces()


def test_mount_notes_of_pid_namespaces_without_processes_are_removed(tmp_path: Path) -> None:
    """Mount notes of a container that shares the directory are removed after its exit."""
    for name in ("namespace-7", "namespace-8", "4194305"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").touch()

    targets.remove_ended_namespaces(tmp_path, lambda: {7})

    assert {path.name for path in tmp_path.iterdir()} == {"namespace-7", "4194305"}
    assert (tmp_path / "namespace-7" / "1").exists()


def test_note_of_a_mount_in_another_mount_namespace_is_kept_for_a_day(
    cachedir: Path, tmp_path: Path
) -> None:
    """A mount note is kept for a day if its mount may still exist in another mount namespace."""
    path = _note(tmp_path)
    note = json.loads(path.read_text())
    path.write_text(json.dumps(note | {"started": 1, "mount_namespace": 1}))

    for age_s, is_kept in ((0, True), (90_000, False)):
        os.utime(path, (0, time.time() - age_s))
        with pytest.raises(NotMountedError):
            targets.of_mountpoint(tmp_path / "other", None)
        assert path.exists() is is_kept


@pytest.mark.parametrize(
    "text",
    [
        '{"url": "local:///a", "state": "/s", "mountpoint": "/m", "device": "0:1", "started": 1}',
        '{"url": "local:///a", "state": "/s", "mountpoint": "/m", "device": 1, "started": 1, "outcome": null}',
        '{"url": "local:///a", "state": "/s", "mountpoint": "/m", "device": "0:1", "started": 1, "outcome": 7}',
        '{"url": "local:///a", "state": "/s", "mountpoint": "/m", "device": "0:1", "started": 1, "outcome": {}}',
        "[1]",
        "7",
        "",
        "\xff",
        "[" * 100_000,
    ],
)
def test_mount_note_in_an_unknown_format_is_ignored(
    cachedir: Path, tmp_path: Path, text: str
) -> None:
    """A mount note in an unknown format is ignored, but kept while its process runs."""
    notes = cachedir / "notes"
    notes.mkdir(parents=True)
    (notes / str(os.getpid())).write_text(text, encoding="latin-1")
    # PID 4194305 is above PID_MAX_LIMIT, so no process has it.
    (notes / "4194305").write_text(text, encoding="latin-1")

    assert all(place.state != Path("/s") for place in targets.all_mounted())
    with pytest.raises(NotMountedError):
        targets.of_mountpoint(tmp_path, None)
    targets.end_note(notes / str(os.getpid()), {"complete": True, "why": ""})

    assert [path.name for path in notes.iterdir()] == [str(os.getpid())]
    assert (notes / str(os.getpid())).read_text(encoding="latin-1") == text


@pytest.mark.timeout(30)
@pytest.mark.parametrize("suffix", ["", ".new"])
def test_fifo_in_the_directory_of_the_mount_notes_does_not_block(
    cachedir: Path, tmp_path: Path, suffix: str
) -> None:
    """The mount cannot write its note, or replaces the FIFO; other commands ignore the FIFO."""
    notes = cachedir / "notes"
    notes.mkdir(parents=True)
    os.mkfifo(notes / f"{os.getpid()}{suffix}")
    os.mkfifo(notes / f"{os.getppid()}{suffix}")

    targets.remove_stale_notes()
    with pytest.raises(NotMountedError):
        targets.of_mountpoint(tmp_path, None)
    mounted = Mounted(str(tmp_path), "0:99", FS_TYPE, "local:///a")
    place = targets.Target("local:///a", tmp_path / "s")
    note = targets.write_note(place, mounted)

    assert (note is None) is bool(suffix)
    assert targets.is_served(mounted) is not bool(suffix)


def test_unknown_fields_in_a_mount_note_are_ignored(cachedir: Path, tmp_path: Path) -> None:
    note = _note(tmp_path)
    note.write_text(json.dumps({**json.loads(note.read_text()), "colour": "blue"}))

    assert targets.of_mountpoint(tmp_path, None).state == tmp_path / "s"


def test_mount_note_of_a_killed_daemon_matches_no_other_process(
    cachedir: Path, tmp_path: Path
) -> None:
    """A mount note contains the start time of its daemon, because process ids are reused."""
    path = _note(tmp_path)
    note = json.loads(path.read_text())
    path.write_text(json.dumps({**note, "started": note["started"] - 1}))

    with pytest.raises(NotMountedError):
        targets.of_mountpoint(tmp_path, None)
    assert not path.exists()


@pytest.mark.parametrize(("device", "url"), [("0:99", "local:///b"), ("0:98", "local:///a")])
def test_mount_note_identifies_a_mount_by_its_device_and_url(
    cachedir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, url: str
) -> None:
    """A mount is identified by device and URL, because device numbers are reused."""
    mounted = Mounted(str(tmp_path), "0:99", FS_TYPE, "local:///a")
    targets.write_note(targets.Target("local:///a", tmp_path / "s"), mounted)
    another = mounted._replace(device=device, source=url)
    monkeypatch.setattr(mount_table, "find", lambda _path: another)

    place = targets.of_mountpoint(tmp_path, None)

    assert (place.url, place.state) == (url, targets.of_url(url, None).state)
    assert targets.is_served(mounted)
    assert not targets.is_served(another)


def test_mount_with_a_reused_device_number_is_recognised(
    cachedir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an unmounted daemon still uploads, a new mount may reuse its device number."""
    mounted = Mounted(str(tmp_path / "mnt"), "0:99", FS_TYPE, "s3://bucket/home")
    note = targets.write_note(targets.Target(mounted.source, tmp_path / "serving"), mounted)
    assert note is not None
    monkeypatch.setattr(mount_table, "find", lambda _path: mounted)
    for pid in (os.getppid(), 1):  # The two PIDs belong to running processes.
        former = json.loads(note.read_text()) | {
            "mountpoint": str(tmp_path / "former"),
            "state": str(tmp_path / "uploading"),
            "started": int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]),
        }
        (note.parent / str(pid)).write_text(json.dumps(former))

    assert targets.of_mountpoint(tmp_path / "mnt", None).state == tmp_path / "serving"


def test_command_without_a_target_uses_the_only_mount(
    cachedir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = [Mounted(str(tmp_path / name), "0:99", FS_TYPE, f"local:///{name}") for name in "xy"]
    other = Mounted("/", "0:1", "ext4", "/dev/sda")
    for shown, error in (
        (mounted[:1], None),
        ([], "nothing is mounted"),
        (mounted, f"choose one of {tmp_path}/x, {tmp_path}/y"),
    ):
        monkeypatch.setattr(mount_table, "read", lambda shown=shown: [other, *shown])
        if error is None:
            assert targets.only_mounted("--watch").mountpoint == str(tmp_path / "x")
        else:
            with pytest.raises(UsageError, match=f"--watch needs a mount: {error}"):
                targets.only_mounted("--watch")


def test_failure_to_write_the_mount_note_does_not_stop_the_mount(
    cachedir: Path, tmp_path: Path
) -> None:
    cachedir.write_text("a file, not a directory")

    mounted = Mounted("/x", "0:1", FS_TYPE, "local:///a")

    assert targets.write_note(targets.Target("local:///a", tmp_path), mounted) is None


def test_command_argument_with_a_scheme_is_treated_as_a_url(cachedir: Path) -> None:
    """A target with a scheme is a URL, and any other target is a mountpoint."""
    assert targets.of_either("s3://b/p", None).url == "s3://b/p"
    with pytest.raises(NotMountedError):
        targets.of_either("s3", None)


def _unmounted(path: str) -> str:
    """Return the error message for a path that is not a mountpoint of s3fs-meta."""
    return f"no s3fs-meta filesystem is mounted on {path}; s3fs-meta status lists all mounts"


def _require_error(mountpoint: str, message: str) -> None:
    with pytest.raises(NotMountedError) as raised:
        targets.of_mountpoint(Path(mountpoint), None)
    assert raised.value.message == message


def test_error_about_a_url_names_its_mountpoint(
    cachedir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a user passes a URL instead of a mountpoint, the error names the URL's mountpoint."""
    rows = [
        Mounted("/srv/home", "0:99", FS_TYPE, "s3://bucket/home"),
        Mounted("/srv/disk", "0:98", "ext4", "local:///srv/store"),
    ]
    monkeypatch.setattr(mount_table, "read", lambda: rows)
    for url, where in {
        "s3://bucket/home": "mounted on /srv/home",
        "local:///srv/store": "not mounted on this host",
    }.items():
        _require_error(url, f"{url} is a URL, and this command takes a mountpoint; it is {where}")
    _require_error("/nowhere", _unmounted("/nowhere"))


@pytest.mark.parametrize(
    ("mounted", "given", "same"),
    [
        ("local:///a", "local:///a/", True),
        ("local:///a/", "local:///a", True),
        ("local:///a%20b", "local:///a b", True),
        ("local:///a", "local:///ab", False),
        ("s3://bucket/", "s3://bucket", True),
    ],
)
def test_slash_at_the_end_of_a_url_makes_no_difference(
    mounted: str, given: str, *, same: bool
) -> None:
    assert targets.is_mount_of(Mounted("/mnt", "0:99", FS_TYPE, mounted), given) == same
    assert not targets.is_mount_of(Mounted("/mnt", "0:99", "ext4", mounted), given)


def test_error_about_a_path_below_a_mountpoint_names_the_mountpoint(
    cachedir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        Mounted("/srv/home", "0:99", FS_TYPE, "s3://bucket/home"),
        Mounted("/srv/home/disk", "0:98", "ext4", "/dev/sda"),
    ]
    monkeypatch.setattr(mount_table, "read", lambda: rows)
    for path, message in {
        "/srv/home/a/b": "/srv/home/a/b is not a mountpoint; its filesystem is mounted on /srv/home",
        "/srv/home/disk/a": _unmounted("/srv/home/disk/a"),
        "/srv/home2": _unmounted("/srv/home2"),
    }.items():
        _require_error(path, message)


def test_mount_of_a_point_in_time_is_found_without_its_note(
    cachedir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = [Mounted(str(tmp_path / name), "0:99", FS_TYPE, "local:///a") for name in "xy"]
    monkeypatch.setattr(mount_table, "find", {one.mountpoint: one for one in mounted}.get)
    present = targets.of_url("local:///a", None)
    snapshot = targets.of_snapshot(present, str(tmp_path / "x"))
    snapshot.state.mkdir(parents=True)

    assert targets.of_mountpoint(tmp_path / "x", None).state == snapshot.state
    assert targets.of_mountpoint(tmp_path / "y", None).state == present.state


def test_options_of_the_mount_command_are_read_from_the_mount_note() -> None:
    again = "s3fs-meta mount --endpoint-url http://x:1 --cachedir '/my state' -o ro s3://b/h /mnt"
    place = targets.Target("s3://b/h", Path("/s"), again=again)
    assert targets.mount_flags(place) == {"--endpoint-url": "http://x:1", "--cachedir": "/my state"}
    assert targets.mount_flags(place._replace(again="")) == {}
    assert targets.mount_flags(place._replace(again="s3fs-meta mount s3://b/h /mnt")) == {}


def test_covered_mount_does_not_hide_other_mounts(
    cachedir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another filesystem may be mounted over a mount, whose path then leads elsewhere."""
    table = [
        Mounted("/a", "0:1", FS_TYPE, "local:///one"),
        Mounted("/a", "0:2", "tmpfs", "tmpfs"),
        Mounted("/b", "0:3", FS_TYPE, "local:///two"),
    ]
    monkeypatch.setattr(mount_table, "read", lambda: table)

    assert [place.mountpoint for place in targets.all_mounted()] == ["/b"]
    assert not cachedir.exists()
