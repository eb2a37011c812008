"""One mount from its plan to its end, and the requests that commands send to a mount.

plan:            checks and converts the options before anything is changed.
acquisition:     opens the filesystem for the mount: local state, bucket, lease.
service:         one mount: connects the components, starts the tasks, stops them in order.
daemon:          the background process, and the parent process that waits for its start.
existing/:       the mounts of this host: finding them, and the reason why one does not answer.
requests/:       the requests that commands send to a running mount, and their output.
handlers/:       the daemon's handlers of these requests.
statistics/:     the statistics of a mount: status, metrics over HTTP, costs.
supervisor:      messages to a service manager such as systemd: status, watchdog, more time.
snapshot_source: opens a past point in time for one command, without a mount.
http_server:     HTTP for ``statistics`` and ``browse``.

Start at ``service``.
Below: fuse, fs, control, sync, console.
Above: cli, browse.
"""
