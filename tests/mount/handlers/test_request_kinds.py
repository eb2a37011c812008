"""Tests of the control requests that are answered while other requests run."""

from pathlib import Path

import pytest
import trio

from s3fs_meta.control import client
from s3fs_meta.control.connections import ControlBounds
from s3fs_meta.control.protocol import Message, Report
from s3fs_meta.control.server import ControlServer
from s3fs_meta.mount.handlers.request_kinds import KINDS
from s3fs_meta.mount.requests import control_api


@pytest.mark.parametrize(
    "command", [control_api.STATUS, control_api.END, control_api.COUNTS, control_api.FINISHED]
)
async def test_status_and_umount_do_not_wait_for_other_control_requests(
    tmp_path: Path, nursery: trio.Nursery, command: str
) -> None:
    started, gate = trio.Event(), trio.Event()

    async def flush(_arguments: Message, _report: Report) -> Message:
        started.set()
        await gate.wait()
        return {}

    async def answer(_arguments: Message, _report: Report) -> Message:
        return {"answered": True}

    handlers = {control_api.FLUSH: flush, command: answer}
    server = ControlServer(tmp_path, handlers, kinds=KINDS, bounds=ControlBounds(requests=1))
    await nursery.start(server.serve)
    nursery.start_soon(client.call, tmp_path, control_api.FLUSH)
    await started.wait()

    assert await client.call(tmp_path, command) == {"answered": True}
    nursery.cancel_scope.cancel()
