"""Parts that only tests use; nothing in the package imports them.

model_fs        the reference model; ``operations``: operations as values; ``observation``: what
                a filesystem looks like; ``history``: what may exist after a crash
faulty_store    a store that fails on request
recorded_disk   every file operation of a process; ``recorded_vfs``: those of SQLite;
                ``power_cut``: the states that a disk may have after a power cut
sudden_end      the end of a session as SIGKILL leaves it

Start at ``model_fs``.
"""
