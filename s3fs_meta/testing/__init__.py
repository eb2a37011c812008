"""Test doubles and models; only tests import this package.

model_fs:       the reference model of a filesystem.
operations:     filesystem operations as values.
observation:    the visible state of a filesystem.
history:        the states that are allowed after a crash.
faulty_store:   a store that fails on request.
recorded_disk:  records every change that a process makes to files.
recorded_vfs:   records every change that SQLite makes to its files.
failing_vfs:    makes one sync of SQLite fail.
power_cut:      the states that a disk may have after a power cut.
sudden_end:     ends a session like SIGKILL.

Start at ``model_fs``.
"""
