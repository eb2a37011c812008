"""Tests of changes of attributes: chmod, chown and utimensat."""

import pytest

from s3fs_meta.errors import NoInodeError, NotPermittedError
from s3fs_meta.fs import acl
from s3fs_meta.fs.acl import GROUP_OBJ, MASK, OTHER, USER_OBJ, AclEntry
from s3fs_meta.fs.acl import USER as NAMED_USER
from s3fs_meta.fs.attributes import (
    SetAttributes,
    access_time_due,
    changed,
    without_privileges,
)
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.limits import TIME_NS_MAX, TIME_NS_MIN
from s3fs_meta.model import ROOT_INO, AccessTime, Attributes, Ino
from s3fs_meta.mount_state import MountState
from s3fs_meta.options.settings import FilesystemOptions
from tests.fs.conftest import ROOT, SECOND_NS, T0, USER, Volume, make_directory, make_file

FILE = Attributes(Ino(5), 0o106755, 1, 10, 20, 0, 0, T0, T0, T0, 0, Ino(1), 0, T0)
DAY_NS = 86_400 * SECOND_NS


def test_chmod_keeps_the_file_type() -> None:
    """Chmod changes the lower twelve bits of the mode and the ctime, and nothing else."""
    after = changed(FILE, SetAttributes(mode=0o040600), T0 + 1)
    assert after == FILE._replace(mode=0o100600, ctime_ns=T0 + 1)


def test_times_before_1970_are_stored_to_the_nanosecond() -> None:
    """Times before 1970 are exact to the nanosecond. A request without ctime sets it to now."""
    wanted = SetAttributes(atime_ns=-1, mtime_ns=123_456_789)
    after = changed(FILE, wanted, T0 + 1)
    assert (after.atime_ns, after.mtime_ns, after.ctime_ns) == (-1, 123_456_789, T0 + 1)
    sent = changed(FILE, SetAttributes(ctime_ns=77), T0 + 1)
    assert sent.ctime_ns == 77


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (0o106755, 0o100755),
        (0o106745, 0o102745),
        (0o146755, 0o140755),
        (0o014745, 0o010745),
        (0o046755, 0o046755),
    ],
)
def test_chown_clears_privilege_bits(mode: int, expected: int) -> None:
    """Chown clears suid, and clears sgid if the group may execute.

    A directory keeps the two bits.
    """
    before = FILE._replace(mode=mode)
    after = changed(before, SetAttributes(gid=30), T0)
    assert (after.mode, after.gid) == (expected, 30)


def test_clearing_privilege_bits_preserves_all_other_mode_bits() -> None:
    """Clearing suid and sgid keeps the sticky bit and all permissions."""
    assert without_privileges(0o107777) == 0o101777


@pytest.mark.parametrize(
    ("policy", "atime", "mtime", "ctime", "due"),
    [
        (AccessTime.NEVER, 0, 5, 5, False),
        (AccessTime.ALWAYS, 10, 5, 5, True),
        (AccessTime.RELATIVE, 10, 5, 5, False),
        (AccessTime.RELATIVE, 10, 10, 5, True),
        (AccessTime.RELATIVE, 10, 5, 11, True),
        (AccessTime.RELATIVE, 10 - DAY_NS, 10 - 2 * DAY_NS, 10 - 2 * DAY_NS, True),
    ],
)
def test_atime_update_follows_the_mount_option(
    policy: AccessTime, atime: int, mtime: int, ctime: int, due: bool
) -> None:
    """With relatime, atime is updated once after a change and once a day; see mount(8)."""
    row = FILE._replace(atime_ns=atime, mtime_ns=mtime, ctime_ns=ctime)
    assert access_time_due(policy, row, 10) is due


async def test_relatime_updates_atime_of_a_frequently_read_file_once_a_day(volume: Volume) -> None:
    """With relatime, a file that is read constantly gets a new atime after a day."""
    async with volume.mounted(FilesystemOptions(access_time=AccessTime.RELATIVE)) as fs:
        ino = make_file(fs, b"f")
        volume.clock.later()
        await fs.data.read(ino, 0, 1)
        await fs.data.write(ino, 0, b"content")
        volume.clock.later()
        await fs.data.read(ino, 0, 1)
        first_ns = volume.clock.time_ns
        volume.clock.time_ns += DAY_NS
        while fs.getattr(ino).atime_ns == first_ns:
            await fs.data.read(ino, 0, 1)
        assert fs.getattr(ino).atime_ns == volume.clock.time_ns


async def test_getattr_returns_the_result_of_setattr(fs: Filesystem, volume: Volume) -> None:
    ino = make_file(fs, b"f")
    volume.clock.later()
    wanted = SetAttributes(mode=0o4711, uid=3, gid=4, atime_ns=5, mtime_ns=6)
    after = await fs.setattr(ino, wanted, ROOT)
    assert fs.getattr(ino) == after
    assert (after.mode, after.uid, after.gid, after.atime_ns) == (0o104711, 3, 4, 5)
    with pytest.raises(NoInodeError):
        await fs.setattr(Ino(999), wanted, ROOT)


@pytest.mark.parametrize("mode", [None, 0o600])
async def test_reply_to_setattr_has_the_nearest_times_that_can_be_stored(
    fs: Filesystem, mode: int | None
) -> None:
    """The kernel caches the times in the reply, so they must equal the stored times."""
    ino = make_file(fs, b"f")
    wanted = SetAttributes(mode=mode, atime_ns=TIME_NS_MAX + 1, mtime_ns=TIME_NS_MIN - 1)
    after = await fs.setattr(ino, wanted, ROOT)
    assert (after.atime_ns, after.mtime_ns) == (TIME_NS_MAX, TIME_NS_MIN)
    assert fs.getattr(ino) == after


async def test_kernel_can_set_times_without_other_attributes(fs: Filesystem) -> None:
    ino = make_file(fs, b"f")
    after = await fs.setattr(ino, SetAttributes(mtime_ns=T0 - 5, ctime_ns=T0 - 3), ROOT)
    assert fs.getattr(ino) == after
    assert (after.mtime_ns, after.ctime_ns, after.atime_ns) == (T0 - 5, T0 - 3, T0)


async def test_inode_times_from_the_kernel_are_not_stored_after_unlink(fs: Filesystem) -> None:
    ino = make_file(fs, b"f")
    fs.lookups.add(ino)
    fs.namespace.unlink(ROOT_INO, b"f")
    before = fs.getattr(ino)
    answered = await fs.setattr(ino, SetAttributes(mtime_ns=1, ctime_ns=2), ROOT)
    assert answered == before._replace(mtime_ns=1, ctime_ns=2)
    assert fs.getattr(ino) == before


@pytest.mark.parametrize("is_directory", [False, True])
async def test_times_that_a_program_sets_after_unlink_are_shown(
    fs: Filesystem, is_directory: bool
) -> None:
    """The kernel keeps neither the atime of a file nor times of a directory, so the daemon must."""
    ino = (make_directory if is_directory else make_file)(fs, b"f")
    fs.lookups.add(ino)
    (fs.namespace.remove_directory if is_directory else fs.namespace.unlink)(ROOT_INO, b"f")
    await fs.setattr(ino, SetAttributes(atime_ns=1, mtime_ns=2), ROOT)
    if is_directory:
        await fs.setattr(ino, SetAttributes(mtime_ns=3), ROOT)
    found = fs.getattr(ino)
    assert (found.atime_ns, found.mtime_ns) == (1, 3 if is_directory else 2)


async def test_times_of_a_file_without_a_name_are_stored_before_it_gets_a_name(
    fs: Filesystem,
) -> None:
    """The times of a file that was created with O_TMPFILE stay when link(2) names the file."""
    ino = fs.namespace.make_nameless(ROOT_INO, 0o644, USER).ino
    fs.open_files.opened(ino, writes=True, is_linkable=True)
    await fs.setattr(ino, SetAttributes(mtime_ns=1, ctime_ns=2), ROOT)
    assert fs.getattr(ino).mtime_ns == 1
    await fs.setattr(ino, SetAttributes(atime_ns=3), ROOT)
    linked = fs.namespace.link(ino, ROOT_INO, b"f", is_linkable=True)
    assert (linked.atime_ns, linked.mtime_ns) == (3, 1)


async def test_chmod_sets_the_mask_of_an_acl(fs: Filesystem) -> None:
    """The group bits of a file with an ACL equal the mask of the ACL."""
    ino = make_file(fs, b"f")
    entries = (
        AclEntry(USER_OBJ, 6),
        AclEntry(NAMED_USER, 7, 42),
        AclEntry(GROUP_OBJ, 4),
        AclEntry(MASK, 7),
        AclEntry(OTHER, 0),
    )
    fs.xattrs.set(ino, acl.ACCESS, acl.encode(entries), ROOT)
    assert fs.getattr(ino).mode == 0o100670
    await fs.setattr(ino, SetAttributes(mode=0o751), ROOT)
    stored = acl.decode(fs.xattrs.get(ino, acl.ACCESS))
    assert [entry.perm for entry in stored] == [7, 7, 4, 5, 1]


async def test_reading_sets_atime_only_on_a_writable_mount(volume: Volume) -> None:
    """Reads of files, directories and symlinks set atime, but not on a degraded mount."""
    async with volume.mounted(FilesystemOptions(access_time=AccessTime.ALWAYS)) as fs:
        file, directory = make_file(fs, b"f"), make_directory(fs, b"d")
        link = fs.namespace.make_symlink(ROOT_INO, b"l", b"t", USER).ino
        await fs.write(file, 0, b"content")
        now_ns = volume.clock.later()
        await fs.read(file, 0, 1)
        fs.open_directory(directory)
        fs.readlink(link)
        for ino in (file, directory, link):
            row = fs.getattr(ino)
            assert (row.atime_ns, row.ctime_ns, row.mtime_ns) == (now_ns, T0, T0)

        fs.status.enter(MountState.DEGRADED, "a test")
        volume.clock.later()
        await fs.read(file, 0, 1)
        assert fs.getattr(file).atime_ns == now_ns


async def test_clearing_privilege_bits_preserves_all_times(fs: Filesystem, volume: Volume) -> None:
    """Clearing suid and sgid changes no time, because the following write sets the times."""
    ino = make_file(fs, b"f", mode=0o6755)
    before = fs.getattr(ino)
    volume.clock.later()
    assert fs.attributes.clear_privileges(ino)
    assert fs.getattr(ino) == before._replace(mode=0o100755)
    assert not fs.attributes.clear_privileges(ino)


async def test_privilege_bits_of_a_locked_file_cannot_be_cleared(fs: Filesystem) -> None:
    """The daemon clears suid and sgid before a write, so the write fails as well."""
    ino = make_file(fs, b"f", mode=0o4755)
    await fs.tree_lock.lock(ROOT_INO, b"f", ino)
    with pytest.raises(NotPermittedError):
        fs.attributes.clear_privileges(ino)
