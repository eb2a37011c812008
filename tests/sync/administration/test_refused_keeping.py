"""Tests of points in time that cannot be kept."""

import pytest

from s3fs_meta.bucket_errors import BrokenChainError
from s3fs_meta.codec import changelog
from s3fs_meta.console.exits import ExitStatus, status_of
from s3fs_meta.errors import (
    FormatError,
    ReadOnlyStateError,
    SettingsError,
    UsageError,
)
from s3fs_meta.limits import KEPT_POINTS_MAX
from s3fs_meta.model import PointInTime, Txg
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.administration import keeping
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import (
    Power,
    keys_of,
    write_file,
)
from tests.sync.history.readers import at
from tests.sync.kept import kept_files

pytestmark = pytest.mark.thorough


async def test_kept_point_with_a_used_or_invalid_name_is_refused(power: Power) -> None:
    async with power.session(tasks=False) as session:
        keeper = PointKeeper(session)
        await keeper.keep("a")
        with pytest.raises(UsageError, match="already kept"):
            await keeper.keep("a")
        for name in ("", "2026-01-01", "a/b", "newest"):
            with pytest.raises(UsageError, match="is not valid for a kept point"):
                await keeper.keep(name)
        assert len(keys_of(power, "kept/")) == 1


async def test_number_of_kept_points_is_limited(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KEPT_POINTS_MAX >= 366
    monkeypatch.setattr(keeping, "KEPT_POINTS_MAX", 2)
    async with power.session(tasks=False) as session:
        keeper = PointKeeper(session)
        await keeper.keep("a")
        await keeper.keep("b")
        with pytest.raises(SettingsError, match="maximum"):
            await keeper.keep("c")
        await keeper.drop(["a"])
        await keeper.keep("c")


async def test_read_only_mount_cannot_keep_or_drop_points_in_time(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        await PointKeeper(session).keep("a")
    options = OpenOptions(read_only=True, follow=True)
    follower = SessionOptions(follow=True)
    async with power.session("f", options=options, session_options=follower, tasks=False) as one:
        with pytest.raises(ReadOnlyStateError):
            await PointKeeper(one).keep("b")
        with pytest.raises(ReadOnlyStateError):
            await PointKeeper(one).drop(["a"])
        assert len((await one.reclaimer.kept_points()).points) == 1


async def test_point_in_time_with_a_missing_changelog_cannot_be_kept(power: Power) -> None:
    """A point whose changelogs are incomplete is not kept, because it could not be restored."""
    async with power.session(tasks=False) as session:
        for number in range(3):
            write_file(session, b"%d" % number)
            await session.flush()
        del power.store.objects[changelog.key_of(Txg(session.link.txg - 1))]
        with pytest.raises(BrokenChainError, match="fsck -p"):
            await PointKeeper(session).keep("a")
        power.store.objects[changelog.key_of(session.link.txg)] = b"?"
        with pytest.raises(FormatError):
            await PointKeeper(session).keep("a", at(session.link.txg))
    assert keys_of(power, "kept/") == []


@pytest.mark.parametrize("lost", ["changelog/", "image/"])
async def test_kept_point_with_a_missing_object_cannot_be_kept_again(
    power: Power, lost: str
) -> None:
    """A missing object is reported as damage, not as a store that cannot be reached."""
    async with power.session(tasks=False) as session:
        await kept_files(session)
        [point] = (await session.reclaimer.kept_points()).points
        write_file(session, b"later")
        await session.flush()
        needed = point.image.key if lost == "image/" else changelog.key_of(point.txg)
        del power.store.objects[needed]

        with pytest.raises(FormatError, match="missing") as caught:
            await PointKeeper(session).keep("b", PointInTime("a", kept="a"))

    assert status_of(caught.value) is ExitStatus.CORRUPTION
    assert len(keys_of(power, "kept/")) == 1
