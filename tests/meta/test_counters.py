"""The counters row in memory."""

from s3fs_meta.meta.counters import COLUMNS, Counters


def loaded() -> Counters:
    """Return counters with 1, 2, 3, … as values."""
    counters = Counters()
    counters.load(tuple(range(1, len(COLUMNS) + 1)))
    return counters


def test_values_come_back_in_column_order() -> None:
    """What is loaded is what would be written."""
    assert loaded().values() == tuple(range(1, len(COLUMNS) + 1))


def test_every_column_is_written() -> None:
    """A column that values() forgot would never reach the disk."""
    counters = loaded()
    for number, name in enumerate(COLUMNS):
        setattr(counters, name, 1000 + number)
    assert counters.values() == tuple(range(1000, 1000 + len(COLUMNS)))


def test_numbers_are_taken_once() -> None:
    """Each call gives the next number of its kind."""
    counters = loaded()
    assert [counters.take_ino(), counters.take_ino()] == [1, 2]
    assert [counters.take_block(), counters.take_block()] == [2, 3]
    assert [counters.take_pack(), counters.take_pack()] == [3, 4]
    assert counters.open_txg == 4
