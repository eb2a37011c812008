"""Secrets that unlock a superblock: a passphrase, the recovery key, or known keys.

Owns: the rule that the user is asked for a secret at most once. Does not know: which superblock is
used (``selection``).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from typing_extensions import override

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import KEY, Superblock
from s3fs_meta.errors import FormatError


class Secret(ABC):
    """A secret that unlocks superblocks of one filesystem."""

    noun: str  # the kind of the secret, for messages, for example "passphrase"
    # How the user gave the secret in advance, such as "in $S3FS_META_PASSPHRASE". This shows that
    # the user expects encryption. "" if the user will be asked for the secret.
    given: str

    @abstractmethod
    def ask(self) -> None:
        """Ask the user for the secret, once. Called only for an encrypted filesystem.

        Raises:
            PassphraseError: no secret is available.
        """

    @abstractmethod
    async def open(self, superblock: Superblock) -> Keyring:
        """Return the keys in a superblock; ask the user first if the secret is not known yet.

        Raises:
            PassphraseError: the secret does not unlock the superblock.
            FormatError: the fields of the superblock are not authentic.
        """


class _Typed(Secret):
    """A secret that a user types or that a file contains."""

    def __init__(self, source: Callable[[], bytes], *, given: str = "") -> None:
        """Create a secret; the user is asked for it when it is first needed.

        Args:
            source: returns the secret, or asks the user for it.
            given: how the user gave the secret, so that the filesystem must be encrypted; "" if the
                source asks the user.
        """
        self._source = source
        self.given = given
        self._said: bytes | None = None

    @override
    def ask(self) -> None:
        self._secret()

    @override
    async def open(self, superblock: Superblock) -> Keyring:
        if not superblock.encrypted:
            return superblock_codec.unlock_plain(superblock)
        return await in_thread(self._unlock, superblock, self._secret())

    @abstractmethod
    def _unlock(self, superblock: Superblock, secret: bytes) -> Keyring:
        """Return the keys in an encrypted superblock. The call blocks."""

    def _secret(self) -> bytes:
        if self._said is None:
            self._said = self._source()
        return self._said


class Passphrase(_Typed):
    """A secret that is the passphrase of a filesystem."""

    noun = "passphrase"

    @override
    def _unlock(self, superblock: Superblock, secret: bytes) -> Keyring:
        return superblock_codec.unlock(superblock, secret)


class RecoveryKey(_Typed):
    """A secret that is a recovery key, typed in any case and with any separators."""

    noun = "recovery key"

    @override
    def _unlock(self, superblock: Superblock, secret: bytes) -> Keyring:
        return superblock_codec.unlock_with_recovery(superblock, secret.decode(errors="replace"))


class HeldKeys(Secret):
    """A secret that consists of a running mount's keys."""

    noun = "key"

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self.given = "to the mount" if keyring.encrypted else ""

    @override
    def ask(self) -> None:
        """Do nothing, because the keys are known."""

    @override
    async def open(self, superblock: Superblock) -> Keyring:
        if not superblock_codec.is_authentic(superblock, self._keyring):
            raise FormatError(KEY, "the fields of the superblock are not authentic")
        return self._keyring
