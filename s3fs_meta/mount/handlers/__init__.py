"""The daemon's handlers of control requests.

cache_handlers:   the cache and the transfer limits.
history_handlers: versions of files.
keep_handlers:    kept points.
upload_handlers:  uploads and unreferenced objects.
tree_handlers:    removing, copying and locking trees.
remount:          ``mount -o remount,ro`` in client and daemon.
change_requests:  before the last upload, ends the requests that change the filesystem.
request_kinds:    the commands that the control server treats specially.
requesters:       the processes that send the most requests.

Start at ``tree_handlers``. ``service`` has the handlers that need several parts of the mount.
Below: requests (the client side), fs, sync.
Above: service.
"""
