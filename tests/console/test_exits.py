"""Exit statuses: one for every family of errors."""

from collections.abc import Iterator

import pytest

from s3fs_meta import errors
from s3fs_meta.console import exits
from s3fs_meta.console.exits import ExitStatus


def _all_errors(root: type[errors.S3fsError]) -> Iterator[type[errors.S3fsError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _all_errors(kind)


def _made(kind: type[errors.S3fsError]) -> errors.S3fsError:
    error = kind.__new__(kind)
    error.message = "text"
    return error


@pytest.mark.parametrize(
    "kind",
    [one for one in _all_errors(errors.S3fsError) if one is not errors.S3fsError],
    ids=lambda kind: kind.__name__,
)
def test_every_error_class_has_an_exit_status(kind: type[errors.S3fsError]) -> None:
    """Every own error class has an exit status."""
    error = errors.ControlError("ControlError", "x") if kind is errors.ControlError else _made(kind)

    assert exits.status_of(error) is not ExitStatus.BUG


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.UsageError("x"), ExitStatus.USAGE),
        (errors.PassphraseError("x"), ExitStatus.PASSPHRASE),
        (errors.StoreAccessError("k", "c", "a"), ExitStatus.STORE_ACCESS),
        (errors.TransientStoreError("k", "c"), ExitStatus.STORE),
        (errors.FormatError("k", "w"), ExitStatus.CORRUPTION),
        (PermissionError(13, "x"), ExitStatus.LOCAL),
        (RuntimeError("x"), ExitStatus.BUG),
    ],
)
def test_special_families_come_before_general_ones(error: Exception, expected: ExitStatus) -> None:
    """The first matching entry of the table is used."""
    assert exits.status_of(error) is expected


def test_error_inside_a_mount_keeps_its_family() -> None:
    """An error from the control socket has the status of its original class."""
    fenced = errors.ControlError("FencedError", "x")

    assert exits.status_of(fenced) is ExitStatus.FENCED
    assert exits.is_kind(fenced, errors.FencedError)
    assert exits.status_of(errors.ControlError("Nonsense", "x")) is ExitStatus.CONTROL
    assert exits.status_of(errors.ControlError("Any", "x")) is ExitStatus.CONTROL


def test_every_status_has_a_meaning() -> None:
    """Help and documentation list them."""
    assert set(exits.MEANINGS) == set(ExitStatus)


def test_fsck_and_mount_keep_to_their_manual_pages() -> None:
    """For every error the numbers are those of fsck(8) and mount(8)."""
    assert {exits.fsck_status(one) for one in ExitStatus} <= set(exits.FSCK_MEANINGS)
    assert {exits.mount_status(one) for one in ExitStatus} <= set(exits.MOUNT_MEANINGS)
    assert exits.fsck_status(ExitStatus.USAGE) == 16
    assert exits.mount_status(ExitStatus.HELD) == 32


def test_nested_groups_are_resolved() -> None:
    """Nurseries raise groups of groups."""

    class GroupError(Exception):
        exceptions = (ValueError(1), KeyError(2))

    assert [type(leaf) for leaf in exits.leaves(GroupError())] == [ValueError, KeyError]
