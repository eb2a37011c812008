"""Regression tests for failures found by random programs."""

import pytest

from s3fs_meta.objects.memory import MemoryStore
from tests.model.machine import Event, Happening
from tests.model.programs import FIRST, run
from tests.sampled import sampled

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("event", [Event.CANCEL, Event.CANCEL_IMAGE])
@pytest.mark.parametrize("step", sampled(range(1, 40), 3))
def test_flush_cancelled_at_any_step_is_made_good_by_the_next(
    template: MemoryStore, step: int, event: Event
) -> None:
    """A batch that was queued when the flush was cancelled must be uploaded by the next flush."""
    run([*FIRST, Happening(event, step // 4, step % 4)], template)


@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("hosts", range(4))
def test_takeover_killed_at_any_step(template: MemoryStore, step: int, hosts: int) -> None:
    """Committed content survives a killed takeover, whichever host mounts next."""
    takeover = Happening(Event.KILL_IN_TAKEOVER, hosts, step)
    run([*FIRST, takeover, *FIRST, Happening(Event.FLUSH), takeover], template)


@pytest.mark.parametrize("event", [Event.OUTAGE, Event.OUTAGE_IN_IMAGE])
@pytest.mark.parametrize("calls", range(12))
def test_outage_after_an_unheard_request_does_not_fence_its_own_mount(
    template: MemoryStore, calls: int, event: Event
) -> None:
    """After a lost reply, the mount must recognise its own move of the head."""
    run([*FIRST, Happening(event, calls, 1)], template)
