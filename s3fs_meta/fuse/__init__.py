"""The adaptor to pyfuse3 and the kernel.

frequent_requests: handlers that the C extension calls directly; none of them waits.
operations:        handlers that pyfuse3 calls: all other requests, and requests that wait.
raw_operations:    handlers of requests that pyfuse3 does not support.
error_boundary:    converts exceptions to errnos; a wrapper of the handlers that pyfuse3 calls.
kernel_session:    one session: mounts, serves requests, unmounts.
request_loop:      receives requests from the kernel.
request_times:     the durations of requests, and the threads that send requests.
kernel_cache:      invalidates the kernel's caches after changes made outside the kernel.
notifications:     sends notifications to the kernel, but not while the session is being closed.
collection/:       collects dirty pages from the kernel.

Start at ``operations``. ``extension`` imports pyfuse3 after the compiled extension.
Below: fs.
Above: mount.
"""
