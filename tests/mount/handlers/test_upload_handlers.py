"""Tests of requests to a running mount that upload changes."""

from typing import Any

from s3fs_meta.control.plain_call import no_report
from s3fs_meta.control.protocol import Message
from s3fs_meta.mount.handlers.change_requests import ChangeRequests
from s3fs_meta.mount.handlers.upload_handlers import EndWatchers, UploadHandlers
from s3fs_meta.mount.requests import control_api
from s3fs_meta.sync.session import Session
from tests.sync.conftest import Power
from tests.sync.kept import fill


async def call(
    session: Session, command: str, why: str = "", **arguments: object
) -> dict[str, Any]:
    """Return the mount's answer; *why* is the reason why the kernel has older data."""
    handlers = UploadHandlers(session, ChangeRequests(), lambda _age_s: why).handlers()
    return dict(await handlers[command](arguments, no_report))


async def test_flush_ships_changes_and_reports_data_that_the_kernel_has_not_sent(
    plain: Power,
) -> None:
    async with plain.session(tasks=False) as session:
        fill(session, {}, b"x" * 5000)
        before = session.link.txg

        done = await call(session, control_api.FLUSH, "too slow")

        assert done == {"published": True, "uncollected": "too slow", "txg": before + 1}
        again = await call(session, control_api.FLUSH)
        assert again == {"published": False, "uncollected": "", "txg": before + 1}


async def test_flush_with_an_image_reports_the_txg_of_the_image(plain: Power) -> None:
    async with plain.session(tasks=False) as session:
        fill(session, {}, b"x" * 5000)
        done = await call(session, control_api.FLUSH, image=True)
        head = session.volume.keeper.lease.head
        assert head is not None
        assert done["image_txg"] == head.txg


def test_control_client_receives_upload_progress_only_while_it_waits() -> None:
    watchers = EndWatchers()
    seen: list[Message] = []
    with watchers.added(seen.append):
        watchers.progress("blocks", 1, 2)
    watchers.progress("blocks", 2, 2)
    assert seen == [{"what": "blocks", "done": 1, "total": 2}]
