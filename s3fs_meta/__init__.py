"""A POSIX filesystem: metadata in SQLite, file data in packs in a bucket."""
