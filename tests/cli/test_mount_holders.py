"""Who has a filesystem mounted, by /proc."""

import os

from s3fs_meta.cli import mount_holders
from s3fs_meta.cli.mount_holders import Holder


def test_device_that_nobody_has_is_mounted_nowhere() -> None:
    """Real mounts are in tests/mount/test_namespaces.py."""
    assert not mount_holders.is_mounted_here("0:0")
    assert mount_holders.find("0:0") == []


def test_other_filesystems_do_not_count() -> None:
    """Although their device is listed."""
    device = os.stat("/proc").st_dev
    assert not mount_holders.is_mounted_here(f"{os.major(device)}:{os.minor(device)}")


def test_users_are_described() -> None:
    """Processes where there are some, else open files, else what is known of neither."""
    holder = Holder(7, "sh", "/mnt")
    assert (
        mount_holders.described([holder], 3) == "in another mount namespace by sh (pid 7) on /mnt"
    )
    assert mount_holders.described([holder] * 10, 0).endswith(" and more")
    assert mount_holders.described([], 3) == "by 3 open files of a mountpoint that was detached"
    assert "cannot be seen" in mount_holders.described([], 0)
