"""Tests of permissions, xattrs, ACLs, locks, special files and access times on a real mount.

Other users are real processes without root's privileges, so most of these tests need root.
"""

import contextlib
import errno
import fcntl
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.end_to_end.another_user import AnotherUser
from tests.end_to_end.system_calls import as_user, drop_page_cache, refused, wait_for_clock_tick
from tests.polling import WAIT_S_MAX
from tests.programs import Program

pytestmark = pytest.mark.mount


ALICE, BOB, TEAM = 51_001, 51_002, 51_100


def only_mode_of(path: Path) -> int:
    """Return the mode that stat(1) prints; stat(1) then requests only the mode from statx(2)."""
    done = subprocess.run(["stat", "-c", "%a", path], capture_output=True, text=True, check=True)
    return int(done.stdout, 8)


def owned(path: Path, uid: int, mode: int, gid: int | None = None) -> Path:
    """Set owner and mode of a file or directory. Create a file if the path does not exist."""
    if not path.exists():
        path.write_bytes(b"content")
    os.chown(path, uid, uid if gid is None else gid)
    path.chmod(mode)
    return path


def mode_of(path: Path) -> int:
    """Return the permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def append(name: str) -> None:
    """Append a byte to a file in the working directory."""
    fd = os.open(name, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, b"x")
    finally:
        os.close(fd)


def create(name: str, mode: int = 0o666) -> None:
    """Create a file in the working directory."""
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


# --- permissions of files -------------------------------------------------------------------------


@pytest.mark.usefixtures("as_root")
def test_permission_bits_are_enforced_for_other_users(folder: Path) -> None:
    """Another user gets EACCES for access, and EPERM for changes of attributes."""
    owned(folder / "f", ALICE, 0o600)
    (folder / "d").mkdir()
    owned(folder / "d", ALICE, 0o700)

    as_user(ALICE, folder, lambda: append("f"))
    for work in (
        lambda: append("f"),
        lambda: os.listdir("d"),
        lambda: os.stat("d/x"),
        lambda: os.mkdir("new"),
        lambda: os.unlink("f"),
    ):
        with refused(errno.EACCES):
            as_user(BOB, folder, work)
    for work in (
        lambda: os.chmod("f", 0o666),
        lambda: os.chown("f", BOB, BOB),
        lambda: os.utime("f", ns=(1, 1)),
    ):
        with refused(errno.EPERM):
            as_user(BOB, folder, work)
    with refused(errno.EPERM):
        as_user(ALICE, folder, lambda: os.chown("f", BOB, BOB))


@pytest.mark.usefixtures("as_root")
def test_group_members_have_the_permissions_of_the_group(folder: Path) -> None:
    """The file's group may be the primary or a supplementary group of the process."""
    owned(folder / "f", ALICE, 0o060, gid=TEAM)

    as_user(BOB, folder, lambda: append("f"), groups=(TEAM,))
    with refused(errno.EACCES):
        as_user(BOB, folder, lambda: append("f"))
    with refused(errno.EACCES):  # The group bits do not apply to the owner.
        as_user(ALICE, folder, lambda: append("f"), groups=(TEAM,))


@pytest.mark.usefixtures("as_root")
def test_other_users_are_refused_without_the_allow_other_option(mounted: Place) -> None:
    """Without allow_other another user gets EACCES even for a file with mode 0666."""
    mounted.mountpoint.chmod(0o777)
    owned(mounted.mountpoint / "f", ALICE, 0o666)

    for work in (lambda: os.stat("f"), lambda: append("f"), lambda: os.listdir(".")):
        with refused(errno.EACCES):
            as_user(ALICE, mounted.mountpoint, work)


def test_root_is_refused_without_the_allow_other_option(another_user: AnotherUser) -> None:
    """Without allow_other even root gets EACCES on the mount of another user."""
    another_user.program("mount", another_user.url, str(another_user.mountpoint))

    with refused(errno.EACCES):
        os.listdir(another_user.mountpoint)

    another_user.program("umount", str(another_user.mountpoint))


@pytest.mark.usefixtures("as_root")
def test_only_owners_can_rename_and_remove_files_in_a_sticky_directory(folder: Path) -> None:
    folder.chmod(0o1777)
    as_user(ALICE, folder, lambda: create("f"))

    for work in (lambda: os.unlink("f"), lambda: os.rename("f", "g")):
        with refused(errno.EPERM):
            as_user(BOB, folder, work)
    as_user(ALICE, folder, lambda: os.rename("f", "g"))
    os.chown(folder, BOB, BOB)
    as_user(BOB, folder, lambda: os.unlink("g"))
    assert os.listdir(folder) == []


@pytest.mark.usefixtures("as_root")
def test_setgid_directory_passes_its_group_to_new_entries(folder: Path) -> None:
    """New files in a setgid directory inherit its group; new directories also inherit setgid."""
    owned(folder, ALICE, 0o2777, gid=TEAM)
    as_user(BOB, folder, lambda: create("f"))
    as_user(BOB, folder, lambda: os.mkdir("d"))
    as_user(BOB, folder, lambda: os.mkfifo("d/fifo"))

    for name in ("f", "d", "d/fifo"):
        assert ((folder / name).stat().st_uid, (folder / name).stat().st_gid) == (BOB, TEAM)
    assert mode_of(folder / "d") & stat.S_ISGID
    assert not mode_of(folder / "f") & stat.S_ISGID


@pytest.mark.usefixtures("as_root")
def test_write_by_an_unprivileged_user_clears_suid_and_sgid(folder: Path) -> None:
    file = owned(folder / "f", ALICE, 0o6777)
    append(str(file))
    assert mode_of(file) == 0o6777

    as_user(BOB, folder, lambda: append("f"))
    assert mode_of(file) == 0o777
    file.chmod(0o6777)
    as_user(BOB, folder, lambda: os.truncate("f", 1))
    assert mode_of(file) == 0o777
    assert file.stat().st_size == 1


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("content", [b"", b"program"])
def test_unprivileged_open_with_o_trunc_clears_suid_and_sgid(folder: Path, content: bytes) -> None:
    """A truncation by root keeps the suid and sgid bits."""
    file = owned(folder / "f", ALICE, 0o6777)
    file.write_bytes(content)
    file.chmod(0o6777)
    assert mode_of(file) == 0o6777

    reader = os.open(file, os.O_RDONLY)
    try:
        as_user(BOB, folder, lambda: os.close(os.open("f", os.O_WRONLY | os.O_TRUNC)))
        assert only_mode_of(file) == 0o777
        assert stat.S_IMODE(os.fstat(reader).st_mode) == mode_of(file) == 0o777
    finally:
        os.close(reader)
    file.chmod(0o6777)
    os.close(os.open(file, os.O_WRONLY | os.O_TRUNC))
    assert mode_of(file) == 0o6777


@pytest.mark.usefixtures("as_root")
def test_changing_owner_or_group_of_a_file_clears_suid_and_sgid(folder: Path) -> None:
    """A change of the owner, even by root, clears the suid and sgid bits of a file."""
    file = owned(folder / "f", ALICE, 0o6755)
    as_user(ALICE, folder, lambda: os.chown("f", -1, TEAM), groups=(TEAM,))
    assert (mode_of(file), file.stat().st_gid) == (0o755, TEAM)

    file.chmod(0o6755)
    os.chown(file, BOB, BOB)
    assert mode_of(file) == 0o755
    (folder / "d").mkdir()
    owned(folder / "d", ALICE, 0o2755)
    os.chown(folder / "d", BOB, BOB)
    assert mode_of(folder / "d") == 0o2755


@pytest.mark.usefixtures("as_root")
def test_owner_who_is_not_in_the_group_cannot_set_the_setgid_bit(folder: Path) -> None:
    """Only members of a file's group can set its setgid bit with chmod(2)."""
    file = owned(folder / "f", ALICE, 0o755, gid=TEAM)

    as_user(ALICE, folder, lambda: os.chmod("f", 0o2755))
    assert mode_of(file) == 0o755
    as_user(ALICE, folder, lambda: os.chmod("f", 0o2755), groups=(TEAM,))
    assert mode_of(file) == 0o2755


# --- extended attributes ---------------------------------------------------------------------------


def test_flags_xattr_create_and_xattr_replace_are_enforced(folder: Path) -> None:
    """XATTR_REPLACE fails with ENODATA for a missing attribute, XATTR_CREATE with EEXIST."""
    file = folder / "f"
    file.touch()
    with refused(errno.ENODATA):
        os.setxattr(file, "user.a", b"1", os.XATTR_REPLACE)
    os.setxattr(file, "user.a", b"1", os.XATTR_CREATE)
    with refused(errno.EEXIST):
        os.setxattr(file, "user.a", b"2", os.XATTR_CREATE)
    assert os.getxattr(file, "user.a") == b"1"
    os.setxattr(file, "user.a", b"3", os.XATTR_REPLACE)
    os.setxattr(file, "user.empty", b"")
    for name, code in (("user.a", errno.EEXIST), ("user.b", errno.ENODATA)):
        with refused(code):
            os.setxattr(file, name, b"4", os.XATTR_CREATE | os.XATTR_REPLACE)

    assert {name: os.getxattr(file, name) for name in os.listxattr(file)} == {
        "user.a": b"3",
        "user.empty": b"",
    }


def test_xattr_names_and_values_have_the_size_limits_of_linux(folder: Path) -> None:
    """An xattr name has up to 255 bytes; a value, and the list of names, have up to 64 KiB."""
    file = folder / "f"
    file.touch()
    name = "user." + "n" * 250
    os.setxattr(file, name, b"v" * 65_536)
    assert os.getxattr(file, name) == b"v" * 65_536
    with refused(errno.ERANGE):
        os.setxattr(file, name + "n", b"")
    with refused(errno.E2BIG):
        os.setxattr(file, name, b"v" * 65_537)
    assert len(os.getxattr(file, name)) == 65_536

    count = 0
    with refused(errno.ENOSPC):
        while True:
            os.setxattr(file, f"user.{count:04d}" + "n" * 246, b"")
            count += 1
    assert count > 240
    assert len(os.listxattr(file)) == count + 1


def test_removing_a_missing_xattr_fails_with_enodata(folder: Path) -> None:
    for name in ("f", "user.a", "g"):
        (folder / name).write_bytes(name.encode())
    os.setxattr(folder / "g", "user.a", b"kept")

    with refused(errno.ENODATA):
        os.removexattr(folder / "f", "user.a")

    assert sorted(os.listdir(folder)) == ["f", "g", "user.a"]
    assert (folder / "user.a").read_bytes() == b"user.a"
    assert os.getxattr(folder / "g", "user.a") == b"kept"
    os.removexattr(folder / "g", "user.a")
    with refused(errno.ENODATA):
        os.getxattr(folder / "g", "user.a")


@pytest.mark.usefixtures("as_root")
def test_trusted_and_security_xattrs_require_root(folder: Path) -> None:
    """Unprivileged users cannot write trusted or security attributes, nor read trusted ones."""
    file = owned(folder / "f", ALICE, 0o666)
    os.setxattr(file, "trusted.a", b"t")
    os.setxattr(file, "security.test", b"s")
    os.setxattr(file, "user.a", b"u")

    assert sorted(os.listxattr(file)) == ["security.test", "trusted.a", "user.a"]
    assert as_user(ALICE, folder, lambda: os.getxattr("f", "security.test")) == b"s"
    assert "trusted.a" not in as_user(ALICE, folder, lambda: os.listxattr("f"))
    for name in ("trusted.a", "security.test"):
        with refused(errno.EPERM):
            as_user(ALICE, folder, partial(os.setxattr, "f", name, b"x"))
    with refused(errno.ENODATA):
        as_user(ALICE, folder, lambda: os.getxattr("f", "trusted.a"))


@pytest.mark.usefixtures("as_root")
def test_symlinks_and_fifos_can_have_trusted_xattrs(folder: Path) -> None:
    """Symlinks and FIFOs accept ``trusted`` and refuse ``user`` attributes, as in Linux."""
    (folder / "l").symlink_to("nowhere")
    os.mkfifo(folder / "fifo")
    for name in ("l", "fifo"):
        os.setxattr(folder / name, "trusted.a", b"t", follow_symlinks=False)
        assert os.getxattr(folder / name, "trusted.a", follow_symlinks=False) == b"t"
        with refused(errno.EPERM):
            os.setxattr(folder / name, "user.a", b"u", follow_symlinks=False)


def test_xattr_of_an_unknown_namespace_is_refused(folder: Path) -> None:
    for name in ("mine.a", "system.a"):
        with refused(errno.EOPNOTSUPP):
            os.setxattr(folder, name, b"")


# --- access control lists --------------------------------------------------------------------------


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Set the umask to 0 until the test ends."""
    before = os.umask(0)
    yield
    os.umask(before)


def setfacl(*words: str | Path) -> None:
    """Change an ACL with setfacl."""
    subprocess.run(["setfacl", *words], check=True)


def getfacl(path: Path) -> set[str]:
    """Return the lines of getfacl without comments on effective rights."""
    words = ["--omit-header", "--numeric", "--no-effective", "--absolute-names"]
    done = subprocess.run(["getfacl", *words, path], check=True, capture_output=True, text=True)
    return set(filter(None, done.stdout.splitlines()))


@pytest.mark.usefixtures("as_root", "acl_tools")
def test_acl_can_grant_access_to_another_user(folder: Path) -> None:
    """An ACL's mask limits the rights of named users; chmod(2) with group bits sets the mask."""
    file = owned(folder / "f", ALICE, 0o600)
    with refused(errno.EACCES):
        as_user(BOB, folder, lambda: append("f"))
    setfacl("-m", f"u:{BOB}:rw", file)

    as_user(BOB, folder, lambda: append("f"))
    assert getfacl(file) == {
        "user::rw-",
        f"user:{BOB}:rw-",
        "group::---",
        "mask::rw-",
        "other::---",
    }
    assert mode_of(file) == 0o660
    file.chmod(0o640)
    with refused(errno.EACCES):
        as_user(BOB, folder, lambda: append("f"))
    assert "mask::r--" in getfacl(file)
    setfacl("-b", file)
    assert getfacl(file) == {"user::rw-", "group::---", "other::---"}


@pytest.mark.usefixtures("acl_tools", "no_umask")
def test_default_acl_is_inherited(folder: Path) -> None:
    """A new entry inherits the default ACL of its directory, limited by the requested mode.

    The test sets the umask to 0. The mount ignores the umask under a default ACL; umask 0 keeps the
    other modes simple.
    """
    setfacl("-d", "-m", f"u::rwx,u:{BOB}:rwx,g::rx,m::rwx,o::-", folder)
    create(str(folder / "f"), 0o660)
    (folder / "d").mkdir(0o777)
    (folder / "d" / "deep").mkdir(0o700)
    given = {"user::rwx", f"user:{BOB}:rwx", "group::r-x", "mask::rwx", "other::---"}
    defaults = {f"default:{line}" for line in given}

    assert getfacl(folder / "f") == {
        "user::rw-",
        f"user:{BOB}:rwx",
        "group::r-x",
        "mask::rw-",
        "other::---",
    }
    assert defaults < getfacl(folder / "d")
    assert f"user:{BOB}:rwx" in getfacl(folder / "d")
    assert getfacl(folder / "d" / "deep") == (given - {"mask::rwx"}) | {"mask::---"} | defaults


@pytest.mark.usefixtures("as_root", "acl_tools")
def test_acl_is_enforced_after_a_remount(place: Place, program: Program) -> None:
    program.ok("mount", "-o", "allow_other", place.url, place.mountpoint)
    place.mountpoint.chmod(0o755)
    setfacl("-m", f"u:{BOB}:r", owned(place.mountpoint / "f", ALICE, 0o600))
    program.ok("umount", place.mountpoint)
    program.ok("mount", "-o", "allow_other", place.url, place.mountpoint)

    def read() -> bytes:
        return Path("f").read_bytes()

    assert as_user(BOB, place.mountpoint, read) == b"content"
    with refused(errno.EACCES):
        as_user(TEAM, place.mountpoint, read)
    program.ok("umount", place.mountpoint)


# --- locks of files -------------------------------------------------------------------------------

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX, *map(int, sys.argv[3:]))
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held_by_another(file: Path, kind: str, *arguments: int) -> Iterator[None]:
    """Keep a file locked by another process until the context ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, file, kind, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
        process.communicate()


def test_flock_excludes_other_processes_until_its_holder_exits(folder: Path) -> None:
    (folder / "f").touch()
    with (folder / "f").open("r+b") as file:
        with held_by_another(folder / "f", "flock"), pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_record_lock_excludes_other_processes_only_from_its_range(folder: Path) -> None:
    """If another process locks bytes 10 to 19, only locks that overlap this range are refused."""
    (folder / "f").write_bytes(bytes(100))
    with (folder / "f").open("r+b") as file:
        with held_by_another(folder / "f", "lockf", 10, 10):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 20)
            for start in (10, 19, 5):
                with pytest.raises(BlockingIOError):
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, start)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- special files ---------------------------------------------------------------------------------


def test_fifo_transfers_bytes_between_two_processes(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    with subprocess.Popen(["cat", folder / "fifo"], stdout=subprocess.PIPE) as reader:
        (folder / "fifo").write_bytes(b"through")
        assert reader.communicate()[0] == b"through"
    assert (folder / "fifo").stat().st_size == 0


def test_socket_accepts_connections_at_its_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)  # The path of a socket is limited to 107 bytes.
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("s")
        server.listen()
        client.connect("s")
        with server.accept()[0] as connection:
            client.sendall(b"hello")
            assert select.select([connection], [], [], WAIT_S_MAX)[0]
            assert connection.recv(5) == b"hello"
    assert stat.S_ISSOCK((folder / "s").stat().st_mode)


@pytest.mark.usefixtures("as_root")
def test_device_node_keeps_its_number_and_cannot_be_opened_on_a_nodev_mount(folder: Path) -> None:
    """Opening a device fails with EACCES, because ``nodev`` is the default of mount."""
    for name, kind, device in (
        ("null", stat.S_IFCHR, os.makedev(1, 3)),
        ("disk", stat.S_IFBLK, os.makedev(259, 1_048_575)),
    ):
        os.mknod(folder / name, kind | 0o666, device)
        assert (folder / name).stat().st_rdev == device
        assert stat.S_IFMT((folder / name).stat().st_mode) == kind
        with refused(errno.EACCES):
            os.close(os.open(folder / name, os.O_RDONLY))


@pytest.mark.usefixtures("as_root")
def test_suid_bit_has_no_effect_on_a_nosuid_mount(folder: Path) -> None:
    """A suid program runs as the calling user, because ``nosuid`` is the default of mount."""
    program = folder / "id"
    shutil.copyfile("/usr/bin/id", program)
    program.chmod(0o4755)

    done = subprocess.run(
        ["./id", "--user"], cwd=folder, user=ALICE, capture_output=True, text=True, check=True
    )

    assert int(done.stdout) == ALICE


# --- access times and statfs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "changes"),
    [("noatime", [False, False]), ("relatime", [True, False]), ("strictatime", [True, True])],
)
def test_mount_option_selects_when_atime_is_updated(
    place: Place, program: Program, option: str, changes: list[bool]
) -> None:
    program.ok("mount", "-o", option, place.url, place.mountpoint)
    file = place.mountpoint / "f"
    file.write_bytes(b"x" * 100_000)
    changed = []
    for _ in changes:
        drop_page_cache(file)
        before = file.stat().st_atime_ns
        wait_for_clock_tick()
        file.read_bytes()
        changed.append(file.stat().st_atime_ns > before)
    program.ok("umount", place.mountpoint)

    assert changed == changes


def test_statfs_counts_every_new_file_and_its_used_space(mounted: Place) -> None:
    """The test has its own mount, because files of other tests may be released at any time."""
    folder = mounted.mountpoint
    before = os.statvfs(folder)
    for number in range(10):
        (folder / str(number)).write_bytes(os.urandom(100_000))
        drop_page_cache(folder / str(number))
    after = os.statvfs(folder)

    assert after.f_namemax == 255
    assert (after.f_files - after.f_ffree) - (before.f_files - before.f_ffree) == 10
    used = (before.f_bfree - after.f_bfree) * after.f_frsize
    assert abs(used - 1_000_000) <= after.f_frsize
