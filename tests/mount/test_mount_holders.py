"""The search in /proc for processes that have a filesystem mounted."""

from s3fs_meta.mount import mount_holders, mount_table
from s3fs_meta.mount.mount_holders import Holder
from s3fs_meta.mount.mount_table import Mounted


def test_unmounted_device_has_no_holders() -> None:
    wanted = Mounted("/mnt", "0:0", mount_table.FS_TYPE, "local:///bucket")
    assert not mount_holders.is_mounted_here(wanted)
    assert mount_holders.find(wanted) == []


def test_processes_with_another_filesystem_type_are_no_holders() -> None:
    """A mount of another type is ignored, even if its device number is the same."""
    [proc] = [mounted for mounted in mount_table.read() if mounted.mountpoint == "/proc"]
    assert mount_holders.is_mounted_here(proc)
    assert not mount_holders.is_mounted_here(proc._replace(fs_type=mount_table.FS_TYPE))


def test_processes_with_a_reused_device_number_are_no_holders() -> None:
    """The kernel may give the device number of an unmounted filesystem to another filesystem."""
    [proc] = [mounted for mounted in mount_table.read() if mounted.mountpoint == "/proc"]
    ended = proc._replace(source="local:///another/bucket")

    assert mount_holders.find(proc) != []
    assert mount_holders.find(ended) == []
    assert not mount_holders.is_mounted_here(ended)


def test_message_about_holders_names_processes_or_open_files() -> None:
    """The message names processes, or open files, or says that neither can be seen."""
    holder = Holder(7, "sh", "/mnt")
    assert (
        mount_holders.described([holder], 3) == "in another mount namespace by sh (pid 7) on /mnt"
    )
    assert mount_holders.described([holder] * 10, 0).endswith(" and more")
    assert mount_holders.described([], 3) == "by 3 open files of a mountpoint that was detached"
    assert "not visible" in mount_holders.described([], 0)
