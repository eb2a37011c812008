"""Generators of docs/reference, man pages and completion scripts."""
