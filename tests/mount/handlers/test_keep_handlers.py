"""Tests of requests to a running mount that make, list or drop kept points."""

from typing import Any

import pytest

from s3fs_meta.codec.changelog import NO_FLOOR
from s3fs_meta.control.plain_call import no_report
from s3fs_meta.errors import SettingsError, UsageError
from s3fs_meta.model import ObjectKey
from s3fs_meta.mount.handlers import keep_handlers
from s3fs_meta.mount.requests import keep_requests
from s3fs_meta.sync.session import Session
from tests.sync.conftest import Power
from tests.sync.kept import Files, empty, files_at, fill, forget


async def call(session: Session, command: str, **arguments: object) -> dict[str, Any]:
    """Return the mount's answer to a request."""
    handler = keep_handlers.KeepHandlers(session).handlers()[command]
    return dict(await handler(arguments, no_report))


async def test_point_in_time_can_be_kept_and_listed_and_dropped(plain: Power) -> None:
    await plain.retain(0)
    async with plain.session(tasks=False) as session:
        files: Files = {}
        fill(session, files, b"x" * 5000)
        made = (await call(session, keep_requests.KEEP, name="a", at=None, auto=True))["point"]
        assert (made["name"], made["auto"], made["txg"]) == ("a", True, session.link.txg)
        found = await call(session, keep_requests.LIST)
        assert found["points"] == [{**made, "alone_bytes": 0}]
        assert found["held_bytes"] == 0

        state = dict(files)
        empty(session, files)
        await forget(session)
        found = await call(session, keep_requests.LIST)
        [listed] = found["points"]
        assert listed["alone_bytes"] == found["held_bytes"] > 0
        assert await files_at(plain, "a") == state
        assert await call(session, keep_requests.DROP, names=["a"]) == {"objects": 1}
        assert (await call(session, keep_requests.LIST))["points"] == []


async def test_daemon_parses_the_point_in_time_of_a_keep_request(plain: Power) -> None:
    async with plain.session(tasks=False) as session:
        fill(session, {}, b"x")
        await session.flush()
        txg = session.link.txg
        fill(session, {}, b"y")
        await session.flush()
        made = await call(session, keep_requests.KEEP, name="a", at=f"txg={txg}", auto=False)
        assert made["point"]["txg"] == txg
        again = await call(session, keep_requests.KEEP, name="b", at="a", auto=False)
        assert again["point"]["txg"] == txg
        with pytest.raises(SettingsError, match="no kept point"):
            await call(session, keep_requests.KEEP, name="c", at="unknown", auto=False)


async def test_dropping_a_kept_point_by_its_key_preserves_a_newer_point_with_equal_name(
    plain: Power,
) -> None:
    """Expiry drops a point by its key, so a newer point with the same name is not dropped."""
    async with plain.session(tasks=False) as session:
        old = (await call(session, keep_requests.KEEP, name="a", at=None, auto=True))["point"]
        await call(session, keep_requests.DROP, names=["a"])
        await call(session, keep_requests.KEEP, name="a", at=None, auto=False)
        with pytest.raises(SettingsError, match="no kept point"):
            await call(session, keep_requests.DROP, names=[old["key"]])
        assert len((await call(session, keep_requests.LIST))["points"]) == 1


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (keep_requests.KEEP, {}),
        (keep_requests.KEEP, {"name": 5}),
        (keep_requests.KEEP, {"name": "a", "at": 5}),
        (keep_requests.KEEP, {"name": "a", "at": "2026-13-01"}),
        (keep_requests.DROP, {"names": "a"}),
        (keep_requests.DROP, {"names": [1]}),
    ],
)
async def test_keep_request_with_invalid_arguments_is_refused(
    plain: Power, command: str, arguments: dict[str, object]
) -> None:
    async with plain.session(tasks=False) as session:
        with pytest.raises(UsageError):
            await call(session, command, **arguments)
        assert not any(key.startswith("kept/") for key in plain.store.objects)


async def test_unreadable_kept_points_are_listed(plain: Power) -> None:
    async with plain.session(tasks=False) as session:
        made = (await call(session, keep_requests.KEEP, name="a", at=None, auto=True))["point"]
    plain.store.objects[made["key"]] = b"damaged"
    async with plain.session(tasks=False) as session:
        found = await call(session, keep_requests.LIST)
    assert found["points"] == []
    assert [(one["key"], one["txg"]) for one in found["unreadable"]] == [(made["key"], made["txg"])]


async def test_list_of_many_unreadable_kept_points_fits_into_a_message(plain: Power) -> None:
    """Any user who can write to the bucket can store thousands of unreadable points."""
    for number in range(5):
        plain.store.objects[ObjectKey(f"kept/{7:012}-{0:032x}-{number:016x}")] = b"?"
    async with plain.session(tasks=False) as session:
        kept = await session.reclaimer.kept_points()
        found = await keep_requests.listed(kept, session.db, NO_FLOOR, unreadable_max=2)
    assert (len(found["unreadable"]), found["unreadable_count"]) == (2, 5)
