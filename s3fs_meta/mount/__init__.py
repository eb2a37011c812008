"""One mount from its plan to its end, and the requests that commands send to a mount.

plan:          checks and converts the options before anything is changed.
acquisition:   opens the filesystem for the mount: local state, bucket, lease.
service:       one mount: connects the components, starts the tasks, stops them in order.
daemon:        the process in the background, and its parent that waits for it.
control_api:   the requests that commands send to a running mount; ``change_requests`` ends them.
figures:       the statistics that ``status`` reports; ``latency`` evaluates histograms.
prometheus:    the statistics as Prometheus metrics.
metrics_server: the metrics over HTTP (``http_server``); ``metrics_option`` opens its socket.
requesters:    the processes that send the most requests.
supervisor:    messages to a service manager such as systemd: status, watchdog, more time.
upload_watch:  the output of a command that waits for uploads; ``download_watch``: downloads.
remount:       ``mount -o remount,ro`` in client and daemon.
targets:       maps a URL or a mountpoint to the filesystem and its local state.
unanswered:    the reason why no daemon answers; ``killed_state``: changes a killed daemon left.
mount_paths:   maps a path to a directory entry, and removes the entry.
mount_holders: processes that still use an unmounted filesystem.
libfuse_messages: the reason of a failed mount, as libfuse prints it.
dead_mount:    distinguishes the mount of a killed daemon from a running mount.
mount_table:   the filesystems mounted on this host.

Start at ``service``.
Below: fuse, fs, control, sync, console.
Above: cli.
"""
