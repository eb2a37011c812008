"""The mounts that exist on this host, as commands find them.

targets:       maps a URL or a mountpoint to the filesystem and its local state.
mount_table:   the filesystems mounted on this host.
mount_paths:   maps a path to a directory entry, and removes the entry.
mount_holders: processes that still use an unmounted filesystem.
unanswered:    the reason why no daemon answers.
dead_mount:    distinguishes the mount of a killed daemon from a running mount.
killed_state:  the changes that a killed daemon left in its local state.

Start at ``targets``.
Below: sync.host_state, meta (reading the local state).
Above: requests, handlers, cli.
"""
