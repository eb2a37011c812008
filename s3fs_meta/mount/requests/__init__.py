"""Requests that commands send to a running mount, and their output.

control_api:      status, flush, reclaim, promote, and waiting for the end of a mount.
cache_requests:   the cache and the transfer limits.
history_requests: versions of files.
keep_requests:    kept points.
upload_watch:     the output of a command that waits for uploads.
download_watch:   the output of a command that waits for downloads.

Start at ``control_api``.
Below: existing (finding the mount), control (the socket).
Above: handlers (the daemon's side of these requests), statistics, cli.
"""
