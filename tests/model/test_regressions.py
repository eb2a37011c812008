"""Failures that random programs have found."""

import pytest

from s3fs_meta.objects.memory import MemoryStore
from tests.model.machine import Event, Happening
from tests.model.programs import FIRST, run
from tests.sampled import sampled

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("event", [Event.CANCEL, Event.CANCEL_IMAGE])
@pytest.mark.parametrize("step", sampled(range(1, 40), 3))
def test_flush_after_one_cancelled_at_any_step_ships_everything(
    template: MemoryStore, step: int, event: Event
) -> None:
    """The next flush uploads the batch that was queued when a flush was cancelled."""
    run([*FIRST, Happening(event, step // 4, step % 4)], template)


@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("hosts", range(4))
def test_next_mount_after_a_takeover_killed_at_any_step_succeeds(
    template: MemoryStore, step: int, hosts: int
) -> None:
    """Committed content survives, whichever host mounts next."""
    takeover = Happening(Event.KILL_IN_TAKEOVER, hosts, step)
    run([*FIRST, takeover, *FIRST, Happening(Event.FLUSH), takeover], template)


@pytest.mark.parametrize("event", [Event.OUTAGE, Event.OUTAGE_IN_IMAGE])
@pytest.mark.parametrize("calls", range(12))
def test_lost_reply_before_an_outage_does_not_fence_the_mount(
    template: MemoryStore, calls: int, event: Event
) -> None:
    """After a lost reply the mount recognises the head that it has written."""
    run([*FIRST, Happening(event, calls, 1)], template)
