"""One mount from its plan to its end, and the requests to a running mount.

plan           checks and converts the options before any change is made
acquisition    opens the filesystem for the mount: local state, bucket, lease
service        one mount: connects the components, starts the tasks, ends them in order
daemon         the process in the background, and its parent that waits for it
control_api    the requests that commands send to a running mount, and the responses
figures        the figures that ``status`` reports; ``latency`` has the arithmetic of histograms
prometheus     the figures as metrics of Prometheus
metrics_server the metrics over HTTP; ``metrics_option`` listens for it
requesters     the processes that send most requests
supervisor     status, watchdog and requests for time to a service manager, such as systemd
upload_watch   the lines of a command that waits for uploads; ``download_watch``: for downloads
remount        client and daemon of ``mount -o remount,ro``
targets        maps a URL or a mountpoint to the filesystem and its local state
unanswered     the reason why no daemon answers; ``killed_state``: the changes that a kill left
mount_paths    maps a path to a directory entry, and removes the entry
mount_holders  processes that still use an unmounted filesystem
dead_mount     tells the mount of a killed daemon from that of a running one
mount_table    the filesystems mounted on this host

Start at ``service``.
Below: fuse, fs, control, sync, console.
Above: cli.
"""
