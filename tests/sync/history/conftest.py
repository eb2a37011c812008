"""Fixtures: a history of changes to files, with and without the history index."""

from collections.abc import AsyncIterator

import pytest

from tests.sync.conftest import Power
from tests.sync.history.files import Files


@pytest.fixture
async def files(power: Power) -> AsyncIterator[Files]:
    """Return file operations in a session of host a without background tasks."""
    async with power.session("a", tasks=False) as session:
        yield Files(session)


@pytest.fixture(params=[False, True], ids=["no index", "indexed"])
def indexing(request: pytest.FixtureRequest) -> bool:
    """Return True if the test builds the history index."""
    return bool(request.param)
