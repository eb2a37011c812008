"""Fixtures: servers for the contract suite. Assertions of its cases show details."""

import pytest

from tests.servers import (  # noqa: F401 - fixtures
    certificate,
    s3_second_server,
    s3_server,
    s3_tls_server,
    server_folder,
)

pytest.register_assert_rewrite("tests.contract.store_contract")
