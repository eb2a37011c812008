"""The past of a filesystem: reading it, and retaining it.

point in time   the txg that was current at a time; ``points_in_time`` lists the available ones
retention       how far back points in time stay available
overview        the newest state, the holder of the lease and missing objects, from few requests
snapshot        a bucket read at one point in time; nothing in it changes: ``snapshot_mount``
kept point      a named point in time that retention keeps; ``pins`` computes the objects it needs
garbage         objects that no retained txg needs: ``garbage_search`` finds, ``reclaim`` deletes them
older bucket    a bucket that was reset to an older copy; the writer uploads its state again

Start at ``points_in_time``. ``txg_log`` lists the changes of each txg, ``path_log`` those txgs that
changed a path; if content of a snapshot is lost, ``newest_locations`` finds equal content in the
newest state.
Below: image, lease, superblock, upload.
Above: opening, session.
"""
