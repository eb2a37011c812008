"""Versions of a path, found from the bucket at one point in time."""

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from s3fs_meta.codec.changelog import key_of
from s3fs_meta.errors import UsageError
from s3fs_meta.limits import (
    HISTORY_BINDINGS_MAX,
    HISTORY_FETCHES_MAX,
    HISTORY_KEPT_RESULTS_MAX,
    HISTORY_NAMES_KEPT_MAX,
    HISTORY_NAMES_PAGE,
)
from s3fs_meta.meta import row_history
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import block_map, dentries, inodes, xattrs
from s3fs_meta.model import ROOT_INO, BlockIndex, Cookie, Ino, Txg
from s3fs_meta.sync.history.index.index_search import HistorySearch
from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader
from s3fs_meta.sync.history.versions.path_versions import PathVersions, Version, Versions
from tests.sync.conftest import Power, remove_file, write_file
from tests.sync.history.files import Files
from tests.sync.history.readers import bucket_of
from tests.sync.opening.histories import end_at, rot

pytestmark = pytest.mark.thorough


@asynccontextmanager
async def finder_of(
    power: Power,
    tmp_path: Path,
    *,
    bindings_max: int = HISTORY_BINDINGS_MAX,
    kept_max: int = HISTORY_KEPT_RESULTS_MAX,
    names_max: int = HISTORY_NAMES_KEPT_MAX,
) -> AsyncIterator[PathVersions]:
    """Yield a search for versions that uses only the bucket, as a new host does."""
    bucket = await bucket_of(power)
    end, oldest = await bucket.points.newest(), await bucket.points.oldest()
    target = tmp_path / "newest.db"
    target.unlink(missing_ok=True)
    await bucket.restore(end, target)
    db = Database.open(target, Pragmas())
    try:
        yield PathVersions(
            db,
            HistorySearch(bucket.store, bucket.keyring, bucket.uuid, end),
            ChangelogReader(bucket.store, bucket.keyring, bucket.uuid),
            oldest.txg,
            end,
            bindings_max=bindings_max,
            kept_max=kept_max,
            names_max=names_max,
        )
    finally:
        db.close()


async def versions_of(
    power: Power,
    tmp_path: Path,
    path: bytes,
    most: int = 100,
    *,
    attributes: bool = False,
    bindings_max: int = HISTORY_BINDINGS_MAX,
) -> Versions:
    """Return the versions of a path, found in the bucket alone."""
    async with finder_of(power, tmp_path, bindings_max=bindings_max) as finder:
        return await finder.of_path(path.split(b"/"), most, attributes=attributes)


async def names_like(power: Power, tmp_path: Path, above: bytes, pattern: bytes) -> list[bytes]:
    """Return the names in a directory that match a pattern."""
    async with finder_of(power, tmp_path) as finder:
        return (await finder.names_like(above.split(b"/"), pattern, 100))[0]


def decodings_of(function: str, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record each changeset that ``row_history`` decodes from now on."""
    decoded: list[bytes] = []
    called = getattr(row_history, function)

    def recorded(changeset: bytes, *arguments: object, **options: object) -> object:
        decoded.append(changeset)
        return called(changeset, *arguments, **options)

    monkeypatch.setattr(row_history, function, recorded)
    return decoded


def brief(found: list[Version]) -> list[tuple[Txg, str, int | None]]:
    """Return the txg, the changes and the size of each version."""
    return [(one.txg, " ".join(one.changes), one.size_bytes) for one in found]


async def settle(files: Files, *, indexing: bool) -> None:
    """Build the history index if *indexing* is set."""
    if indexing:
        await files.index()


async def test_each_version_of_a_file_has_its_size(
    power: Power, tmp_path: Path, files: Files, *, indexing: bool
) -> None:
    ino, created = await files.make(b"f", 10)
    await files.make(b"other", 5)
    longer = await files.write(ino, 20)
    longest = await files.write(ino, 30)
    await settle(files, indexing=indexing)
    found = await versions_of(power, tmp_path, b"f")

    assert found.is_complete
    assert brief(found.found) == [
        (longest, "content", 30),
        (longer, "content", 20),
        (created, "created", 10),
    ]
    assert {one.ino for one in found.found} == {ino}
    assert found.found[-1].name == b"f"


async def test_versions_of_a_replaced_file_include_its_former_inodes(
    power: Power, tmp_path: Path, files: Files, *, indexing: bool
) -> None:
    """A file that an editor replaces by a rename has versions of several inodes."""
    old, created = await files.make(b"f", 10)
    new, draft = await files.make(b"f.tmp", 20)
    replaced = await files.rename(b"f.tmp", b"f")
    await settle(files, indexing=indexing)
    found = await versions_of(power, tmp_path, b"f")

    assert sorted(brief(found.found)) == [
        (created, "created", 10),
        (draft, "created", 20),
        (replaced, "renamed", 20),
        (replaced, "replaced removed", 10),
    ]
    assert {one.ino for one in found.found} == {old, new}


async def test_versions_of_a_renamed_file_include_versions_under_its_earlier_name(
    power: Power, tmp_path: Path, files: Files, *, indexing: bool
) -> None:
    ino, created = await files.make(b"draft", 10)
    renamed = await files.rename(b"draft", b"final")
    written = await files.write(ino, 20)
    await settle(files, indexing=indexing)
    final = await versions_of(power, tmp_path, b"final")
    draft = await versions_of(power, tmp_path, b"draft")

    assert brief(final.found) == [
        (written, "content", 20),
        (renamed, "renamed", 10),
        (created, "created", 10),
    ]
    assert brief(draft.found) == [(renamed, "renamed", 10), (created, "created", 10)]


async def test_versions_of_a_removed_file_in_a_removed_directory_are_found(
    power: Power, tmp_path: Path, files: Files, *, indexing: bool
) -> None:
    directory = await files.make_directory(b"d")
    _, created = await files.make(b"f", 10, directory)
    removed = await files.remove(b"f", directory)
    files.db.begin()
    dentries.remove(files.db, ROOT_INO, b"d")
    inodes.delete(files.db, directory)
    await files.ship()
    await files.make_directory(b"d")
    await settle(files, indexing=indexing)
    found = await versions_of(power, tmp_path, b"d/f")

    assert brief(found.found) == [(removed, "removed", 10), (created, "created", 10)]


async def test_deduplication_creates_no_new_version(
    power: Power, tmp_path: Path, files: Files
) -> None:
    """Turning a block of zeros into a hole, or sharing a duplicate, makes no new version."""
    _, zeros = await files.make(b"zeros", 9, content=bytes(9))
    await files.make(b"f", 9, content=b"equal")
    _, equal = await files.make(b"g", 9, content=b"equal")
    await files.ship()
    assert files.db.one("SELECT count(DISTINCT block), count(*) FROM block_map") == (1, 2)
    found = [await versions_of(power, tmp_path, path, attributes=True) for path in (b"zeros", b"g")]

    assert [[one.txg for one in each.found] for each in found] == [[zeros], [equal]]


async def test_version_search_for_a_path_that_never_existed_is_refused(
    power: Power, tmp_path: Path, files: Files
) -> None:
    await files.make(b"f", 10)
    await settle(files, indexing=True)
    for path, shown in ((b"g", "'g'"), (b"f/g", "'f/g'"), (b"d/e/\xff", r"b'd/e/\xff'")):
        with pytest.raises(UsageError, match=re.escape(f"a file or directory {shown}")):
            await versions_of(power, tmp_path, path)


async def test_attribute_changes_are_listed_only_on_request(
    power: Power, tmp_path: Path, files: Files, *, indexing: bool
) -> None:
    ino, created = await files.make(b"f", 10)
    files.db.begin()
    xattrs.set(files.db, ino, b"user.x", b"1")
    changed = await files.ship()
    files.db.begin()
    inodes.touch(files.db, ino, atime_ns=10**18)
    await files.ship()
    await settle(files, indexing=indexing)
    few = await versions_of(power, tmp_path, b"f")
    found = await versions_of(power, tmp_path, b"f", attributes=True)

    assert brief(few.found) == [(created, "created", 10)]
    assert brief(found.found) == [(changed, "attributes", 10), (created, "created", 10)]


async def test_version_search_returns_the_requested_number_of_versions(
    power: Power, tmp_path: Path, files: Files
) -> None:
    ino, created = await files.make(b"f", 10)
    txgs = [created, *[await files.write(ino, 20 + number) for number in range(12)]]
    await settle(files, indexing=True)
    some = await versions_of(power, tmp_path, b"f", 3)
    all_ = await versions_of(power, tmp_path, b"f", len(txgs))

    assert ([one.txg for one in some.found], some.is_complete) == (txgs[:-4:-1], False)
    assert ([one.txg for one in all_.found], all_.is_complete) == (txgs[::-1], True)


async def test_lost_changelog_and_image_are_listed_as_unknown_versions(
    power: Power, tmp_path: Path, files: Files
) -> None:
    ino, created = await files.make(b"f", 10)
    lost = await files.write(ino, 20)
    image = await files.session.publish_as_txg()
    written = await files.write(ino, 30)
    del power.store.objects[key_of(lost)]
    await settle(files, indexing=True)
    found = await versions_of(power, tmp_path, b"f")

    assert [(one.txg, one.changes) for one in found.found] == [
        (written, ("content",)),
        (image.txg, ("unknown",)),
        (lost, ("unknown",)),
        (created, ("created",)),
    ]
    assert [one.why for one in found.found[1:3]] == [
        "fsck or rollback replaced the metadata",
        "the changelog is missing",
    ]
    assert found.found[-1].size_bytes == 10


async def test_changes_of_txgs_abandoned_by_fsck_are_listed_as_unknown(
    power: Power, tmp_path: Path
) -> None:
    """The state of the filesystem never contained the changes of abandoned changelogs."""
    async with power.session("a", tasks=False) as session:
        files = Files(session)
        ino, created = await files.make(b"f", 10)
        lost = await files.write(ino, 20)
        abandoned = [await files.write(ino, size) for size in range(30, 60)]
        await session.close()
    rot(power, lost)
    async with power.session("b", options=end_at(created), tasks=False) as session:
        await session.flush_at_end()
        written = await Files(session).write(ino, 70)
        found = await versions_of(power, tmp_path, b"f")

    changes = {one.txg: one.changes for one in found.found}
    assert (changes[written], changes[created]) == (("content",), ("created",))
    assert {one.why for one in found.found if one.txg in abandoned} == {
        "fsck ended the chain before this txg"
    }
    assert {changes[txg] for txg in abandoned} == {("unknown",)}


async def test_content_change_and_rename_in_one_txg_are_one_version(
    power: Power, tmp_path: Path, files: Files
) -> None:
    ino, _ = await files.make(b"f", 10)
    files.db.begin()
    block = block_map.remove(files.db, ino, BlockIndex(0))
    assert block is not None
    files.session.cache.release(block)
    inodes.set_size(files.db, ino, 0, -1)
    dentries.add(files.db, ROOT_INO, b"g", ino)
    dentries.remove(files.db, ROOT_INO, b"f")
    changed = await files.ship()
    found = await versions_of(power, tmp_path, b"g")

    assert brief(found.found)[0] == (changed, "content renamed", 0)


async def test_former_path_in_a_renamed_directory_shows_versions_before_the_rename(
    power: Power, tmp_path: Path, files: Files, *, indexing: bool
) -> None:
    """If a directory is renamed, the index does not list the names inside as removed."""
    directory = await files.make_directory(b"old")
    present, made = await files.make(b"present", 10, directory)
    _, removed_made = await files.make(b"removed", 10, directory)
    await files.make(b"elsewhere", 10)
    await files.rename(b"old", b"new")
    written = await files.write(present, 20)
    await files.remove(b"removed", directory)
    files.db.begin()
    dentries.add(files.db, directory, b"later", dentries.remove(files.db, ROOT_INO, b"elsewhere"))
    await files.ship()
    await settle(files, indexing=indexing)
    found = {
        name: await versions_of(power, tmp_path, b"old/" + name)
        for name in (b"present", b"removed")
    }
    now = await versions_of(power, tmp_path, b"new/present")
    names = await names_like(power, tmp_path, b"old", b"*")
    with pytest.raises(UsageError, match="no retained point in time has"):
        await versions_of(power, tmp_path, b"old/later")

    assert [one.txg for one in found[b"present"].found] == [made]
    assert [one.txg for one in found[b"removed"].found] == [removed_made]
    assert [one.txg for one in now.found] == [written, made]
    assert names == [b"present", b"removed"]


async def test_pattern_finds_names_removed_before_their_directory_was_renamed_and_renamed_back(
    power: Power,
    tmp_path: Path,
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
    *,
    indexing: bool,
) -> None:
    directory = await files.make_directory(b"old")
    for name in (b"early", b"elsewhere", b"late", b"present"):
        await files.make(name, 10, directory)
    await files.remove(b"early", directory)
    await files.rename(b"old", b"new")
    await files.remove(b"elsewhere", directory)
    await files.make(b"only-elsewhere", 10, directory)
    await files.remove(b"only-elsewhere", directory)
    await files.rename(b"new", b"old")
    await files.remove(b"late", directory)
    await settle(files, indexing=indexing)

    pages: list[Cookie] = []
    read = dentries.page_of_names

    def page_of_names(
        db: Database, parent: Ino, after: Cookie, limit: int
    ) -> list[tuple[Cookie, bytes]]:
        pages.append(after)
        return read(db, parent, after, limit)

    monkeypatch.setattr(dentries, "page_of_names", page_of_names)
    names = await names_like(power, tmp_path, b"old", b"*")
    assert pages.count(Cookie(0)) == 1
    names_elsewhere = await names_like(power, tmp_path, b"new", b"*")

    every = [b"early", b"elsewhere", b"late", b"only-elsewhere", b"present"]
    assert names == names_elsewhere == every


async def test_list_of_matching_names_is_marked_incomplete_if_the_directory_has_too_many_names(
    power: Power, tmp_path: Path, files: Files
) -> None:
    for name in (b"a", b"b", b"c", b"d", b"e", b"1", b"9", b"8", b"7"):
        await files.make(name, 10)
    for name in (b"a", b"d", b"9", b"8", b"7"):
        await files.remove(name)
    async with finder_of(power, tmp_path, names_max=3) as finder:
        every = await finder.names_like([], b"[a-z]", 5)
        first = await finder.names_like([], b"[a-z]", 4)
    async with finder_of(power, tmp_path, names_max=1) as finder:
        some = await finder.names_like([], b"[a-z]", 5)
        some_lost = await finder.names_like([], b"[7-9]", 5)

    assert every == ([b"a", b"b", b"c", b"d", b"e"], True)
    assert first == ([b"a", b"b", b"c", b"d"], False)
    assert some == ([b"a", b"b", b"d"], False)
    assert some_lost == ([b"7"], False)


async def test_list_of_matching_names_is_marked_incomplete_if_too_many_directories_had_the_path(
    power: Power, tmp_path: Path, files: Files
) -> None:
    """If more than ``bindings_max`` directories had the path, only these are searched."""
    for name in (b"1", b"2", b"3", b"4"):
        directory = await files.make_directory(b"d")
        await files.make(name, 10, directory)
        await files.remove(name, directory)
        await files.remove_directory(b"d")
    async with finder_of(power, tmp_path) as finder:
        every = await finder.names_like([b"d"], b"*", 9)
    async with finder_of(power, tmp_path, bindings_max=3) as finder:
        some = await finder.names_like([b"d"], b"*", 9)

    assert every == ([b"1", b"2", b"3", b"4"], True)
    assert some == ([b"2", b"3", b"4"], False)


async def test_other_tasks_run_while_the_names_of_a_large_directory_are_read(
    power: Power, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of a large directory are read in pages, so that other tasks can run."""
    for name in (b"a", b"b", b"c", b"d", b"e"):
        await files.make(name, 10)
    limits: list[int] = []
    steps_at: list[int] = []  # Counts the steps of another task before each page.
    steps = 0
    read = dentries.page_of_names

    def page_of_names(
        db: Database, parent: Ino, after: Cookie, limit: int
    ) -> list[tuple[Cookie, bytes]]:
        limits.append(limit)
        steps_at.append(steps)
        return read(db, parent, after, 2)

    async def run_beside() -> None:
        nonlocal steps
        while True:
            steps += 1
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(dentries, "page_of_names", page_of_names)
    async with finder_of(power, tmp_path) as finder, trio.open_nursery() as nursery:
        nursery.start_soon(run_beside)
        found = await finder.names_like([], b"*", 5)
        nursery.cancel_scope.cancel()

    assert found == ([b"a", b"b", b"c", b"d", b"e"], True)
    assert limits == [HISTORY_NAMES_PAGE] * 4
    # Trio may run ready tasks in any order, so one step may be missing.
    assert steps_at[-1] - steps_at[0] >= 2


async def test_list_of_versions_is_marked_incomplete_if_a_name_had_too_many_inodes(
    power: Power, tmp_path: Path, files: Files
) -> None:
    for _ in range(4):
        await files.make(b"f", 10)
        await files.remove(b"f")
    every = await versions_of(power, tmp_path, b"f")
    some = await versions_of(power, tmp_path, b"f", bindings_max=3)

    assert (len(every.found), every.is_complete) == (8, True)
    assert (some.found, some.is_complete) == (every.found[: len(some.found)], False)


async def test_latest_version_is_found_without_reading_all_former_inodes(
    power: Power, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a program replaces its file at each save, one name has many former inodes."""
    await files.make(b"f", 10)
    for size in range(11, 20):
        await files.make(b"new", size)
        await files.rename(b"new", b"f")
    last = files.session.link.txg
    decoded = decodings_of("changes_of", monkeypatch)
    found = await versions_of(power, tmp_path, b"f", 1)

    assert ([one.txg for one in found.found], found.is_complete) == ([last], False)
    assert 0 < len(decoded) <= HISTORY_FETCHES_MAX < last


async def test_changelogs_are_decoded_once_for_all_files_that_match_a_pattern(
    power: Power, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two txgs without an index object change all files of the directory."""
    names = [b"%02d" % number for number in range(20)]
    async with power.session("a", tasks=False) as session:
        files = Files(session)
        directory = await files.make_directory(b"d")
        inos = [write_file(session, b"%d" % number) for number in range(len(names))]
        for name, ino in zip(names, inos, strict=True):
            inodes.set_parent(session.db, ino, directory)
            dentries.add(session.db, directory, name, ino)
        created = await files.ship()
        files.db.begin()
        for name in names:
            remove_file(session, dentries.remove(session.db, directory, name))
        removed = await files.ship()
        every = [await versions_of(power, tmp_path, b"d/" + name) for name in names]
        of_losses = decodings_of("changed_rows", monkeypatch)
        of_changes = decodings_of("changes_of", monkeypatch)
        async with finder_of(power, tmp_path) as finder:
            found = await finder.of_names([b"d"], names, 100, attributes=False)

    assert found == every
    assert [one.txg for one in found[0].found] == [removed, created]
    # The search for the directory and the search for its files decode each changeset once.
    assert max(Counter(of_losses).values()) == 2
    assert max(Counter(of_changes).values()) == 1


async def test_versions_are_found_if_no_results_are_kept_in_memory(
    power: Power, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = decodings_of("changes_of", monkeypatch)
    async with power.session("a", tasks=False) as session:
        files = Files(session)
        directory = await files.make_directory(b"d")
        _, first = await files.make(b"f", 10, directory)
        _, second = await files.make(b"g", 10, directory)
        async with finder_of(power, tmp_path, kept_max=0) as finder:
            found = await finder.of_names([b"d"], [b"f", b"g"], 100, attributes=False)

    assert [[one.txg for one in versions.found] for versions in found] == [[first], [second]]
    assert max(Counter(decoded).values()) > 1


async def test_two_names_of_one_inode_have_equal_versions(power: Power, tmp_path: Path) -> None:
    """Searches for two names share their results, so no search may change these results."""
    async with power.session("a", tasks=False) as session:
        files = Files(session)
        directory = await files.make_directory(b"d")
        ino, _ = await files.make(b"f", 10, directory)
        await files.link(ino, b"g", directory)
        await files.write(ino, 20)
        async with finder_of(power, tmp_path) as finder:
            found = await finder.of_names([b"d"], [b"f", b"g"], 100, attributes=False)
        single = await versions_of(power, tmp_path, b"d/f")

    assert found[0] == found[1] == single
    assert len(single.found) == 3


async def test_pattern_marks_only_names_with_too_many_inodes_as_incomplete(
    power: Power, tmp_path: Path
) -> None:
    async with power.session("a", tasks=False) as session:
        files = Files(session)
        directory = await files.make_directory(b"d")
        await files.make(b"g", 10, directory)
        for _ in range(4):
            await files.make(b"f", 10, directory)
            await files.remove(b"f", directory)
        async with finder_of(power, tmp_path, bindings_max=3) as finder:
            found = await finder.of_names([b"d"], [b"f", b"g"], 100, attributes=False)

    assert [one.is_complete for one in found] == [False, True]


async def test_former_path_selects_the_first_of_two_removed_files_with_that_name(
    power: Power, tmp_path: Path, files: Files
) -> None:
    directory = await files.make_directory(b"old")
    _, made = await files.make(b"f", 10, directory)
    await files.rename(b"old", b"new")
    await files.remove(b"f", directory)
    await files.make(b"f", 20, directory)
    await files.remove(b"f", directory)
    found = await versions_of(power, tmp_path, b"old/f")

    assert [one.txg for one in found.found] == [made]


async def test_list_of_versions_is_marked_incomplete_if_a_former_inode_is_not_read(
    power: Power, tmp_path: Path, files: Files
) -> None:
    """A list of versions may be incomplete even if the current inode has enough versions."""
    await files.make(b"f", 10)
    await files.remove(b"f")
    _, made = await files.make(b"f", 20)
    found = await versions_of(power, tmp_path, b"f", 1)

    assert ([one.txg for one in found.found], found.is_complete) == ([made], False)
