"""The command that serves the pages."""

import pytest

from tests.browse.conftest import Served

pytestmark = pytest.mark.mount


def test_command_serves_the_bucket_without_local_state(served: Served) -> None:
    """The fixture ends it with SIGINT, and checks its status and that no state stays."""
    assert served.port > 0
    assert served.ask("/").status == 200
