"""POSIX semantics without FUSE."""
