"""Tests that the systemd units are valid and do not hide the mount."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
import typer

from s3fs_meta.cli import entry
from s3fs_meta.options.settings import parse_mount_options
from tests.conftest import REQUIRED

FOLDER: Final = Path(__file__).parents[2] / "contrib" / "systemd"
SYSTEM: Final = FOLDER / "system/s3fs-meta@.service"
USER: Final = FOLDER / "user/s3fs-meta@.service"
BACKUP: Final = FOLDER / "system/s3fs-meta-backup@.service"
TIMER: Final = FOLDER / "system/s3fs-meta-backup@.timer"

# These options create a mount namespace, which hides the mount. Source: systemd.exec(5).
_NAMESPACE_OPTIONS: Final = """BindPaths BindReadOnlyPaths ExecPaths InaccessiblePaths MountAPIVFS MountFlags MountImages
    NoExecPaths PrivateDevices PrivateIPC PrivateMounts PrivateTmp PrivateUsers ProcSubset
    ProtectControlGroups ProtectHome ProtectKernelLogs ProtectKernelModules ProtectKernelTunables
    ProtectProc ProtectSystem ReadOnlyPaths ReadWritePaths RootDirectory RootImage TemporaryFileSystem
    DynamicUser CacheDirectory LogsDirectory RuntimeDirectory StateDirectory LoadCredential
"""
# These options imply NoNewPrivileges= in a user unit. Source: systemd.exec(5).
_PRIVILEGE_OPTIONS: Final = """NoNewPrivileges SystemCallFilter SystemCallLog SystemCallArchitectures RestrictAddressFamilies
    RestrictFileSystems RestrictNamespaces RestrictRealtime RestrictSUIDSGID LockPersonality
    MemoryDenyWriteExecute ProtectClock ProtectHostname PrivateDevices ProtectKernelModules
    ProtectKernelLogs ProtectKernelTunables DynamicUser CapabilityBoundingSet
"""


def options_of(unit: Path) -> set[str]:
    """Return the names of all options in the section Service of a unit."""
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keep the case of names
    parser.read(unit)
    return set(parser["Service"])


@pytest.mark.parametrize("unit", [SYSTEM, USER], ids=["system", "user"])
def test_options_of_systemd_units_create_no_mount_namespace(unit: Path) -> None:
    assert not options_of(unit) & set(_NAMESPACE_OPTIONS.split())


def test_systemd_user_unit_permits_set_user_id_programs() -> None:
    """No option of the user unit removes the privileges of fusermount3."""
    assert not options_of(USER) & set(_PRIVILEGE_OPTIONS.split())
    assert options_of(SYSTEM) & set(_PRIVILEGE_OPTIONS.split())


def test_example_configuration_of_a_systemd_unit_contains_only_valid_options() -> None:
    lines = (FOLDER / "example.conf").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if not line.startswith("#"))

    assert values.keys() == {"URL", "MOUNTPOINT", "OPTIONS"}
    assert parse_mount_options([values["OPTIONS"]]).allow_other


@pytest.mark.parametrize(
    ("unit", "flags"), [(SYSTEM, []), (USER, ["--user"])], ids=["system", "user"]
)
def test_systemd_finds_no_error_in_the_unit_files(
    unit: Path, flags: list[str], tmp_path: Path
) -> None:
    """``systemd-analyze verify`` accepts each unit."""
    if shutil.which("systemd-analyze") is None and "systemd" not in REQUIRED:
        pytest.skip("systemd-analyze is not installed")
    text = unit.read_text()
    for path in ("/usr/local/bin/s3fs-meta", "%h/.local/bin/s3fs-meta"):
        text = text.replace(path, "/bin/true")
    copy = tmp_path / "s3fs-meta@home.service"
    copy.write_text(text)

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *flags, copy],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_finds_no_error_in_the_backup_units(tmp_path: Path) -> None:
    """systemd-analyze verifies the backup timer, the backup service and the mount together."""
    if shutil.which("systemd-analyze") is None and "systemd" not in REQUIRED:
        pytest.skip("systemd-analyze is not installed")
    copies = []
    for unit in (SYSTEM, BACKUP, TIMER):
        text = unit.read_text().replace("/usr/local/bin/s3fs-meta", "/bin/true")
        copies.append(tmp_path / unit.name.replace("@", "@home"))
        copies[-1].write_text(text.replace("/usr/bin/rsync", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *copies],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_of_the_backup_unit_are_valid() -> None:
    lines = [line for line in BACKUP.read_text().splitlines() if "bin/s3fs-meta " in line]
    assert len(lines) == 3
    for line in lines:
        command, *words = line.partition("bin/s3fs-meta ")[2].split()
        known = inspect_options(command)
        assert {word for word in words if word.startswith("--") and word != "--"} <= known
    kept = re.search(r'"KEEP=(.*)"', BACKUP.read_text())
    assert kept is not None
    assert {word for word in kept[1].split() if word.startswith("--")} <= inspect_options("keep")


def checked(source: str, mountpoint: str) -> "subprocess.CompletedProcess[bytes]":
    """Run the check of the backup unit before a backup."""
    (line,) = re.findall(r"^ExecStartPre=(.*)$", BACKUP.read_text(), re.MULTILINE)
    # systemd replaces "$$" and "%%" as described in systemd.service(5) and systemd.unit(5).
    words = shlex.split(line.replace("$$", "$").replace("%%", "%"))
    environment = {"SOURCE": source, "MOUNTPOINT": mountpoint}
    return subprocess.run(words, env=environment, capture_output=True, check=False)


def test_backup_unit_refuses_an_empty_source() -> None:
    done = checked("", "/srv/backup")

    assert done.returncode == 1
    assert done.stderr.startswith(b"SOURCE= is empty in ")


@pytest.mark.parametrize(
    ("source", "mountpoint", "status"),
    [
        ("/home/", "/srv/home", 0),
        ("/home/", "/home/me/cloud", 1),
        ("/home", "/home/me/cloud", 1),
        ("/home/", "/home-cloud", 0),
        ("/", "/srv/home", 1),
        ("/home//", "/home/me/cloud", 1),
        ("LINK/", "/home/me/cloud", 1),
        ("/srv/home/a/", "/srv/home", 0),
    ],
)
def test_backup_unit_refuses_a_source_that_contains_the_mountpoint(
    source: str, mountpoint: str, status: int, tmp_path: Path
) -> None:
    """If rsync copied the mounted files, each backup would copy all earlier backups."""
    link = tmp_path / "link"
    link.symlink_to("/home")
    source = source.replace("LINK", str(link))
    done = checked(source, mountpoint)

    assert done.returncode == status
    assert (b"contains the mountpoint" in done.stderr) == (status != 0)


def inspect_options(command: str) -> set[str]:
    """Return the names of all options that a command has."""
    group = typer.main.get_command(entry.make_app([command, "version"]))
    assert isinstance(group, typer.core.TyperGroup)
    return {name for one in group.commands[command].params for name in one.opts}


def test_unit_check_reports_an_unknown_command_option(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None and "systemd" not in REQUIRED:
        pytest.skip("systemd-analyze is not installed")
    wrong = tmp_path / "wrong.service"
    wrong.write_text("[Service]\nExecStart=/bin/true\nWatchdogSeconds=4\n")

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", wrong],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "WatchdogSeconds" in done.stderr
