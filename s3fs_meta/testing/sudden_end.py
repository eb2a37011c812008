"""Ending a session like SIGKILL, but without a separate process.

Owns: the files that a killed process leaves in its state directory. Does not know: recovery.
Closing a database empties its write-ahead log and rolls back an open transaction; killing the process
does neither. So ``kill`` restores the files that the database had before it was closed.
"""

from s3fs_meta.sync.volume import Volume


def kill(volume: Volume) -> None:
    """End a session abruptly; the next session finds a hot journal or a write-ahead log."""
    database = volume.state_dir.database
    beside = f"{database.name}*"
    left = {
        path: path.read_bytes()
        for path in database.parent.glob(beside)
        if not path.name.endswith("-shm")
    }
    volume.db.close()
    for path in database.parent.glob(beside):
        path.unlink()
    for path, data in left.items():
        path.write_bytes(data)
    volume.state_dir.unlock()
