"""Fixtures: the healthy filesystems that all cells of the damage matrix share."""

from functools import partial

import pytest
import trio

from tests.damage_matrix import build
from tests.damage_matrix.world import Worlds


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Return a plain (unencrypted) and an encrypted filesystem."""
    return {
        encrypted: trio.run(partial(build.build, home, encrypted=encrypted))
        for encrypted, home in (
            (False, tmp_path_factory.mktemp("plain")),
            (True, tmp_path_factory.mktemp("encrypted")),
        )
    }
