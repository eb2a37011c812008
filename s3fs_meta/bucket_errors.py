"""Errors about a bucket that lacks essential objects, or whose state is older than expected.

Owns: the errors of chain, images, superblock and lease, with advice for repairs. Does not know:
errnos, exit statuses. The error about a single damaged object is FormatError (``errors``).
"""

from s3fs_meta.errors import CorruptionError, FormatError


class BrokenChainError(FormatError):
    """A changelog cannot be read, and no level object or image contains its txg."""

    def __init__(
        self, key: str, what: str, last_txg: int, end_txg: int, *, misfit: bool = False
    ) -> None:
        super().__init__(key, what)
        self.last_txg, self.end_txg = last_txg, end_txg
        self.misfit = misfit  # True if the changelog is readable but contradicts the database
        first = last_txg + 1
        lost = f"txg {first}" if first == end_txg else f"txgs {first} to {end_txg}"
        self.message = (
            f"{key!r} cannot be read: {what}; so {lost} cannot be restored from the bucket. "
            f"All txgs up to {last_txg} can be restored: -o ro,at=txg={last_txg} mounts the last "
            f"of them, and s3fs-meta fsck -y repairs as much as possible"
        )
        self.args = (self.message,)


class NoImageError(FormatError):
    """No image in the bucket can be read, so the metadata of a txg cannot be restored."""

    def __init__(self, key: str, why: str, upto: int | None) -> None:
        super().__init__(key, why)
        which, also = "", ""
        if upto is not None:
            which, also = f" up to txg {upto}", "if no later image can be restored, "
        self.message = (
            f"no image of the metadata{which} can be restored: {why}; {also}s3fs-meta fsck -y"
            " --publish-local on a host that has mounted the filesystem uploads its local state;"
            " without such a host, s3fs-meta fsck --rebuild recovers the content, and names from"
            " intact pieces of an image"
        )
        self.args = (self.message,)


class UnfitRecordsError(CorruptionError):
    """Recorded changes contain invalid values, so other hosts cannot apply them to their rows."""

    def __init__(self) -> None:
        super().__init__(
            "a changed or deleted row was damaged on this host, so no other host can apply the change"
            " to its own row; s3fs-meta fsck -y shows whether more rows are damaged"
        )


class OlderBucketError(CorruptionError):
    """The bucket is older than a state that this host saw, or has a different history."""

    def __init__(
        self,
        url: str,
        txg: int,
        what: str,
        remedy: str = "move the state directory away; if not, s3fs-meta fsck -y on the host that"
        " wrote last uploads its state",
    ) -> None:
        super().__init__(
            f"{url} is not in the state that this host saw last (txg {txg}): {what}; "
            f"if the bucket was restored on purpose, {remedy}"
        )
        self.txg, self.what = txg, what


class LostSuperblockError(CorruptionError):
    """The bucket contains a filesystem, but no copy of its superblock is usable."""

    def __init__(self, url: str, what: str) -> None:
        super().__init__(
            f"{url!r} holds a filesystem, but no copy of its superblock can be used: {what}; s3fs-meta fsck -y on a host"
            " that has mounted it uploads that host's copy"
        )


class OlderSuperblockError(CorruptionError):
    """The superblock in the bucket is older than a superblock that this host has seen."""

    def __init__(self, url: str, found: int, known: int) -> None:
        super().__init__(
            f"{url!r} has a superblock of generation {found}, and this host has seen generation "
            f"{known}: an older superblock was put back, which an older passphrase opens; "
            "s3fs-meta fsck -y, with the newer passphrase, restores the newest superblock; with "
            "--accept-superblock, it accepts the superblock in the bucket"
        )
        self.found, self.known = found, known


class ExchangedSuperblockError(CorruptionError):
    """The bucket's superblock and the copy on this host have different keys."""

    def __init__(self, url: str, what: str) -> None:
        super().__init__(
            f"{url!r} {what}: its superblock was exchanged, and nothing was uploaded; s3fs-meta fsck -y uploads the"
            " superblock of this host; with --accept-superblock, it accepts the superblock in the bucket and quarantines the local state"
        )


class LostLeaseError(CorruptionError):
    """The lease of this writer is missing or damaged in the bucket."""

    def __init__(self, url: str, why: str, etag: str | None, advice: str = "") -> None:
        super().__init__(f"{url} has lost its lease ({why})" + (f"; {advice}" if advice else ""))
        self.url, self.why = url, why
        self.etag = etag  # ETag of the damaged object; None if the object is missing
