"""Tests of the states of a mount and of the transitions between them."""

import itertools

import pytest

from s3fs_meta.errors import ReadOnlyStateError
from s3fs_meta.mount_state import NEXT, MountState, MountStatus

_WAYS = {
    MountState.STARTING: [],
    MountState.FOLLOWING: [MountState.FOLLOWING],
    MountState.SERVING: [MountState.SERVING],
    MountState.DEGRADED: [MountState.SERVING, MountState.DEGRADED],
    MountState.FENCED: [MountState.SERVING, MountState.FENCED],
    MountState.STOPPING: [MountState.STOPPING],
}


def _in_state(state: MountState) -> MountStatus:
    status = MountStatus()
    for step in _WAYS[state]:
        status.enter(step, "a reason")
    return status


@pytest.mark.parametrize("before", MountState)
def test_mount_state_transitions_outside_the_table_are_rejected(before: MountState) -> None:
    """A transition that the table does not list raises an error. Staying in a state does not."""
    for after in MountState:
        status = _in_state(before)
        if after is before or after in NEXT[before]:
            status.enter(after)
            assert status.state is after
        else:
            with pytest.raises(AssertionError, match="cannot become"):
                status.enter(after)


def test_mount_can_become_serving_only_from_starting_or_following() -> None:
    before = {MountState.STARTING, MountState.FOLLOWING}
    reachable = set(
        itertools.chain.from_iterable(NEXT[one] for one in MountState if one not in before)
    )

    assert MountState.SERVING not in reachable
    assert MountState.STARTING not in reachable


@pytest.mark.parametrize("state", MountState)
def test_changes_are_accepted_only_while_serving(state: MountState) -> None:
    """A read-only mount refuses changes even in the state SERVING."""
    assert _in_state(state).writable is (state is MountState.SERVING)

    status = MountStatus(read_only=True)
    status.enter(MountState.SERVING)
    with pytest.raises(ReadOnlyStateError, match="mounted read-only"):
        status.require_writable()


def test_degraded_mount_reports_its_first_error_as_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refused change reports the error that degraded the mount. This error is logged once."""
    status = _in_state(MountState.SERVING)
    status.degrade("the disk failed")
    status.degrade("and again")

    with pytest.raises(ReadOnlyStateError, match="the disk failed"):
        status.require_writable()
    assert caplog.text.count("degraded") == 1


def test_fenced_mount_does_not_become_degraded() -> None:
    """A fenced mount stays fenced even if a later error would degrade another mount."""
    status = _in_state(MountState.FENCED)
    status.degrade("something")

    assert status.state is MountState.FENCED


@pytest.mark.parametrize("state", MountState)
def test_mount_can_be_fenced_at_any_time(state: MountState) -> None:
    """A fenced mount accepts and uploads no changes. A stopping mount keeps its state."""
    status = _in_state(state)
    status.fence("taken over")

    assert not status.ships
    assert not status.writable
    assert status.state in {MountState.FENCED, MountState.STOPPING}


def test_background_task_failure_during_startup_degrades_the_mount() -> None:
    status = MountStatus()

    status.degrade("the disk failed")

    assert status.state is MountState.DEGRADED
    assert not status.writable


def test_read_only_remount_refuses_new_changes() -> None:
    """After a read-only remount, only writes that the kernel accepted earlier are allowed."""
    status = _in_state(MountState.SERVING)
    status.require_kernel_writable()
    status.kernel_read_only = True

    with pytest.raises(ReadOnlyStateError, match="remounted read-only"):
        status.require_kernel_writable()
    status.require_writable()


def test_read_only_mount_is_not_reported_as_remounted() -> None:
    status = MountStatus(read_only=True)
    status.enter(MountState.SERVING)
    status.kernel_read_only = True

    with pytest.raises(ReadOnlyStateError, match="read-only: mounted read-only"):
        status.require_kernel_writable()


def test_promoted_follower_accepts_changes() -> None:
    status = MountStatus(read_only=True)
    status.enter(MountState.FOLLOWING)
    assert not status.ships

    status.promote()

    assert status.state is MountState.SERVING
    assert status.writable
    assert status.ships


@pytest.mark.parametrize("state", [MountState.STOPPING, MountState.DEGRADED, MountState.FENCED])
def test_promotion_of_an_ending_or_failed_mount_allows_no_changes(
    state: MountState,
) -> None:
    """The promotion clears ``read_only`` in any case, so that the mount releases its lease."""
    status = MountStatus(read_only=True)
    status.enter(MountState.FOLLOWING)
    status.enter(state, "a test")

    status.promote()

    assert status.state is state
    assert not status.read_only
    assert not status.writable
    assert status.ships is (state is MountState.STOPPING)
