"""The adaptor to pyfuse3 and the kernel.

operations       handlers of requests: each converts the arguments and calls ``fs``
raw_operations   handlers of requests that pyfuse3 does not pass on
error_boundary   wrapper of every handler, which turns exceptions into errnos
kernel_session   one session: mounts, serves requests, unmounts
request_loop     receives requests from the kernel
request_times    how long requests take, and which threads send them
kernel_cache     invalidates the kernel's caches after changes that the kernel did not request
write_back       collects dirty pages from the kernel

Start at ``operations``. ``extension`` imports pyfuse3, and the compiled part before it.
Below: fs.
Above: mount.
"""
