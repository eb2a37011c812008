"""The exact bytes of superblocks in versions 1 and 2, for tests."""

# The superblocks of versions 1 and 2 share these last fields: the UUID and two key slots.
_KEYS = b"""\
 "unsafe_single_writer": false,
 "uuid": "01234567-89ab-cdef-0123-456789abcdef",
 "wrapped_by_passphrase": {
  "iterations": 1,
  "kdf": "argon2id",
  "lanes": 1,
  "memory_kib": 8,
  "salt": "03030303030303030303030303030303",
  "wrapped": "736f8de732d48f1afd7477bdaa3ab76934a1d723284b687e5eb9d973570c1d144da730331e7da7bebd705342916b693c"
 },
 "wrapped_by_recovery": "34fa467ca27c061060bacec5aa20b07938921e7921012fbbc4c739524e004573e7e4af7c8d1fabfbeda74bea357b808b"
}
"""

SUPERBLOCK_1 = (
    b"""\
s3fs-meta superblock 1
{
 "authenticator": "ea59d70e394f50309977871804506fb49588daa02631229caacd4b28bd794576",
 "block_bytes": 1048576,
 "features": [],
 "hash_key": null,
 "label": "b\\u00fcro",
 "page_size": 4096,
"""
    + _KEYS
    + b"blake3 4980a2907774fc6a7ea6efb3ec9432ced28803e1a6e07ba7294d47a8d5b374c8\n"
)

SUPERBLOCK_2 = (
    b"""\
s3fs-meta superblock 2
{
 "authenticator": "104331b1842a646e3b2fab35e5ab7c02f6d63594f36f846e09f7dbd28ec4dca8",
 "block_bytes": 1048576,
 "features": [],
 "hash_key": null,
 "label": "b\\u00fcro",
 "page_size": 4096,
 "retention_s": 3600,
"""
    + _KEYS
    + b"blake3 d6a9173a5c3284954543e82399df66c9fe65bc751bf571fd1131368113379c30\n"
)
