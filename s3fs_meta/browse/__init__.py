"""Read-only web pages, on loopback, that show a filesystem and its history.

page server: a server of ``mount.http_server`` on loopback; its headers protect every reply.
access:      the one-time token in the URL, the cookie and the secret path that replace it.
source:      one filesystem: points in time, files and their content, from the bucket alone.
site:        maps each request to its page or download.
pending:     slow pages, generated in the background while the browser shows a waiting page.
time line:   the retained txgs in runs, with the number of changed files (see ``time_plot``).
archive:     a folder as tar or zip, created while it is sent.
sizes:       the total sizes of all folders at a point in time; ``tree_map`` places them.
mount watch: the statistics of the mount in the last hour.

Start at ``command.serve``, then ``site``. ``templates`` renders pages with jinja2, an optional
dependency.
Below: mount (opening a bucket, HTTP), export (walking a tree), fs.past (open points in time), sync
(history, content of blocks). Above: cli.
"""
