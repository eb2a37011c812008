"""Checks of rows in the local database when the database is opened."""

import pytest

from s3fs_meta.errors import FormatError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import local_state
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.local_facts import HEADS, NUMBERS, open_checked
from tests.sync.conftest import Power


@pytest.mark.parametrize("junk", ["", "junk", "1 zz 0", "{}", "9" * 5000])
@pytest.mark.parametrize("name", [*NUMBERS, *HEADS, "chain", "intent_log", "holder", "nonces"])
async def test_database_with_a_damaged_row_of_local_state_is_refused(
    plain: Power, name: str, junk: str
) -> None:
    """The error names the database, so that a repair can quarantine it."""
    async with plain.session("a") as session:
        await session.close()
    path = StateDir(plain.home / "a").database
    db = open_checked(path, Pragmas(), repairing=False)
    db.begin_local()
    local_state.put(db, name, junk)
    db.commit()
    db.close()

    for repairing in (False, True):
        with pytest.raises(FormatError) as caught:
            open_checked(path, Pragmas(), repairing=repairing)
        assert caught.value.key == str(path)

    Database.open(path, Pragmas()).close()
