"""Changes to the superblock, with a report of copies that could not be changed."""

import trio

from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.console import interruption
from s3fs_meta.console.boundary import PROGRAM, print_line
from s3fs_meta.errors import PassphraseError
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.stores import opened_store, with_options
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.sync.superblock.changes import Mutate, change
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.unlocking import Secret

_CHANGED = "one or both copies of the superblock may be changed already; run the command again"


def change_superblock(place: Target, s3: S3Options, secret: Secret, mutate: Mutate) -> Superblock:
    """Change the superblock; if a signal interrupts this, report whether it may be changed.

    Raises:
        InterruptedCommandError: a signal interrupted the change.
        The errors of ``_change``.
    """
    with interruption.explained("nothing was changed") as remains:

        def noted(superblock: Superblock, keyring: Keyring) -> Superblock:
            changed = mutate(superblock, keyring)
            remains.change(_CHANGED)
            return changed

        return trio.run(_change, place, s3, secret, noted)


async def _change(place: Target, s3: S3Options, secret: Secret, mutate: Mutate) -> Superblock:
    """Change every reachable copy of the superblock; return the new superblock.

    Args:
        place: the filesystem.
        s3: options for buckets.
        secret: opens the current superblock.
        mutate: returns the new superblock; may prompt the user.

    Raises:
        PreconditionError: another process changed the superblock concurrently; nothing was changed.
        StoreError: the store is unavailable; the message says if the superblock may have changed.
        The errors of ``open_keys`` and of *mutate*.
    """
    async with opened_store(place.url, s3, counts=place.state) as store:
        changed = await change(store, Remembered(place.state), secret, mutate)
    for one in changed.unreached:
        left = f"not reached, so not changed: {one}; s3fs-meta fsck -y replaces it"
        print_line(PROGRAM, with_options(left, place.url, s3, place.state))
    return changed.superblock


def require_encrypted(superblock: Superblock) -> None:
    """Raise PassphraseError if the filesystem has no passphrase and no recovery key.

    Raises:
        PassphraseError: the filesystem is not encrypted.
    """
    if not superblock.encrypted:
        raise PassphraseError("this filesystem is not encrypted, so it has no passphrase")
