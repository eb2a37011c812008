"""The destroy command, which deletes a filesystem from its bucket."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.superblock import encode_tombstone
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.model import Epoch
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.thorough


def test_destroy_command_needs_the_label_as_confirmation(program: Program, place: Place) -> None:
    """Without the label of the filesystem, or with a wrong label, destroy deletes nothing."""
    for words in ([], ["--confirm", "holidays"]):
        assert program.run("destroy", *words, place.url).returncode == 2

    assert (place.bucket / "superblock").exists()


def test_destroy_command_deletes_objects_of_its_filesystem_and_keeps_foreign_objects(
    program: Program, place: Place
) -> None:
    """The destroy command keeps user files below its prefix, and prints their number."""
    (place.bucket / "holiday.jpg").write_text("x")

    shown = program.ok("destroy", "--confirm", "photos", place.url)

    assert "because the filesystem did not write them: 1 object: " in shown
    assert (place.bucket / "holiday.jpg").exists()
    assert not (place.bucket / "superblock").exists()
    assert program.run("destroy", "--confirm", "photos", place.url).returncode == 5


def test_destroy_command_keeps_a_foreign_object_named_like_a_changelog(
    program: Program, place: Place
) -> None:
    """Without --by-name, the destroy command keeps a user file that is named like a changelog."""
    (place.bucket / "changelog").mkdir(exist_ok=True)
    thesis = place.bucket / "changelog" / "000000000007"
    thesis.write_text("the only copy of a thesis")

    shown = program.ok("destroy", "--confirm", "photos", place.url)

    assert "because the filesystem did not write them: 1 object: 'changelog/000000" in shown
    assert thesis.read_text() == "the only copy of a thesis"
    again = program.run("destroy", "--confirm", place.url, place.url)
    assert again.returncode == 12
    assert "--by-name" in again.stderr
    program.ok("destroy", "--by-name", "--confirm", place.url, place.url)
    assert not thesis.exists()


def test_destroying_an_encrypted_filesystem_requires_the_keys_or_the_by_name_option(
    program: Program, tmp_path: Path
) -> None:
    for words, status in (
        (["--passphrase-file", tmp_path / "right"], 0),
        (["--passphrase-file", tmp_path / "wrong"], 4),
        (["--by-name"], 0),
    ):
        (tmp_path / "right").write_text("right")
        (tmp_path / "wrong").write_text("wrong")
        url = f"local://{tmp_path}/secret-{len(words)}-{status}"
        program.ok("mkfs", "--passphrase-file", tmp_path / "right", url)

        done = program.run("destroy", *words, "--confirm", url, url)

        assert done.returncode == status, done.stderr
        bucket = Path(url.removeprefix("local://"))
        assert (bucket / "lease").exists() == (bucket / "image").exists() == bool(status)


def test_destroy_command_with_the_superblock_of_another_filesystem_deletes_nothing(
    program: Program, place: Place
) -> None:
    """The destroy command deletes no object that is not authentic under the superblock's keys."""
    other = place.bucket.with_name("other")
    program.ok("mkfs", "--plain", f"local://{other}")
    for name in ("superblock", "superblock-copy"):
        shutil.copy(other / name, place.bucket / name)
    before = sorted(place.bucket.rglob("*"))

    done = program.run("destroy", "--confirm", place.url, place.url)

    assert done.returncode == 12, done.stderr
    assert "keys of another filesystem" in done.stderr
    assert "--by-name" in done.stderr
    assert sorted(place.bucket.rglob("*")) == before


def test_destroy_command_prints_its_counts_as_json(program: Program, place: Place) -> None:
    """The JSON output contains the numbers of removed objects and of foreign objects."""
    (place.bucket / "holiday.jpg").write_text("x")

    answer = json.loads(program.ok("destroy", "--json", "--confirm", "photos", place.url))

    assert answer == {"url": place.url, "removed": 5, "foreign": 1}


def test_new_filesystem_can_use_the_url_of_a_destroyed_filesystem(
    program: Program, place: Place
) -> None:
    """A new filesystem at the URL starts without local state, because destroy removes it."""
    program.ok("fsck", "-n", place.url)
    program.ok("destroy", "--confirm", place.url, place.url)

    assert list(program.cachedir.iterdir()) == []
    program.ok("mkfs", "--plain", place.url)


def test_destroy_command_keeps_quarantined_states_and_replaced_objects(
    program: Program, place: Place
) -> None:
    """Quarantined states and replaced objects may contain the only copies of earlier files."""
    program.ok("fsck", "-n", place.url)
    [state] = program.cachedir.iterdir()
    for name in ("kept-1/blocks/xxx/1", "replaced-lease-2"):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text("the only copy")

    done = program.run("destroy", "--confirm", place.url, place.url)

    assert done.returncode == 0
    recovery = f"s3fs-meta recover-state --cachedir {program.cachedir} {place.url}"
    assert f"to copy files out, run {recovery} first" in done.stderr.splitlines()[0]
    assert (
        f"{state} still contains 2 entries with quarantined or replaced data (kept-1, …)"
        in done.stderr
    )
    assert {path.name for path in state.iterdir()} == {"kept-1", "replaced-lease-2", "lock"}
    assert (state / "kept-1/blocks/xxx/1").read_text() == "the only copy"
    program.ok("mkfs", "--plain", place.url)
    program.ok("fsck", "-n", place.url)
    assert "kept-1: quarantined" in program.ok("recover-state", place.url)


@pytest.mark.parametrize("damaged", [(), ("superblock",), ("superblock", "superblock-copy")])
def test_destroy_command_on_a_damaged_filesystem_respects_the_lease(
    program: Program, place: Place, damaged: tuple[str, ...]
) -> None:
    """Even if no superblock is intact, destroy respects the lease; --confirm requires the URL."""
    program.ok("fsck", "-p", place.url)
    lease = place.bucket / "lease"
    held = lease_codec.decode(lease_codec.KEY, lease.read_bytes())
    lease.write_bytes(lease_codec.encode(replace(held, released=False)))
    for name in damaged:
        (place.bucket / name).write_bytes(b"rotten")
    label = place.url if len(damaged) > 1 else "photos"

    assert program.run("destroy", "--confirm", label, place.url).returncode == 7
    assert lease.exists()
    program.ok("destroy", "--takeover", "--confirm", label, place.url)
    assert not any((place.bucket / name).exists() for name in ("lease", "superblock", "image"))


@pytest.mark.parametrize(("released", "status"), [(False, 7), (True, 2)])
def test_destroy_command_is_refused_if_the_filesystem_is_mounted_during_the_prompt(
    program: Program,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    released: bool,
    status: int,
) -> None:
    lease = place.bucket / "lease"
    before = lease_codec.decode(lease_codec.KEY, lease.read_bytes())

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            used = replace(before, epoch=Epoch(before.epoch + 1), released=released)
            lease.write_bytes(lease_codec.encode(used))
            return "photos\n"

    monkeypatch.setattr(sys, "stdin", Terminal())
    done = program.run("destroy", place.url)
    assert done.returncode == status, done.stderr
    assert (place.bucket / "superblock").read_bytes().startswith(b"s3fs-meta superblock")
    monkeypatch.undo()
    lease.write_bytes(lease_codec.encode(replace(before, released=True)))
    program.ok("destroy", "--confirm", "photos", place.url)


def test_interrupted_destroy_can_be_retried_with_the_label(program: Program, place: Place) -> None:
    """After an interrupted destroy, other commands fail with the advice to run destroy again."""
    (place.bucket / "superblock").write_bytes(encode_tombstone("photos"))

    for words in (["fsck", "-y"], ["mkfs", "--plain"], ["log"], ["status"]):
        done = program.run(*words, place.url)
        assert done.returncode not in {0, 1}
        assert "destroy" in done.stderr
    program.ok("destroy", "--confirm", "photos", place.url)
    program.ok("mkfs", "--plain", place.url)


@pytest.mark.mount
def test_destroy_command_after_a_kill_reports_the_killed_mount(
    program: Program, mounted: Place
) -> None:
    pid = program.kill(mounted.mountpoint)
    program.run("umount", mounted.mountpoint)

    done = program.run("destroy", "--confirm", "photos", mounted.url)

    assert done.returncode == ExitStatus.HELD
    assert f"process {pid} does not run here: a mount was killed. Mount the" in done.stderr
    command = f"s3fs-meta mount --cachedir {program.cachedir} {mounted.url} MOUNTPOINT"
    assert f"again ({command})" in done.stderr


@pytest.mark.mount
def test_destroy_command_on_a_mounted_filesystem_is_refused(
    program: Program, mounted: Place
) -> None:
    done = program.run("destroy", "--confirm", "photos", mounted.url)

    assert done.returncode == ExitStatus.HELD
    assert f"{mounted.url} is in use on this host; unmount it first" in done.stderr
