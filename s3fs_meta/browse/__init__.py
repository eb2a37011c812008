"""A filesystem and its history as pages in the browser, read-only, on loopback.

server      answers HTTP requests of one user on loopback
access      the one-time token in the URL, the cookie that replaces it, the Host header
source      one filesystem: points in time, files and their content, from the bucket alone
site        which page or download a request gets
time line   the retained txgs in runs, with the number of changed files

Start at ``command.serve``, then ``site``. ``templates`` makes pages with jinja2, an optional
dependency.
Below: mount (opening a bucket), export (walking a tree), fs.past (open points in time), sync
(history, content of blocks). Above: cli.
"""
