"""A helper that decodes the changelogs in a memory store."""

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Changelog
from s3fs_meta.codec.keyring import Keyring
from tests.sync.conftest import Power


def changelogs(power: Power, keyring: Keyring) -> list[Changelog]:
    """Return all changelogs in the bucket in the order of the chain."""
    return [
        changelog_codec.decode(key, data, keyring)
        for key, data in sorted(power.store.objects.items())
        if changelog_codec.parse_key(key) is not None
    ]
