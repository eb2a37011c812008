"""The data that the pages show.

source:      one filesystem: points in time, files and their content, from the bucket alone.
time_line:   the retained txgs in runs, with the number of changed files.
comparison:  differences between two points in time, or two versions of a text file.
cached:      the last results of a slow computation.
mount_watch: the statistics of the mount over the last hour.

Start at ``source``.
Below: fs.past (open points in time), sync.history, mount.
Above: pages, downloads.
"""
