"""The adaptor to pyfuse3 and the kernel.

operations       the handlers of requests: convert, call fs, answer
raw_operations   handlers of requests that pyfuse3 does not pass on
error_boundary   the wrapper of every handler: an errno, never an exception
kernel_session   mount, serve requests, unmount; ``request_loop`` takes the requests
kernel_cache     invalidates the kernel's caches after changes that it did not request
write_back       collects dirty pages from the kernel

Start at ``operations``. ``extension`` imports pyfuse3, and the compiled part before it.
Below: fs.
Above: mount.
"""
