"""The history of a filesystem: reading and retaining its past states.

point in time:  the txg that was current at a time; ``points_in_time`` finds it.
retention:      the age up to which points in time stay available.
overview:       the newest state, the lease holder and missing objects, found with few requests.
snapshot:       the filesystem at one point in time, read-only; ``snapshot_mount`` opens it.
kept point:     a named point in time that retention keeps; ``pins`` computes the objects it needs.
garbage:        objects that no retained txg needs; ``garbage_search`` lists, ``reclaim`` deletes.
older bucket:   a bucket that was reset to an older copy, to which the writer uploads its state.

Start at ``points_in_time``. ``txg_log`` lists the changes of each txg, ``path_log`` the txgs that
changed a path. If content of a snapshot is lost, ``newest_locations`` finds identical content in
the newest state.
Below: image, lease, superblock, upload.
Above: opening, session.
"""
