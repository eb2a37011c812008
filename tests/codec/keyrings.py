"""Keyrings of an unencrypted and of an encrypted filesystem."""

import pytest

from s3fs_meta.codec.keyring import Keyring

PLAIN = Keyring(None, bytes(32))
ENCRYPTED = Keyring.from_master(bytes(range(32)))
both = pytest.mark.parametrize("keyring", [PLAIN, ENCRYPTED], ids=["plain", "encrypted"])
