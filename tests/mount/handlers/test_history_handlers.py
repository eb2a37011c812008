"""Tests of the file versions that a running mount lists, uploaded or not."""

from typing import Any

import pytest

from s3fs_meta.control.plain_call import no_report
from s3fs_meta.errors import StoreUnavailableError, UsageError
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino
from s3fs_meta.mount.handlers.history_handlers import HistoryHandlers
from s3fs_meta.mount.limits import HISTORY_SHOWN_MAX
from s3fs_meta.mount.requests import history_requests
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power, remove_file, write_file


def named(session: Session, name: bytes, content: bytes) -> Ino:
    """Create a file with the given name."""
    ino = write_file(session, content)
    dentries.add(session.db, ROOT_INO, name, ino)
    return ino


async def versions_of(
    session: Session, *names: str, count: int = 10, **bounds: int
) -> dict[str, Any]:
    """Return the mount's list of a path's versions."""
    handler = HistoryHandlers(session, **bounds).handlers()[history_requests.VERSIONS]
    wanted = {
        "top": ROOT_INO,
        "names": list(names),
        "count": count,
        "attributes": False,
        "pattern": False,
    }
    found = await handler(wanted, no_report)
    return {**found["files"][0], "notices": found["notices"]}


async def test_changes_that_are_not_uploaded_are_listed_as_file_versions(plain: Power) -> None:
    """Files that were changed, removed or created since the last upload are listed."""
    async with plain.session(tasks=False) as session:
        changed = named(session, b"changed", b"old")
        removed = named(session, b"removed", b"gone")
        await session.shipper.ship()
        shipped = session.link.txg
        session.db.begin()
        inodes.set_size(session.db, changed, 2, 0)
        remove_file(session, dentries.remove(session.db, ROOT_INO, b"removed"))
        created = named(session, b"created", b"new")
        found = {
            name: (await versions_of(session, name))["versions"]
            for name in ("changed", "removed", "created")
        }

    shown = {
        name: [(one["uploaded"], one["ino"], one["changes"], one["size_bytes"]) for one in some]
        for name, some in found.items()
    }
    assert shown == {
        "changed": [(False, changed, ["content"], 2), (True, changed, ["created"], 3)],
        "removed": [(False, removed, ["removed"], 4), (True, removed, ["created"], 4)],
        "created": [(False, created, ["created"], 3)],
    }
    assert [one["created_ns"] is None for one in found["changed"]] == [True, False]
    assert found["changed"][1]["txg"] == shipped


@pytest.mark.parametrize("journal_mode", ["wal", "truncate"])
async def test_list_of_versions_says_if_it_omits_changes_that_are_not_uploaded(
    plain: Power, journal_mode: str
) -> None:
    options = OpenOptions(pragmas=Pragmas(journal_mode=journal_mode))
    async with plain.session(options=options, tasks=False) as session:
        ino = named(session, b"f", b"x")
        await session.shipper.ship()
        for number in range(3):
            session.db.begin()
            inodes.set_size(session.db, ino, 10 + number, 0)
            session.db.commit()
        whole = await versions_of(session, "f")
        found = await versions_of(session, "f", unshipped_bytes_max=1)

    assert whole["notices"] == []
    assert [one["uploaded"] for one in whole["versions"]] == [False, True]
    assert "not uploaded yet" in found["notices"][0]
    assert [one["uploaded"] for one in found["versions"]] == [True]


async def test_pattern_for_versions_also_matches_removed_names_and_names_not_yet_uploaded(
    plain: Power,
) -> None:
    async with plain.session(tasks=False) as session:
        for name in (b"a.pdf", b"b.pdf", b"c.txt"):
            named(session, name, b"x")
        await session.shipper.ship()
        session.db.begin()
        remove_file(session, dentries.remove(session.db, ROOT_INO, b"a.pdf"))
        await session.shipper.ship()
        named(session, b"d.pdf", b"x")
        handler = HistoryHandlers(session).handlers()[history_requests.VERSIONS]
        wanted = {"top": ROOT_INO, "count": 5, "attributes": False, "pattern": True}
        found = await handler({**wanted, "names": ["*.pdf"]}, no_report)
        with pytest.raises(UsageError, match="no file matches"):
            await handler({**wanted, "names": ["*.doc"]}, no_report)
        with pytest.raises(UsageError, match="must end with a pattern"):
            await handler({**wanted, "names": []}, no_report)

    assert [one["path"] for one in found["files"]] == ["a.pdf", "b.pdf", "d.pdf"]
    assert [one["versions"][0]["changes"] for one in found["files"]] == [
        ["removed"],
        ["created"],
        ["created"],
    ]


async def test_history_request_with_a_wrong_count_or_path_is_refused(plain: Power) -> None:
    async with plain.session(tasks=False) as session:
        with pytest.raises(UsageError, match="at most"):
            await versions_of(session, "f", count=HISTORY_SHOWN_MAX + 1)
        with pytest.raises(UsageError, match="no retained point in time"):
            await versions_of(session, "f")


async def test_list_of_versions_reports_that_changelogs_are_unavailable(plain: Power) -> None:
    """An exception group would look like a bug of the mount."""
    store = FaultyStore(plain.store)
    async with plain.session(store=store, tasks=False) as session:
        for name in (b"f", b"g"):
            named(session, name, b"x")
            await session.shipper.ship()
        error = StoreUnavailableError("changelog", 8, 60.0, "no route to host")
        # The list of the history index succeeds, and then two reads of changelogs fail.
        store.fail("get", error, times=2)
        with pytest.raises(StoreUnavailableError, match="no route to host"):
            await versions_of(session, "f")


async def test_read_only_mount_lists_the_versions_in_the_bucket(plain: Power) -> None:
    async with plain.session("a", tasks=False) as session:
        named(session, b"f", b"x")
        await session.flush()
        await session.close()
    async with plain.session("a", options=OpenOptions(read_only=True), tasks=False) as session:
        found = await versions_of(session, "f")

    assert [one["changes"] for one in found["versions"]] == [["created"]]
