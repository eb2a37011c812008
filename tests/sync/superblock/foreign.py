"""A superblock of another filesystem, which anyone can make."""

from s3fs_meta.codec import superblock as superblock_codec


def foreign_superblock() -> bytes:
    """Return the superblock of another, unencrypted filesystem."""
    made, _keyring, _key = superblock_codec.create(
        "01234567-89ab-cdef-0123-456789abcdef", "other", 1 << 20, 4096, False, None
    )
    return superblock_codec.encode(made)
