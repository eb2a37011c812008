"""Tests of searching /proc for processes that have a filesystem mounted."""

from s3fs_meta.mount.existing import mount_holders, mount_table
from s3fs_meta.mount.existing.mount_holders import Holder
from s3fs_meta.mount.existing.mount_table import Mounted


def test_search_for_holders_of_an_unmounted_device_finds_no_process() -> None:
    wanted = Mounted("/mnt", "0:0", mount_table.FS_TYPE, "local:///bucket")
    assert not mount_holders.is_mounted_here(wanted)
    assert mount_holders.find(wanted) == []


def test_search_for_holders_ignores_mounts_of_another_filesystem_type() -> None:
    """A mount with the same device number but another filesystem type is ignored."""
    [proc] = [mounted for mounted in mount_table.read() if mounted.mountpoint == "/proc"]
    assert mount_holders.is_mounted_here(proc)
    assert not mount_holders.is_mounted_here(proc._replace(fs_type=mount_table.FS_TYPE))


def test_search_for_holders_ignores_a_mount_that_reuses_the_device_number() -> None:
    """The kernel may assign the device number of an unmounted filesystem to another filesystem."""
    [proc] = [mounted for mounted in mount_table.read() if mounted.mountpoint == "/proc"]
    ended = proc._replace(source="local:///another/bucket")

    assert mount_holders.find(proc) != []
    assert mount_holders.find(ended) == []
    assert not mount_holders.is_mounted_here(ended)


def test_message_about_a_busy_mount_lists_processes_or_open_files() -> None:
    """The message lists processes or open files, or says that this user cannot see any."""
    holder = Holder(7, "sh", "/mnt")
    assert (
        mount_holders.described([holder], 3) == "in another mount namespace by sh (pid 7) on /mnt"
    )
    assert mount_holders.described([holder] * 10, 0).endswith(" and more")
    assert mount_holders.described([], 3) == "by 3 open files of a mountpoint that was detached"
    assert "not visible" in mount_holders.described([], 0)
