"""Tests that a wrong mount option or URL is reported before any change."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place
from tests.end_to_end.contents import contents, write_synced
from tests.programs import ROOT, Program, QuickProgram

pytestmark = pytest.mark.mount


def snapshot(place: Place, program: Program) -> dict[str, tuple[int, int]]:
    """Return size and mtime of every file in the bucket and in the local state.

    The log, the counts of requests and the known points in time are not included.
    """
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for folder in (place.bucket, program.cachedir)
        for path in folder.rglob("*")
        if path.is_file() and path.name not in {"mount.log", "requests.json", "points.json"}
    }


def assert_refused(
    place: Place, program: Program, *words: str | Path, status: ExitStatus, says: str
) -> None:
    """Require that mount fails with one line and a given status, and that nothing changes."""
    before = snapshot(place, program)

    done = program.run("mount", *words)

    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("s3fs-meta: ")
    assert (done.returncode, done.stdout) == (status, "")
    assert mount_table.find(str(place.mountpoint)) is None
    assert snapshot(place, program) == before


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("jurnal_mode=wal", "unknown mount option 'jurnal_mode'; did you mean 'journal_mode'?"),
        ("xyzzy", "unknown mount option 'xyzzy'; s3fs-meta mount --list-options lists all"),
        ("journal_mode=walnut", "journal_mode"),
        ("journal_mode=delete,wal_autocheckpoint=100", "wal_autocheckpoint"),
        ("page_size=5000", "page_size"),
        ("cachesize=1K", "cachesize"),
        ("commit=soon", "commit"),
        ("compress=zip", "compress"),
        ("ro=yes", "ro"),
        ("remount", "remount"),
        ("lazytime", "option 'lazytime': times are not kept"),
        ("mand", "option 'mand': Linux no longer has mandatory locks"),
        ("norelatime", "option 'norelatime': write strictatime"),
        ("nosymfollow", "option 'nosymfollow': symbolic links are followed"),
        ("iversion", "option 'iversion': inodes have no version"),
        ("noacl", "option 'noacl': ACLs cannot"),
    ],
)
def test_invalid_mount_option_is_reported_before_any_change(
    place: Place, program: Program, option: str, says: str
) -> None:
    assert_refused(
        place,
        program,
        "-o",
        option,
        place.url,
        place.mountpoint,
        status=ExitStatus.USAGE,
        says=says,
    )


def test_mount_accepts_obsolete_options_with_a_warning(place: Place, program: Program) -> None:
    """An option without effect, such as ``extension=off``, causes a warning."""
    old = "extension=off,request_loop=scheduled"

    done = program.run("mount", "-o", old, place.url, place.mountpoint)

    assert done.returncode == 0, done.stderr
    for part in old.split(","):
        name, value = part.split("=")
        assert f"the mount option {name}={value} no longer has an effect" in done.stderr
    (place.mountpoint / "f").touch()
    os.truncate(place.mountpoint / "f", 1 << 20)
    with open(place.mountpoint / "f", "rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 0
    program.ok("umount", place.mountpoint)


@pytest.mark.parametrize(
    ("url", "status", "says"),
    [
        ("s4://bucket/x", ExitStatus.USAGE, "unknown scheme"),
        ("local:relative", ExitStatus.USAGE, "unknown scheme"),
        ("bucket/home", ExitStatus.USAGE, "'bucket/home' is not a URL; use local:///absolute"),
        ("local:///does/not/exist", ExitStatus.NO_FILESYSTEM, "that directory does not exist"),
        ("s3://Bad_Bucket/x", ExitStatus.USAGE, "no valid bucket name"),
        ("local:///usr/share", ExitStatus.NO_FILESYSTEM, "no filesystem at"),
    ],
)
def test_mount_refuses_an_invalid_url(
    place: Place, program: Program, url: str, status: ExitStatus, says: str
) -> None:
    assert_refused(place, program, url, place.mountpoint, status=status, says=says)


def test_mount_refuses_a_missing_mountpoint_and_a_file(
    place: Place, program: Program, tmp_path: Path
) -> None:
    """The mount command does not create a missing mountpoint, and it refuses a file."""
    (tmp_path / "file").touch()
    for name, says in (("missing", "does not exist; create it"), ("file", "is not a directory")):
        assert_refused(
            place, program, place.url, tmp_path / name, status=ExitStatus.USAGE, says=says
        )
    assert not (tmp_path / "missing").exists()


def test_mount_hides_the_content_of_the_mountpoint_until_the_unmount(
    place: Place, program: Program
) -> None:
    (place.mountpoint / "below").write_bytes(b"below")
    program.ok("mount", place.url, place.mountpoint)
    assert os.listdir(place.mountpoint) == []
    program.ok("umount", place.mountpoint)

    assert (place.mountpoint / "below").read_bytes() == b"below"


def test_mount_on_a_mountpoint_in_use_is_refused(
    mounted: Place, program: Program, tmp_path: Path
) -> None:
    """A mountpoint in use is reported before any change, and the first mount continues."""
    other = f"local://{tmp_path}/other"
    program.ok("mkfs", "--plain", other)

    refused = program.run("mount", other, mounted.mountpoint)

    assert refused.returncode == ExitStatus.SETTINGS
    assert f"{mounted.url}, is mounted on {mounted.mountpoint}" in refused.stderr
    assert program.status(mounted.mountpoint)["url"] == mounted.url


def test_wal_mode_is_refused_if_local_state_is_on_a_fuse_filesystem(
    shared: Path, place: Place, program: Program
) -> None:
    program.cachedir = shared / "state"
    assert_refused(
        place,
        program,
        place.url,
        place.mountpoint,
        status=ExitStatus.USAGE,
        says="journal_mode=wal does not work on FUSE",
    )

    program.ok("mount", "-o", "journal_mode=truncate", place.url, place.mountpoint)
    (place.mountpoint / "f").write_bytes(b"content")
    program.ok("umount", place.mountpoint)
    program.ok("fsck", "-n", place.url)


# --- passphrases of encrypted filesystems ---------------------------------------------------------


@pytest.fixture
def encrypted(empty: Place, program: Program) -> Place:
    """Return the URL and mountpoint of an encrypted filesystem with the passphrase "right"."""
    program.environment["S3FS_META_PASSPHRASE"] = "right"
    program.ok("mkfs", empty.url)
    del program.environment["S3FS_META_PASSPHRASE"]
    return empty


@pytest.mark.parametrize(
    ("content", "status", "says"),
    [
        ("wrong\n", ExitStatus.PASSPHRASE, "the passphrase does not open this filesystem"),
        ("", ExitStatus.PASSPHRASE, "empty"),
        (None, ExitStatus.USAGE, "No such file"),
    ],
)
def test_mount_refuses_a_wrong_or_empty_passphrase_file(
    encrypted: Place,
    program: Program,
    tmp_path: Path,
    content: str | None,
    status: ExitStatus,
    says: str,
) -> None:
    file = tmp_path / "passphrase"
    if content is not None:
        file.write_text(content)
    option = f"passphrase_file={file}"
    assert_refused(
        encrypted,
        program,
        "-o",
        option,
        encrypted.url,
        encrypted.mountpoint,
        status=status,
        says=says,
    )

    file.write_text("right\n")
    program.ok("mount", "-o", option, encrypted.url, encrypted.mountpoint)
    program.ok("umount", encrypted.mountpoint)


def test_mount_without_passphrase_or_terminal_is_refused(
    encrypted: Place, program: Program
) -> None:
    assert_refused(
        encrypted,
        program,
        encrypted.url,
        encrypted.mountpoint,
        status=ExitStatus.PASSPHRASE,
        says="passphrase",
    )


# --- settings of SQLite ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["wal", "delete", "truncate", "persist"])
def test_safe_journal_modes_keep_synced_content_after_a_kill(
    place: Place, program: Program, mode: str
) -> None:
    """In safe journal modes, an unmount keeps all content, and a kill keeps synced content."""
    program.ok("mount", "-o", f"journal_mode={mode}", place.url, place.mountpoint)
    (place.mountpoint / "before").write_bytes(b"before")
    program.ok("umount", place.mountpoint)
    program.ok("mount", "-o", f"journal_mode={mode}", place.url, place.mountpoint)
    write_synced(place.mountpoint / "after", b"after")
    program.kill(place.mountpoint)
    program.ok("mount", "-o", f"journal_mode={mode}", place.url, place.mountpoint)

    assert contents(place.mountpoint) == {"before": b"before", "after": b"after"}
    program.ok("umount", place.mountpoint)
    program.ok("fsck", "-n", place.url)


@pytest.mark.parametrize("mode", ["wal", "delete", "memory"])
def test_fsck_is_refused_while_a_mount_without_wal_is_running(
    place: Place, program: Program, mode: str
) -> None:
    """Without WAL, a second process cannot read the database of a mount, so fsck fails."""
    program.ok("mount", "-o", f"journal_mode={mode}", place.url, place.mountpoint)
    (place.mountpoint / "f").write_bytes(b"content")

    done = program.run("fsck", "-n", place.url)

    if mode == "wal":
        assert done.returncode == 0
    else:
        assert (done.returncode, f"journal_mode={mode}" in done.stderr) == (8, True)
    assert done.stderr.count("\n") == 1
    (place.mountpoint / "g").write_bytes(b"content")
    program.ok("umount", place.mountpoint)


@pytest.mark.parametrize("mode", ["memory", "off"])
def test_mount_with_an_unsafe_journal_mode_restores_from_the_bucket_after_a_kill(
    place: Place, program: Program, mode: str
) -> None:
    """In an unsafe journal mode, mount warns, and quarantines the state of a killed daemon."""
    options = f"journal_mode={mode},sync_interval=1h"
    words = ("mount", "-o", options, place.url, str(place.mountpoint))
    assert f"journal_mode={mode}" in program.run(*words).stderr
    (place.mountpoint / "before").write_bytes(b"before")
    program.ok("umount", place.mountpoint)
    program.ok(*words)
    write_synced(place.mountpoint / "after", b"after")
    program.kill(place.mountpoint)
    again = program.run(*words)

    assert (again.returncode, "they are kept in" in again.stderr) == (0, True)
    assert contents(place.mountpoint) == {"before": b"before"}
    program.ok("umount", place.mountpoint)
    program.ok("fsck", "-n", place.url)


@pytest.mark.parametrize(
    "page_size",
    [
        512,
        65_536,
        *(pytest.param(1 << bits, marks=pytest.mark.slow) for bits in range(10, 16)),
    ],
)
def test_database_page_size_survives_a_remount_and_a_kill(
    empty: Place, program: Program, page_size: int
) -> None:
    program.ok("mkfs", "--plain", "--page-size", str(page_size), empty.url)
    program.ok("mount", empty.url, empty.mountpoint)
    expected = {f"f{number}": os.urandom(number * 100) for number in range(50)}
    for name, data in expected.items():
        (empty.mountpoint / name).write_bytes(data)
    write_synced(empty.mountpoint / "f0", b"")
    program.kill(empty.mountpoint)
    program.ok("mount", empty.url, empty.mountpoint)

    assert contents(empty.mountpoint) == expected
    program.ok("umount", empty.mountpoint)
    program.ok("fsck", "-n", empty.url)


# --- mount(8) and fstab ----------------------------------------------------------------------------

# The script runs in a separate mount namespace, so the host's mounts do not change.
# The script adds the tested helpers to /sbin, because mount(8) searches only /sbin.
SCRIPT = """
mount -t overlay -o "lowerdir=$(realpath /sbin),upperdir=$1/upper,workdir=$1/work" overlay /sbin
mount -t s3fs-meta -o "cachedir=$1/state,nodev" "$2" "$3"
cat "$3/f"
findmnt --noheadings --output FSTYPE,OPTIONS "$3"
mount -o "remount,ro,cachedir=$1/state" "$3"
if touch "$3/new"; then exit 1; fi
mount -o "remount,rw,cachedir=$1/state" "$3"
touch "$3/new"
rm "$3/new"
umount "$3"
echo "$2 $3 s3fs-meta ro,_netdev,nofail,x-test,cachedir=$1/state 0 0" > "$1/fstab"
mount --fstab "$1/fstab" "$3"
cat "$3/f"
if touch "$3/new"; then exit 1; fi
umount "$3"
"""


@pytest.fixture
def namespace(tmp_path: Path, as_root: None) -> Path:
    """Return a directory for an overlay on /sbin, where mount(8) looks for its helper programs."""
    probe = ["unshare", "--mount", "sh", "-ec", "mount -t tmpfs test /mnt; mkdir /mnt/a /mnt/b"]
    overlay = "; mount -t overlay -o lowerdir=/sbin,upperdir=/mnt/a,workdir=/mnt/b overlay /sbin"
    probe[-1] += overlay
    if subprocess.run(probe, check=False, capture_output=True).returncode != 0:
        pytest.skip("cannot mount an overlay in a mount namespace")
    folder = tmp_path / "namespace"
    (folder / "work").mkdir(parents=True)
    (folder / "upper").mkdir()
    # A remount runs mount.fuse.s3fs-meta, because the kernel reports the type fuse.s3fs-meta.
    for name in ("mount.s3fs-meta", "mount.fuse.s3fs-meta"):
        helper = folder / "upper" / name
        helper.write_text(
            f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m s3fs_meta.cli.mount_helper "$@"\n'
        )
        helper.chmod(0o755)
    return folder


def test_mount_program_runs_the_helper_for_type_s3fs_meta_and_for_fstab_lines(
    place: Place, program: QuickProgram, namespace: Path
) -> None:
    """The commands ``mount -t s3fs-meta`` and ``mount --fstab`` use the helper."""
    program.ok("mount", place.url, place.mountpoint)
    (place.mountpoint / "f").write_bytes(b"content\n")
    program.ok("umount", place.mountpoint)
    program.cachedir.rename(namespace / "state")

    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", SCRIPT, "sh", namespace, place.url, place.mountpoint],
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    first, kind, second = done.stdout.splitlines()
    assert (first, second) == ("content", "content")
    assert kind.startswith("fuse.s3fs-meta")
    assert "nodev" in kind
    assert "nosuid" not in kind
    assert done.stderr.count("Read-only file system") == 2
