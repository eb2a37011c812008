"""The table of local state: values that are never shipped."""

import pytest

from s3fs_meta.errors import FormatError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import local_state


def test_value_of_the_local_state_can_be_stored_and_replaced_and_deleted(db: Database) -> None:
    """A missing key has the value None, and its deletion is not an error."""
    assert local_state.get(db, "epoch") is None
    local_state.put(db, "epoch", "1")
    local_state.put(db, "epoch", "2")
    assert local_state.get(db, "epoch") == "2"
    local_state.delete(db, "epoch")
    local_state.delete(db, "epoch")
    assert local_state.get(db, "epoch") is None


@pytest.mark.parametrize("value", ["", "junk", "-1", "1 2", "9223372036854775808"])
def test_value_that_is_not_a_number_is_reported_as_damage(db: Database, value: str) -> None:
    """A number that SQLite cannot store is damage."""
    assert local_state.number(db, "epoch") is None
    local_state.put(db, "epoch", "9223372036854775807")
    assert local_state.number(db, "epoch") == 9223372036854775807
    local_state.put(db, "epoch", value)
    with pytest.raises(FormatError, match="'epoch' of the table local_state is not a number"):
        local_state.number(db, "epoch")
