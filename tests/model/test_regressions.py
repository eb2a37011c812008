"""Tests of failures that random programs have revealed."""

import pytest

from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.hooks import TAKEOVER_STEPS
from tests.model.machine import Event, Happening
from tests.model.programs import FIRST, run
from tests.sampled import sampled

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("event", [Event.CANCEL, Event.CANCEL_IMAGE])
@pytest.mark.parametrize("step", sampled(range(1, 40), 3))
def test_flush_after_a_cancelled_flush_ships_all_changes(
    template: MemoryStore, step: int, event: Event
) -> None:
    """The second flush uploads the batch that was queued when the first flush was cancelled."""
    run([*FIRST, Happening(event, step // 4, step % 4)], template)


@pytest.mark.parametrize("step", range(len(TAKEOVER_STEPS) - 1))
@pytest.mark.parametrize("hosts", sampled(range(4), 2))
def test_mount_after_a_killed_takeover_succeeds(
    template: MemoryStore, step: int, hosts: int
) -> None:
    """Committed content survives a kill at any step of the takeover, whichever host mounts next."""
    takeover = Happening(Event.KILL_IN_TAKEOVER, hosts, step)
    run([*FIRST, takeover, *FIRST, Happening(Event.FLUSH), takeover], template)


@pytest.mark.parametrize("event", [Event.OUTAGE, Event.OUTAGE_IN_IMAGE])
@pytest.mark.parametrize("calls", sampled(range(12), 3))
def test_lost_reply_before_an_outage_does_not_fence_the_mount(
    template: MemoryStore, calls: int, event: Event
) -> None:
    """A mount recognises the head that it wrote, even if the store's reply was lost."""
    run([*FIRST, Happening(event, calls, 1)], template)
