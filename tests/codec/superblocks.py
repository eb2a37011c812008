"""Superblocks that several tests use."""

SUPERBLOCK_1 = b"""\
s3fs-meta superblock 1
{
 "authenticator": "ea59d70e394f50309977871804506fb49588daa02631229caacd4b28bd794576",
 "block_bytes": 1048576,
 "features": [],
 "hash_key": null,
 "label": "b\\u00fcro",
 "page_size": 4096,
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
blake3 4980a2907774fc6a7ea6efb3ec9432ced28803e1a6e07ba7294d47a8d5b374c8
"""
