"""The log of a path: txgs that changed a file or directory tree, found in the bucket alone."""

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import UsageError
from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino, Txg
from s3fs_meta.objects.billing import Meter, MeteredStore
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain.chain import FetchedChangelog
from s3fs_meta.sync.history.index import index_runs
from s3fs_meta.sync.history.index.index_runs import TxgChanges
from tests.sync.conftest import Power
from tests.sync.history.files import Files
from tests.sync.history.readers import bucket_of, concerning

pytestmark = pytest.mark.thorough

RUN = HISTORY_FAN_OUT


async def logged(
    power: Power, tmp_path: Path, files: Files, *paths: bytes, indexing: bool
) -> list[list[Txg]]:
    """Return the log of each path; with *indexing*, build the history index first."""
    if indexing:
        await files.index()
    bucket = await bucket_of(power)
    return [await concerning(bucket, tmp_path, path) for path in paths]


async def test_log_of_a_directory_lists_all_changes_in_its_tree(
    power: Power, tmp_path: Path, files: Files, *, indexing: bool
) -> None:
    """The log of a directory omits changes outside the directory, and reads."""
    top = await files.make_directory(b"top")
    made_top = files.session.link.txg
    sub = await files.make_directory(b"sub", top)
    made_sub = files.session.link.txg
    file, made = await files.make(b"file", 10, sub)
    other, _ = await files.make(b"other", 10)
    written = await files.write(file, 20)
    await files.write(other, 20)
    files.session.db.begin()
    inodes.touch(files.session.db, file, atime_ns=10**18)
    await files.ship()
    removed = await files.remove(b"file", sub)
    gone = await files.remove_directory(b"sub", top)
    found = await logged(
        power, tmp_path, files, b"top", b"top/sub", b"top/sub/file", indexing=indexing
    )

    assert found == [
        [gone, removed, written, made, made_sub, made_top],
        [gone, removed, written, made, made_sub],
        [removed, written, made],
    ]


async def test_log_of_a_directory_includes_a_file_until_it_is_moved_out(
    power: Power, tmp_path: Path, files: Files, *, indexing: bool
) -> None:
    one, two = [await files.make_directory(name) for name in (b"one", b"two")]
    made_two = files.session.link.txg
    made_one = made_two - 1
    file, made = await files.make(b"file", 10, one)
    moved = await files.move(b"file", one, two)
    written = await files.write(file, 20)
    found = await logged(power, tmp_path, files, b"one", b"two", indexing=indexing)

    assert found == [[moved, made, made_one], [written, moved, made, made_two]]


async def test_log_of_a_moved_directory_lists_changes_of_its_tree(
    power: Power, tmp_path: Path, files: Files, *, indexing: bool
) -> None:
    """When a directory is moved, the index does not list the names inside the directory."""
    top = await files.make_directory(b"top")
    sub = await files.make_directory(b"sub", top)
    made_sub = files.session.link.txg
    file, made = await files.make(b"file", 10, sub)
    removed_file, made_other = await files.make(b"removed", 10, sub)
    moved = await files.move(b"sub", top, ROOT_INO)
    written = await files.write(file, 20)
    removed = await files.remove(b"removed", sub)
    again = await files.make_directory(b"sub", top)
    made_again = files.session.link.txg
    below, made_below = await files.make(b"below", 10, again)
    found = await logged(power, tmp_path, files, b"top", b"top/sub", b"sub", indexing=indexing)

    assert len({removed_file, below, sub, again}) == 4
    assert found == [
        [made_below, made_again, moved, made_other, made, made_sub, made_sub - 1],
        [made_below, made_again, moved, made_other, made, made_sub],
        [removed, written, moved, made_other, made, made_sub],
    ]


async def test_log_finds_a_file_by_each_of_its_hard_links(
    power: Power, tmp_path: Path, files: Files, *, indexing: bool
) -> None:
    one, two = [await files.make_directory(name) for name in (b"one", b"two")]
    made_two = files.session.link.txg
    file, made = await files.make(b"file", 10, one)
    linked = await files.link(file, b"link", two)
    written = await files.write(file, 20)
    found = await logged(power, tmp_path, files, b"one", b"two", indexing=indexing)

    assert found == [
        [written, linked, made, made_two - 1],
        [written, linked, made, made_two],
    ]


async def test_log_of_a_replaced_file_lists_the_txgs_of_all_its_inodes(
    power: Power, tmp_path: Path, files: Files, *, indexing: bool
) -> None:
    top = await files.make_directory(b"top")
    _, made = await files.make(b"file", 10, top)
    _, draft = await files.make(b"draft", 20, top)
    replaced = await files.rename(b"draft", b"file", top)
    found = await logged(power, tmp_path, files, b"top/file", b"top", indexing=indexing)

    assert found == [[replaced, draft, made], [replaced, draft, made, made - 1]]


async def test_log_lists_txgs_whose_changes_are_unknown(
    power: Power, tmp_path: Path, files: Files, *, indexing: bool
) -> None:
    """A removal before an image is found by the name in its changelog."""
    top = await files.make_directory(b"top")
    _, made = await files.make(b"file", 10, top)
    other, _ = await files.make(b"other", 10)
    lost = await files.write(other, 20)
    removed = await files.remove(b"file", top)
    image = await files.session.publish_as_txg()
    await files.write(other, 30)
    del power.store.objects[key_of(lost)]
    found = await logged(power, tmp_path, files, b"top", indexing=indexing)

    assert found == [[image.txg, removed, lost, made, made - 1]]


async def test_log_finds_the_removal_of_a_name_in_a_txg_without_an_index(
    power: Power, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a txg has too many changes for the index, its changelog is read instead."""
    changes_of = index_runs.changes_of
    top = await files.make_directory(b"top")
    _, made = await files.make(b"file", 10, top)
    removed = await files.remove(b"file", top)

    async def lacking(
        store: ObjectStore, keyring: Keyring, fetched: FetchedChangelog
    ) -> TxgChanges:
        found = await changes_of(store, keyring, fetched)
        return found._replace(changes=None) if fetched.txg == removed else found

    monkeypatch.setattr(index_runs, "changes_of", lacking)
    found = await logged(power, tmp_path, files, b"top", indexing=True)

    assert found == [[removed, made, made - 1]]


class Tree(NamedTuple):
    """A model of files and directories; no directory is ever removed."""

    directories: dict[Ino, tuple[bytes, Ino]]  # Maps each inode to its name and parent directory.
    files: dict[Ino, tuple[bytes, Ino]]


async def change_at_random(files: Files, tree: Tree, rnd: random.Random) -> None:
    """Change a random file or directory, and ship the txg."""
    kind = rnd.choice(["make", "make", "write", "write", "move", "remove", "move directory"])
    name = b"%d" % files.session.link.txg
    directory = rnd.choice([*tree.directories, ROOT_INO])
    if kind == "make" or not tree.files:
        ino, _ = await files.make(name, 10, directory)
        tree.files[ino] = (name, directory)
        return
    ino = rnd.choice(list(tree.files))
    named, parent = tree.files[ino]
    if kind == "write":
        await files.write(ino, files.session.link.txg + 100)
    elif kind == "remove":
        await files.remove(named, parent)
        del tree.files[ino]
    elif kind == "move" and directory != parent:
        await files.move(named, parent, directory)
        tree.files[ino] = (named, directory)
    else:
        ino = rnd.choice(list(tree.directories))
        named, parent = tree.directories[ino]
        at = directory
        while at not in {ino, ROOT_INO}:
            at = tree.directories[at][1]
        if at == ROOT_INO and directory != parent:
            await files.move(named, parent, directory)
            tree.directories[ino] = (named, directory)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_log_is_equal_with_and_without_the_history_index(
    power: Power, tmp_path: Path, seed: int
) -> None:
    """After random moves of files and directories, logs with and without the index are equal."""
    rnd = random.Random(seed)
    async with power.session("a", tasks=False) as session:
        files, tree = Files(session), Tree({}, {})
        for name in (b"a", b"b", b"c", b"d"):
            parent = rnd.choice([ROOT_INO, *tree.directories])
            tree.directories[await files.make_directory(name, parent)] = (name, parent)
        for _ in range(3 * RUN):
            await change_at_random(files, tree, rnd)
        await files.index(0)
        paths = [_path(tree, ino) for ino in [*tree.directories, *list(tree.files)[:5]]]
        bucket = await bucket_of(power)
        indexed = [await concerning(bucket, tmp_path, path) for path in paths]
        for key in [key for key in power.store.objects if key.startswith("history/")]:
            del power.store.objects[key]
        read = [await concerning(bucket, tmp_path, path) for path in paths]

    assert indexed == read
    assert any(len(txgs) > RUN // 3 for txgs in read)


def _path(tree: Tree, ino: Ino) -> bytes:
    names: list[bytes] = []
    while ino != ROOT_INO:
        name, ino = tree.files[ino] if ino in tree.files else tree.directories[ino]
        names.append(name)
    return b"/".join(reversed(names))


async def test_log_of_thousands_of_txgs_sends_few_requests(
    power: Power, tmp_path: Path, files: Files
) -> None:
    """The log of a path needs requests for the changes of the path, not for all txgs."""
    meter = Meter()
    store = MeteredStore(power.store, meter)
    top = await files.make_directory(b"top")
    file, made = await files.make(b"file", 10, top)
    other, _ = await files.make(b"other", 10)
    changed = []
    for _ in range(3):
        await files.index(RUN * RUN // 3)
        await files.write(other, files.session.link.txg + 100)
        changed.append(await files.write(file, files.session.link.txg + 100))
    await files.index(10)
    bucket = await bucket_of(power)
    meter.take()
    found = await concerning(bucket, tmp_path, b"top", store=store)

    assert [txg for txg in found if txg > made] == changed[::-1]
    assert files.session.link.txg > RUN * RUN
    sent = sum(billed.requests for counts in meter.take().values() for billed in counts.values())
    # The search requests a listing, the level 2 object and level 1 objects with changes.
    indexes = 1 + 1 + 3 + 1
    assert sent <= indexes + len(found) + RUN


async def test_log_ends_at_the_oldest_requested_txg(
    power: Power, tmp_path: Path, files: Files
) -> None:
    file, _ = await files.make(b"file", 10)
    txgs = [await files.write(file, 20 + number) for number in range(RUN)]
    await files.index()
    found = await concerning(await bucket_of(power), tmp_path, b"file", first=txgs[5])

    assert found == txgs[:4:-1]


async def test_log_refuses_a_path_with_too_many_removed_names(
    power: Power, tmp_path: Path, files: Files
) -> None:
    top = await files.make_directory(b"top")
    for number in range(4):
        await files.make(b"%d" % number, 10, top)
        await files.remove(b"%d" % number, top)
    await files.index()
    bucket = await bucket_of(power)
    with pytest.raises(UsageError, match=r"names were removed or renamed since txg .* --since"):
        await concerning(bucket, tmp_path, b"top", former_names_max=3)


async def test_log_of_a_path_that_never_existed_is_refused(
    power: Power, tmp_path: Path, files: Files
) -> None:
    await files.make(b"file", 10)
    assert dentries.find(files.session.db, ROOT_INO, b"other") is None
    with pytest.raises(UsageError, match="no retained point in time has"):
        await logged(power, tmp_path, files, b"other", indexing=False)
