"""Generators of docs/reference, man pages and completion scripts, from the modules of s3fs_meta."""
