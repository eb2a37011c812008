"""Tests of limits on the number of waiting requests, in total and for each user."""

import contextlib
from collections.abc import Iterator

import pytest

from s3fs_meta.errors import BusyError
from s3fs_meta.fs.waiting_room import UNKNOWN, WRITE_BACK, WaitingRoom, caller
from s3fs_meta.limits import WAITING_HANDLERS_MAX, WRITE_BACK_WAITING_MAX


@contextlib.contextmanager
def filled(room: WaitingRoom, uid: int) -> Iterator[int]:
    """Let requests of a user wait until one is refused; yield the number of waiting requests."""
    with contextlib.ExitStack() as places:
        number = 0
        places.callback(caller.reset, caller.set(uid))
        with contextlib.suppress(BusyError):
            while True:
                places.enter_context(room.entered())
                number += 1
        yield number


def test_sole_user_of_a_mount_can_use_all_waiting_slots() -> None:
    """The only user of a mount can use every slot. A request frees its slot when it ends."""
    room = WaitingRoom()
    for _ in range(2):
        with filled(room, 1000) as number:
            assert number == len(room) == WAITING_HANDLERS_MAX
        assert len(room) == 0


def test_one_user_of_a_shared_mount_cannot_use_all_waiting_slots() -> None:
    """Each user may take at most two thirds of the slots that are still free."""
    room = WaitingRoom(is_shared=True)
    with filled(room, 1000) as first:
        assert first == WAITING_HANDLERS_MAX * 2 // 3
        with filled(room, 1001) as second, filled(room, 0) as third:
            assert (second, third) == (67, 22)
            with filled(room, 1002) as fourth:
                assert fourth > 0
            token = caller.set(1000)
            with pytest.raises(BusyError), room.entered():
                pass
            caller.reset(token)


def test_waiting_requests_of_all_users_do_not_exceed_the_limit() -> None:
    """If 1,000 users send requests, at most WAITING_HANDLERS_MAX requests wait."""
    room = WaitingRoom(is_shared=True)
    with contextlib.ExitStack() as users:
        for uid in range(1000):
            users.enter_context(filled(room, uid))
        assert len(room) <= WAITING_HANDLERS_MAX


@pytest.mark.parametrize("is_shared", [False, True])
def test_write_back_requests_use_separate_waiting_slots(is_shared: bool) -> None:
    """Write-back has separate waiting slots, because a refused write-back would lose data."""
    room = WaitingRoom(is_shared=is_shared)
    with filled(room, UNKNOWN) as readers:
        assert readers == WAITING_HANDLERS_MAX
        with filled(room, WRITE_BACK) as number:
            assert number == WRITE_BACK_WAITING_MAX
    with filled(room, WRITE_BACK) as number, filled(room, 1000) as readers:
        assert number == WRITE_BACK_WAITING_MAX + WAITING_HANDLERS_MAX
        assert readers == 0


def test_waiting_slot_is_freed_after_an_exception() -> None:
    room = WaitingRoom()
    with pytest.raises(OSError, match="x"), room.entered():
        raise OSError("x")
    assert len(room) == 0
