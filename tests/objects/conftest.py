"""Servers for the tests of the S3 store."""

from tests.servers import certificate, s3_server, server_folder  # noqa: F401 - fixtures
