"""Finding local state by a URL or mountpoint."""

import json
import os
from pathlib import Path

import pytest

from s3fs_meta.errors import NotMountedError
from s3fs_meta.mount import mount_table, targets
from s3fs_meta.mount.mount_table import FS_TYPE, Mounted


@pytest.fixture
def cachedir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the default location of local state, for any user."""
    monkeypatch.setattr(targets, "own_cachedir", lambda: tmp_path / "state")
    monkeypatch.setattr(targets, "_notes_dir", lambda: tmp_path / "state" / "notes")
    return tmp_path / "state"


def test_url_has_one_directory_per_cachedir(cachedir: Path, tmp_path: Path) -> None:
    """The same URL always gives the same directory, two URLs never do."""
    assert targets.of_url("local:///a", None) == targets.of_url("local:///a", cachedir)
    assert targets.of_url("local:///a", None).state != targets.of_url("local:///b", None).state
    assert targets.of_url("local:///a", tmp_path).state.parent == tmp_path


def test_mount_that_still_uploads_is_found_by_its_mountpoint(
    cachedir: Path, tmp_path: Path
) -> None:
    """After a plain fusermount3 -u the kernel does not list it; the note still does."""
    mounted = Mounted(str(tmp_path / "mnt"), "0:99", FS_TYPE, "local:///a")

    note = targets.write_note(targets.Target("local:///a", tmp_path / "elsewhere"), mounted)
    assert note is not None
    place = targets.of_mountpoint(tmp_path / "mnt", None)

    assert place[:3] == ("local:///a", tmp_path / "elsewhere", str(tmp_path / "mnt"))
    assert place in targets.all_mounted()


def test_end_of_a_mount_is_remembered_for_a_while(cachedir: Path, tmp_path: Path) -> None:
    """An umount shortly after the end reads the outcome; a later one does not."""
    mounted = Mounted(str(tmp_path), "0:99", FS_TYPE, "local:///a")
    note = targets.write_note(targets.Target("local:///a", tmp_path / "s"), mounted)
    assert note is not None
    targets.end_note(note, {"complete": True, "why": ""})

    assert targets.of_mountpoint(tmp_path, None).outcome == {"complete": True, "why": ""}
    assert not [one for one in targets.all_mounted() if one.url == "local:///a"]

    os.utime(note, (0, 0))
    with pytest.raises(NotMountedError):
        targets.of_mountpoint(tmp_path, None)
    assert not note.exists()


def test_end_of_a_daemon_is_read_only_from_its_own_note(cachedir: Path, tmp_path: Path) -> None:
    """A later daemon may get the same number of a process."""
    mounted = Mounted(str(tmp_path), "0:99", FS_TYPE, "local:///a")
    note = targets.write_note(targets.Target("local:///a", tmp_path / "s"), mounted)
    assert note is not None
    place = targets.of_mountpoint(tmp_path, None)
    assert targets.outcome_of(place) is None

    targets.end_note(note, {"complete": True, "why": ""})

    assert targets.outcome_of(place) == {"complete": True, "why": ""}
    assert targets.outcome_of(place._replace(started=place.started + 1)) is None
    note.unlink()
    assert targets.outcome_of(place) is None


def test_note_of_a_dead_process_is_removed(cachedir: Path, tmp_path: Path) -> None:
    """A killed daemon leaves its note; the next mount, or a command that reads it, removes it."""
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
    ],
)
def test_note_of_another_version_is_ignored(cachedir: Path, tmp_path: Path, text: str) -> None:
    """A daemon started before an upgrade neither breaks commands nor loses its note."""
    notes = cachedir / "notes"
    notes.mkdir(parents=True)
    (notes / str(os.getpid())).write_text(text, encoding="latin-1")
    (notes / "4194305").write_text(text, encoding="latin-1")  # above PID_MAX_LIMIT: no process

    assert all(place.state != Path("/s") for place in targets.all_mounted())
    with pytest.raises(NotMountedError):
        targets.of_mountpoint(tmp_path, None)
    targets.end_note(notes / str(os.getpid()), {"complete": True, "why": ""})

    assert [path.name for path in notes.iterdir()] == [str(os.getpid())]
    assert (notes / str(os.getpid())).read_text(encoding="latin-1") == text


def test_fields_of_a_later_version_are_ignored(cachedir: Path, tmp_path: Path) -> None:
    """Unknown fields of a note are ignored, known ones are read."""
    mounted = Mounted(str(tmp_path), "0:99", FS_TYPE, "local:///a")
    note = targets.write_note(targets.Target("local:///a", tmp_path / "s"), mounted)
    assert note is not None
    note.write_text(json.dumps({**json.loads(note.read_text()), "colour": "blue"}))

    assert targets.of_mountpoint(tmp_path, None).state == tmp_path / "s"


def test_note_of_a_killed_daemon_matches_no_other_process(cachedir: Path, tmp_path: Path) -> None:
    """Process and device numbers are used again; the note describes neither."""
    mounted = Mounted(str(tmp_path), "0:99", FS_TYPE, "local:///a")
    path = targets.write_note(targets.Target("local:///a", tmp_path / "s"), mounted)
    assert path is not None
    note = json.loads(path.read_text())
    path.write_text(json.dumps({**note, "started": note["started"] - 1}))

    with pytest.raises(NotMountedError):
        targets.of_mountpoint(tmp_path, None)
    assert not path.exists()


def test_mount_is_not_mistaken_for_another_on_the_same_device(
    cachedir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device number in a note may be used again if its daemon hangs after a detached mount."""
    mounted = Mounted(str(tmp_path), "0:99", FS_TYPE, "local:///a")
    targets.write_note(targets.Target("local:///a", tmp_path / "s"), mounted)
    another = mounted._replace(source="local:///b")
    monkeypatch.setattr(mount_table, "find", lambda _path: another)

    place = targets.of_mountpoint(tmp_path, None)

    assert (place.url, place.state) == ("local:///b", targets.of_url("local:///b", None).state)


def test_unwritable_note_does_not_stop_the_mount(cachedir: Path, tmp_path: Path) -> None:
    """The note is only a convenience."""
    cachedir.write_text("a file, not a directory")

    mounted = Mounted("/x", "0:1", FS_TYPE, "local:///a")

    assert targets.write_note(targets.Target("local:///a", tmp_path), mounted) is None


def test_urls_are_recognised(cachedir: Path) -> None:
    """A target that is not a URL is a mountpoint."""
    assert targets.of_either("s3://b/p", None).url == "s3://b/p"
    with pytest.raises(NotMountedError):
        targets.of_either("s3", None)


def test_mounted_point_in_time_is_found_without_its_note(
    cachedir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mounted point in time without a note is found by its state directory."""
    mounted = [Mounted(str(tmp_path / name), "0:99", FS_TYPE, "local:///a") for name in "xy"]
    monkeypatch.setattr(mount_table, "find", {one.mountpoint: one for one in mounted}.get)
    present = targets.of_url("local:///a", None)
    snapshot = targets.of_snapshot(present, str(tmp_path / "x"))
    snapshot.state.mkdir(parents=True)

    assert targets.of_mountpoint(tmp_path / "x", None).state == snapshot.state
    assert targets.of_mountpoint(tmp_path / "y", None).state == present.state
