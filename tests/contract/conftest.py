"""Fixtures: servers for the contract suite, and detailed output of its failed assertions."""

import pytest

from tests.servers import (  # noqa: F401 - pytest finds fixtures here
    certificate,
    s3_second_server,
    s3_server,
    s3_tls_server,
    server_folder,
)

pytest.register_assert_rewrite("tests.contract.store_contract")
