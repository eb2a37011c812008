"""One mount from its plan to its end, and the requests to a running mount.

plan           options, checked before anything is touched
acquisition    the filesystem opened for the mount: local state, bucket, lease
service        one mount: wires the parts, starts the tasks, keeps the order of the end
daemon         the process in the background, and its parent that waits for it
control_api    requests that commands send to a running mount, and the answers
figures        what ``status`` reports
remount        both ends of ``mount -o remount,ro``
targets        from a URL or a mountpoint to the filesystem and its local state; ``mount_paths``:
               from a path to a directory entry, and its removal
mount_holders  processes that still use an unmounted filesystem
mount_table    the filesystems mounted on this host

Start at ``service``.
Below: fuse, fs, control, sync, console.
Above: cli.
"""
