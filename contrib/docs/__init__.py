"""Generators of docs/reference, man pages and completion scripts, from the program itself."""
