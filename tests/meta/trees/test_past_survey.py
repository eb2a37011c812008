"""The survey of a past tree: which packs the tree needs, determined before the tree is copied."""

from pathlib import Path

import pytest

from s3fs_meta.errors import PastUnavailableError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, blocks, dentries, inodes, packs
from s3fs_meta.meta.trees.past_survey import PastSurvey
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, Ino, ObjectKey, PackId, Txg
from tests.meta.conftest import NOW_NS, MakeDatabase

TXG = Txg(7)


@pytest.fixture
def past(make_database: MakeDatabase) -> Database:
    """Return a past database that another connection has locked exclusively."""
    db = make_database("past.db", journal_mode="off")
    db.begin()
    return db


def _entry(db: Database, parent: Ino, name: bytes, mode: int = 0o100644) -> Ino:
    made = inodes.create(db, mode, 0, 0, parent, NOW_NS)
    dentries.add(db, parent, name, made.ino)
    return made.ino


def _stored(db: Database, ino: Ino, number: int) -> PackId:
    """Give a file one block that is stored in a new pack; return the pack."""
    pack = packs.create(db, _key(number), 1000)
    packs.stored(db, pack)
    block = db.counters.take_block()
    blocks.create_dirty(db, block, ino, BlockIndex(0), 10)
    block_map.set(db, ino, BlockIndex(0), block)
    blocks.set_location(db, blocks.get(db, block), bytes([number]) * 32, pack, 0, 20)
    return pack


def _key(number: int) -> ObjectKey:
    return ObjectKey(f"pack/{number:02}/1-{number:032}")


def test_survey_of_past_content_finds_the_packs_of_a_tree(past: Database) -> None:
    """The survey of a tree includes files at any depth, but no files outside the tree."""
    top = _entry(past, ROOT_INO, b"top", 0o040755)
    below = _entry(past, _entry(past, top, b"a", 0o040755), b"b", 0o040755)
    for number, parent in enumerate((top, below, ROOT_INO), 1):
        assert _stored(past, _entry(past, parent, b"f"), number) == number
    past.commit()
    survey = PastSurvey(past.path, TXG, top)
    assert survey.packs() == {1: _key(1), 2: _key(2)}
    survey.choose([PackId(2)])
    assert [row.block for row in survey.blocks_after(BlockId(0), 9)] == [2]
    assert survey.blocks_after(BlockId(2), 9) == []
    survey.close()


def test_survey_of_a_file_without_content_finds_no_pack(past: Database) -> None:
    ino = _entry(past, ROOT_INO, b"f")
    past.commit()
    survey = PastSurvey(past.path, TXG, ino)
    assert survey.packs() == {}
    survey.close()


def test_survey_of_past_content_reads_blocks_page_by_page(past: Database) -> None:
    top = _entry(past, ROOT_INO, b"top", 0o040755)
    pack = [_stored(past, _entry(past, top, b"%d" % number), number) for number in range(5)]
    past.commit()
    survey = PastSurvey(past.path, TXG, top)
    survey.choose(pack)
    pages, after = [], BlockId(0)
    while page := survey.blocks_after(after, 2):
        pages.append([int(row.block) for row in page])
        after = page[-1].block
    survey.close()
    assert pages == [[1, 2], [3, 4], [5]]


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM blocks",
        "UPDATE blocks SET pack = NULL, hash = NULL",
        "UPDATE blocks SET pack = 'x'",
        "DELETE FROM packs",
    ],
)
def test_survey_of_past_content_reports_blocks_without_a_location(
    past: Database, damage: str
) -> None:
    ino = _entry(past, ROOT_INO, b"f")
    _stored(past, ino, 1)
    past.run(damage)
    past.commit()
    survey = PastSurvey(past.path, TXG, ino)
    assert survey.packs() is None
    survey.close()


def test_survey_of_past_content_ends_if_a_directory_contains_itself(past: Database) -> None:
    top = _entry(past, ROOT_INO, b"top", 0o040755)
    dentries.add(past, top, b"loop", top)
    past.commit()
    survey = PastSurvey(past.path, TXG, top)
    assert survey.packs() == {}
    survey.close()


def test_survey_of_a_file_that_is_not_a_database_fails(tmp_path: Path) -> None:
    path = tmp_path / "junk"
    path.write_bytes(b"junk" * 1000)
    with pytest.raises(PastUnavailableError):
        PastSurvey(path, TXG, ROOT_INO)


def test_key_that_is_not_utf8_makes_the_past_unavailable(past: Database) -> None:
    _stored(past, _entry(past, ROOT_INO, b"f"), 1)
    past.run("UPDATE packs SET object_key = CAST(x'ff' AS TEXT)")
    past.commit()
    survey = PastSurvey(past.path, TXG, ROOT_INO)

    with pytest.raises(PastUnavailableError, match="txg 7"):
        survey.packs()
    survey.close()
