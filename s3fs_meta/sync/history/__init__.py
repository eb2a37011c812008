"""The history of a filesystem: reading and retaining its past states.

point in time:  the txg that was current at a time; ``points_in_time`` finds it.
snapshot:       the filesystem at one point in time, read-only; ``snapshot_mount`` opens it.
overview:       the newest state, the lease holder and missing objects, found with few requests.
versions/:      the changes of files and of txgs; ``index/`` finds the txgs to read.
kept/:          named points in time that retention keeps.
garbage/:       retention, and deleting the objects that no retained txg needs.

Start at ``points_in_time``. If content of a snapshot is lost, ``newest_locations`` finds identical
content in the newest state.
Below: image, lease, superblock, upload.
Above: opening, session.
"""
