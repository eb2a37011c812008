"""Test doubles and models; only tests import this package.

model_fs        the reference model; ``operations``: operations as values; ``observation``: the
                visible state of a filesystem; ``history``: the states allowed after a crash
faulty_store    a store that fails on request
recorded_disk   records every file operation of a process; ``recorded_vfs``: those of SQLite;
                ``power_cut``: the states that a disk may have after a power cut
sudden_end      ends a session as SIGKILL does

Start at ``model_fs``.
"""
