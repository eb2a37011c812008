"""Tests of the mount options for the cache, and for uploads and downloads."""

from s3fs_meta.limits import KIB, MIB
from s3fs_meta.options.option_table import OPTIONS
from s3fs_meta.options.settings import parse_mount_options
from s3fs_meta.options.transfer_options import TRANSFER_OPTIONS


def test_cache_and_transfer_options_can_be_set_at_mount() -> None:
    """Every cache and transfer option can be given with -o."""
    assert set(TRANSFER_OPTIONS) <= set(OPTIONS)


def test_timetable_of_rate_limits_can_be_part_of_a_list_of_options() -> None:
    """A timetable with "=" and ";" instead of comma and space needs no quoting in fstab(5)."""
    text = r"noatime,upload_limit=08:00=512K;23:00=off,download_limit=08:00\,1M 23:00\,off"
    options = parse_mount_options([text])

    assert [slot.bytes_per_s for slot in options.upload_limit.slots][:2] == [512 * KIB, None]
    assert [slot.bytes_per_s for slot in options.download_limit.slots][:2] == [MIB, None]


def test_default_rate_limits_of_uploads_and_downloads_are_unlimited() -> None:
    options = parse_mount_options([])

    assert {slot.bytes_per_s for slot in options.upload_limit.slots} == {None}
    assert {slot.bytes_per_s for slot in options.download_limit.slots} == {None}
