"""The helper program that mount(8) runs for an s3fs-meta filesystem."""

import subprocess
import sys
from pathlib import Path

import pytest

from s3fs_meta.cli import mount_helper
from s3fs_meta.errors import UsageError
from tests.cli.conftest import Place
from tests.programs import Program

MODULE = "s3fs_meta.cli.mount_helper"


def test_mount_helper_accepts_arguments_in_any_order() -> None:
    """The mount helper accepts options after the mountpoint or before the URL."""
    call = mount_helper.parse(["s3://b/p", "/mnt", "-n", "-o", "ro,x-a", "-t", "s3fs-meta"])

    assert call == ("s3://b/p", Path("/mnt"), ["ro,x-a"], False, False)
    assert mount_helper.parse(["-sfv", "s3://b/p", "/mnt"]).fake
    assert mount_helper.parse(["s3://b/p", "/mnt", "-nr", "-o", "rw", "-w"]).options == [
        *("ro", "rw", "rw")
    ]


@pytest.mark.parametrize(
    "words", [[], ["s3://b/p"], ["a", "b", "c"], ["-x", "a", "b"], ["s3://b/p", ""], ["", "/mnt"]]
)
def test_mount_helper_prints_its_usage_for_invalid_arguments(words: list[str]) -> None:
    with pytest.raises(UsageError, match=r"usage: mount\.s3fs-meta"):
        mount_helper.parse(words)


def test_mount_helper_without_a_passphrase_names_the_mount_option(
    program: Program, empty: Place, tmp_path: Path
) -> None:
    """mount(8) passes only mount options to the helper, and systemd provides no terminal."""
    (tmp_path / "pass").write_text("secret\n")
    url = f"{empty.url}-encrypted"
    program.ok("mkfs", "--passphrase-file", tmp_path / "pass", url)

    done = subprocess.run(
        [sys.executable, "-m", MODULE, url, empty.mountpoint, "-o", f"cachedir={program.cachedir}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=program.environment,
        start_new_session=True,
    )

    assert done.returncode == 32
    assert "passphrase_file= in fstab" in done.stderr


def test_mount_helper_exits_with_1_for_an_invalid_option(program: Program, empty: Place) -> None:
    """Status 1 means wrong usage, as the manual page mount(8) documents."""
    done = program.run(empty.url, empty.mountpoint, "-o", "comit=1", module=MODULE, here=False)

    assert done.returncode == 1
    assert done.stderr == (
        "mount.s3fs-meta: unknown mount option 'comit'; did you mean 'commit'?\n"
    )


def test_mount_helper_with_option_f_only_checks_its_arguments(
    program: Program, empty: Place
) -> None:
    """With the option -f of mount(8), the helper performs a dry run that creates no bucket."""
    done = program.run(empty.url, empty.mountpoint, "-f", module=MODULE, here=False)

    assert done.returncode == 0
    assert not empty.bucket.exists()


@pytest.mark.mount
def test_mount_helper_accepts_the_options_of_an_fstab_line(program: Program, place: Place) -> None:
    """The helper ignores fstab options that are meant for mount(8) and systemd."""
    options = f"rw,_netdev,nofail,x-systemd.automount,cachedir={program.cachedir}"

    done = program.run(place.url, place.mountpoint, "-o", options, module=MODULE, here=False)

    assert done.returncode == 0, done.stderr
    (place.mountpoint / "f").touch()
    program.ok("umount", place.mountpoint)


@pytest.mark.mount
def test_mount_helper_exits_with_32_if_the_mount_fails(program: Program, empty: Place) -> None:
    """Status 32 means that the mount failed, as the manual page mount(8) documents."""
    empty.bucket.mkdir()
    options = f"cachedir={program.cachedir}"

    done = program.run(empty.url, empty.mountpoint, "-o", options, module=MODULE, here=False)

    assert done.returncode == 32


@pytest.mark.mount
def test_mount_helper_can_mount_if_its_standard_streams_are_closed(
    program: Program, place: Place
) -> None:
    """A service manager may call mount(8), and so the helper, with closed file descriptors."""
    words: list[str | Path] = [place.url, place.mountpoint, "-o", f"cachedir={program.cachedir}"]
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-m", MODULE]

    done = subprocess.run([*shell, *words], check=False, env=program.environment)

    assert done.returncode == 0

    (place.mountpoint / "f").write_bytes(b"content")
    assert (place.mountpoint / "f").read_bytes() == b"content"
    program.ok("umount", place.mountpoint)
