"""The past of a filesystem: reading it, keeping it.

point in time   the txg that was current at a time; ``points_in_time`` lists the available ones
retention       how far back points in time stay available
snapshot        a bucket read at one point in time, without a trace in it: ``snapshot_mount``
unreferenced    objects that no retained txg needs; ``reclaim`` deletes them
older bucket    a bucket that was reset to an older copy: the local state is uploaded again

Start at ``points_in_time``. ``txg_log`` says what each txg changed, ``newest_locations`` finds
content that a snapshot has lost in the newest state.
Below: image, lease, superblock, upload.
Above: opening, session.
"""
