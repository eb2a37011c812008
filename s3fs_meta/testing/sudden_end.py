"""The end of a session as SIGKILL brings it, without a process of its own.

Owns: what a killed process leaves in its state directory. Does not know: what is right.
Closing a database tidies it up: it empties the log and rolls back. A kill does not, so the files
are put back as they were.
"""

from s3fs_meta.sync.volume import Opened


def kill(opened: Opened) -> None:
    """End a session at this moment; the next one finds a hot journal or an unread log."""
    database = opened.state_dir.database
    beside = f"{database.name}*"
    left = {
        path: path.read_bytes()
        for path in database.parent.glob(beside)
        if not path.name.endswith("-shm")
    }
    opened.db.close()
    for path in database.parent.glob(beside):
        path.unlink()
    for path, data in left.items():
        path.write_bytes(data)
    opened.state_dir.unlock()
