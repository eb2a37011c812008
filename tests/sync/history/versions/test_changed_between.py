"""The search for inodes that changed between two txgs."""

import random

from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.model import ROOT_INO, Ino, Txg
from s3fs_meta.objects.billing import Meter, MeteredStore
from s3fs_meta.sync.history.index.index_search import HistorySearch
from s3fs_meta.sync.history.versions.changed_between import changed_between
from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.session import Session
from tests.sync.chain.empty_changelogs import append_empty_changelogs
from tests.sync.conftest import Power, write_file
from tests.sync.history.index_matches import index_all

RUN = HISTORY_FAN_OUT


async def between(
    session: Session,
    power: Power,
    after: int,
    last: int,
    meter: Meter | None = None,
    **bounds: int,
) -> set[Ino] | None:
    """Return the inodes that changed after one txg, up to and including another txg."""
    opened = session.volume
    store = MeteredStore(power.store, meter or Meter())
    return await changed_between(
        HistorySearch(store, opened.keyring, opened.uuid, session.link),
        ChangelogReader(store, opened.keyring, opened.uuid),
        Txg(after),
        Txg(last),
        no_progress,
        **bounds,
    )


async def test_search_returns_exactly_the_inodes_changed_in_the_range(power: Power) -> None:
    """The ranges begin and end inside indexed runs, at their bounds and after the last run."""
    async with power.session("a", tasks=False) as session:
        made: dict[int, Ino] = {}
        for _ in range(2 * RUN + 5):
            ino = write_file(session, b"x")
            await session.shipper.ship(anyway=True)
            made[session.link.txg] = ino
        await index_all(session)
        rnd, end = random.Random(1), session.link.txg
        ranges = [(0, end), (RUN, 2 * RUN), (RUN - 1, RUN), (end - 1, end), (5, 5)]
        ranges += [tuple(sorted(rnd.sample(range(end + 1), 2))) for _ in range(8)]  # type: ignore[misc]
        for after, last in ranges:
            found = await between(session, power, after, last)
            assert found is not None
            assert found - {ROOT_INO} == {made[t] for t in made if after < t <= last}
        meter = Meter()
        await between(session, power, 0, 2 * RUN, meter)

    sent = sum(billed.requests for counts in meter.take().values() for billed in counts.values())
    # The search requests a listing, two index objects and one changelog.
    assert sent == 4


async def test_search_for_changed_inodes_returns_none_if_changes_are_unknown_or_too_many(
    power: Power,
) -> None:
    async with power.session("a", tasks=False) as session:
        write_file(session, b"x")
        write_file(session, b"y")
        await session.shipper.ship(anyway=True)
        shipped = session.link.txg
        image = await session.publish_as_txg()
        assert await between(session, power, shipped, image.txg) is None
        assert await between(session, power, 0, shipped) is not None
        assert await between(session, power, 0, shipped, changes_max=1) is None


async def test_search_for_changed_inodes_ends_at_its_limits(power: Power) -> None:
    """If too many txgs have no index, the search ends at its limit without a result."""
    async with power.session("a", tasks=False) as session:
        for _ in range(2):
            write_file(session, b"x")
            await session.shipper.ship(anyway=True)
        await append_empty_changelogs(session, 2 * RUN)
        assert await between(session, power, 0, RUN) is not None
        meter = Meter()
        assert await between(session, power, 0, RUN, meter, changelogs_max=RUN - 1) is None
        sent = sum(one.requests for counts in meter.take().values() for one in counts.values())
        assert sent == 1  # The search sends only a LIST request.
        await index_all(session)
        assert await between(session, power, 0, RUN, changelogs_max=RUN - 1) is not None
        assert await between(session, power, 0, RUN, changes_max=1) is None
