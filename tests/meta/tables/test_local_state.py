"""The table of values about the local state, which are never shipped."""

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import local_state


def test_value_of_the_local_state_can_be_stored_and_replaced_and_deleted(db: Database) -> None:
    """An unknown key reads as None, and its deletion is not an error."""
    assert local_state.get(db, "epoch") is None
    local_state.put(db, "epoch", "1")
    local_state.put(db, "epoch", "2")
    assert local_state.get(db, "epoch") == "2"
    local_state.delete(db, "epoch")
    local_state.delete(db, "epoch")
    assert local_state.get(db, "epoch") is None
