"""Tests of fsck --delete-unknown on packs of a history that a repair has replaced."""

import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.model import Txg
from tests.check.survey.checking import checked
from tests.sync.conftest import Power, unmount
from tests.sync.histories import PUBLISH, fork, put_back
from tests.sync.history.readers import at
from tests.sync.kept import Files, files_of, fill, forget

pytestmark = pytest.mark.thorough


async def their_history(power: Power, files: Files) -> Txg:
    """Let another host continue from an older copy of the bucket; return this host's last txg."""
    put_back(power, await fork(power, files))
    async with power.session("b", tasks=False) as session:
        for number in range(8):
            fill(session, files, b"theirs %d" % number * 300)
            await session.flush()
        await session.flush_at_end()
        last = session.link.txg
        await session.close()
    return last


@pytest.mark.parametrize("published", [False, True])
async def test_packs_of_a_replaced_history_are_kept_during_its_retention(
    power: Power, published: bool
) -> None:
    """fsck --delete-unknown keeps packs of a replaced history during its retention."""
    files: Files = {}
    last = await their_history(power, files)
    async with power.session("a", options=PUBLISH, tasks=False) as session:
        if published:
            await session.flush()
        report = await checked(session, Mode.ALL, delete_unknown=True)
        assert any("history that a repair replaced" in note for note in report.notes)
        await unmount(session)
    assert await files_of(power, at(last)) == files


async def test_packs_of_a_replaced_history_are_deleted_after_its_retention(power: Power) -> None:
    last = await their_history(power, {})
    async with power.session("a", options=PUBLISH, tasks=False) as session:
        await unmount(session)
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        await forget(session, times=2)
        assert session.link.floor > last
        await checked(session, Mode.ALL, delete_unknown=True)
        keys = {key for (key,) in session.db.all("SELECT object_key FROM packs")}
        assert {key for key in power.store.objects if key.startswith("pack/")} <= keys
