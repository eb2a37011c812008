"""Tests of browse pages that are generated so slowly that the browser has to wait."""

import pytest
import trio
import trio.testing

from s3fs_meta.browse.limits import (
    BROWSE_ABANDONED_S,
    BROWSE_ANSWER_S,
    BROWSE_PENDING_FRAMES_MAX,
    BROWSE_PENDING_MAX,
    BROWSE_PENDING_S,
)
from s3fs_meta.browse.pending_pages import PendingPages
from s3fs_meta.errors import BusyError
from s3fs_meta.mount.http_server import OK, Reply


class Slow:
    """A function that generates pages slowly and counts them."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.begun = self.made = 0

    async def __call__(self) -> Reply:
        """Generate one page slowly."""
        self.begun += 1
        await trio.sleep(self.seconds)
        self.made += 1
        return Reply(OK, b"%d" % self.made)


async def test_page_that_is_made_quickly_is_returned_immediately_and_not_cached(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    pages, make = PendingPages(nursery), Slow(BROWSE_ANSWER_S / 2)
    assert await pages.get(b"/a", make) == Reply(OK, b"1")
    await trio.testing.wait_all_tasks_blocked()
    assert await pages.get(b"/a", make) == Reply(OK, b"2")


async def test_slow_page_is_made_only_once_while_the_browser_polls(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """The first request is answered before the slow page is ready; the second returns the page."""
    pages, make = PendingPages(nursery), Slow(BROWSE_PENDING_S / 2)
    began_s = trio.current_time()

    assert await pages.get(b"/a", make) is None
    assert trio.current_time() - began_s == pytest.approx(BROWSE_ANSWER_S)
    assert await pages.get(b"/a", make) == Reply(OK, b"1")
    assert trio.current_time() - began_s == pytest.approx(make.seconds)
    assert make.begun == 1


async def test_slow_page_is_cancelled_if_no_browser_waits(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    pages, make = PendingPages(nursery), Slow(1e6)
    assert await pages.get(b"/a", make) is None
    await trio.sleep(2 * BROWSE_ABANDONED_S)
    assert make.made == 0
    assert await pages.get(b"/a", make) is None
    assert make.begun == 2  # The cancelled page is generated again.


async def test_slow_page_is_not_cancelled_while_a_browser_waits(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    pages, make = PendingPages(nursery), Slow(10 * (BROWSE_PENDING_S + BROWSE_ABANDONED_S))
    while (reply := await pages.get(b"/a", make)) is None:
        pass
    assert reply == Reply(OK, b"1")


async def test_request_above_the_limit_of_pending_pages_is_refused(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    pages, make = PendingPages(nursery), Slow(1e6)
    for number in range(BROWSE_PENDING_MAX):
        assert await pages.get(b"/%d" % number, make) is None
    with pytest.raises(BusyError):
        await pages.get(b"/one more", make)


async def test_lists_beside_folders_leave_room_for_other_pending_pages(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    pages, make = PendingPages(nursery), Slow(1e6)
    for number in range(BROWSE_PENDING_FRAMES_MAX):
        assert await pages.get(b"/%d" % number, make, BROWSE_PENDING_FRAMES_MAX) is None
    with pytest.raises(BusyError):
        await pages.get(b"/one more", make, BROWSE_PENDING_FRAMES_MAX)
    # The limit applies only to new pages, and page 0 is already pending.
    assert await pages.get(b"/0", make, BROWSE_PENDING_FRAMES_MAX) is None
    assert await pages.get(b"/one more", make) is None
