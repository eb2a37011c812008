"""Tests of the survey of the history index by fsck."""

from dataclasses import replace

import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.codec import history_index
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.history_index import RUNS, Inodes
from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, ObjectKey, Txg
from s3fs_meta.sync.session import Session
from tests.check.survey.checking import checked
from tests.damage import flipped
from tests.sampled import sampled
from tests.sync.chain.empty_changelogs import append_empty_changelogs
from tests.sync.conftest import Power, write_file
from tests.sync.history.index_matches import index_all

RUN = HISTORY_FAN_OUT
FIRST, SECOND = (RUNS.key_of(1, Txg(number * RUN)) for number in (1, 2))
ABOVE = RUNS.key_of(2, Txg(RUN * RUN))


async def make_index(session: Session, txgs: int = 2 * RUN) -> None:
    """Ship files in the first txgs, and build the history index for a number of txgs."""
    for number in range(3):
        ino = write_file(session, b"%d" % number)
        dentries.add(session.db, ROOT_INO, b"%d" % number, ino)
        inodes.change_directory(session.db, ROOT_INO, 0, entries=1)
        await session.shipper.ship(anyway=True)
    await append_empty_changelogs(session, txgs)
    await index_all(session)


def hide(power: Power, session: Session, key: ObjectKey) -> None:
    """Replace an index object by an authentic object that lists no changed inode."""
    keyring = session.volume.keyring
    index = history_index.decode(key, power.store.objects[key], keyring)
    assert len(index.inodes)
    power.store.objects[key] = history_index.encode(replace(index, inodes=Inodes.of([])), keyring)


@pytest.mark.thorough
@pytest.mark.parametrize("harm", sampled(["hidden", "hidden above", "damaged"], 2))
async def test_fsck_deletes_wrong_history_index_objects(power: Power, harm: str) -> None:
    """fsck deletes wrong and damaged index objects, and the next mount rebuilds them.

    Invariant I71.
    """
    above = [ABOVE] if harm == "hidden above" else []
    key = ABOVE if above else FIRST
    async with power.session("a", tasks=False) as session:
        # Only the second level of the index needs many txgs.
        await make_index(session, RUN * RUN if above else 2 * RUN)
        assert "I71" not in (await checked(session, deep=True)).broken
        valid = power.store.objects[key]
        if harm == "damaged":
            power.store.objects[key] = flipped(valid, -1)
        else:
            hide(power, session, key)
        assert "I71" not in (await checked(session)).broken
        report = await checked(session, deep=True)
        assert "I71" in report.broken
        assert report.exit_status
        assert key in power.store.objects
        repaired = await checked(session, Mode.SAFE, deep=True)
        assert {one.left for one in repaired.verdicts if one.invariant == "I71"} == {0}
        assert key not in power.store.objects
        # fsck deletes only the wrong index object, and keeps all others that it compared.
        assert {FIRST, SECOND, *above} - {key} <= power.store.objects.keys()
    async with power.session("a", tasks=False) as session:
        await index_all(session)
        assert key in power.store.objects
        assert "I71" not in (await checked(session, deep=True)).broken


@pytest.mark.thorough
async def test_foreign_object_with_a_key_like_that_of_a_history_index_object_is_kept(
    power: Power,
) -> None:
    async with power.session("a", tasks=False) as session:
        await make_index(session)
        power.store.objects[FIRST] = b"something else"
        report = await checked(session, Mode.ALL, deep=True)

    assert "I71" not in report.broken
    assert FIRST in report.foreign_keys
    assert power.store.objects[FIRST] == b"something else"


@pytest.mark.thorough
async def test_history_index_is_not_checked_if_its_changelogs_are_unreadable(power: Power) -> None:
    """fsck compares a history index object with changelogs, which must be readable."""
    async with power.session("a", tasks=False) as session:
        await make_index(session)
        power.store.objects[key_of(Txg(5))] = flipped(power.store.objects[key_of(Txg(5))], -1)
        report = await checked(session, Mode.SAFE, deep=True)

    assert "I71" not in report.broken
    assert FIRST in power.store.objects
