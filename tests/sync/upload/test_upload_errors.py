"""Errors of uploads by commands, which do not repeat uploads."""

import os

import pytest
import trio
from typing_extensions import override

from s3fs_meta.errors import TransientStoreError
from s3fs_meta.limits import UPLOADS_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ETag
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.polling import WAIT_S_MAX
from tests.sync.conftest import Power, write_file

pytestmark = pytest.mark.thorough


class _RefusingStore(FaultyStore):
    """A store that refuses UPLOADS_MAX packs at the same time, each for another cause."""

    refused = 0
    all_refused: trio.Event

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object that is not a pack."""
        if not key.startswith("pack/"):
            return await super().create(key, data)
        self.refused += 1
        cause = f"cause {self.refused}"
        if self.refused == UPLOADS_MAX:
            self.all_refused.set()
        await self.all_refused.wait()
        raise TransientStoreError(key, cause)


async def test_all_errors_of_a_command_that_does_not_repeat_uploads_are_reported(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """The command raises one error; the errors of the batches beside it are logged."""
    bounds = UploadBounds(batch_blocks=1, repeats_packs=False)
    store = _RefusingStore(power.store)
    store.all_refused = trio.Event()
    async with power.session("a", tasks=False, bounds=bounds, store=store) as session:
        for _ in range(UPLOADS_MAX):
            write_file(session, os.urandom(1000))
        with trio.fail_after(WAIT_S_MAX), pytest.raises(TransientStoreError) as raised:
            await session.flush()

    assert store.refused == UPLOADS_MAX
    reported = str(raised.value) + caplog.text
    for number in range(UPLOADS_MAX):
        assert f"cause {number + 1}" in reported
