"""Read-only web pages, on loopback, that show a filesystem and its history.

command:       starts the server, and ends it at a signal.
page_server:   a server of ``mount.http_server`` on loopback; its headers protect every reply.
access:        the one-time token in the URL; a cookie and a secret path replace the token.
site:          maps each request to its page or download.
ranges:        replies with a part of a file.
pages/:        one module for each kind of page.
sources/:      the data that the pages show, from the bucket and the statistics of the mount.
downloads/:    a directory as tar or zip, created while it is sent.
pending_pages: slow pages, generated in the background while the browser shows a waiting page.

Start at ``command.serve``, then ``site``. ``templates`` renders pages with jinja2, an optional
dependency.
Below: mount (opening a bucket, HTTP), export (walking a tree), fs.past (open points in time), sync
(history, content of blocks). Above: cli.
"""
