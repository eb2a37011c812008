"""One module for each kind of page, and the parts that several pages share.

folder_pages:  directories and other entries, and downloads of directories.
file_pages:    content of files; ``preview`` shows its beginning.
history_pages: the time line, versions, comparisons; ``time_plot`` draws the time line.
find_page:     results of a search by name.
space_page:    used space; ``tree_map`` places the largest folders.
mount_page:    statistics of the mount.
wanted:        the arguments of a page in its URL.

Start at ``folder_pages``.
Below: sources, downloads, templates.
Above: site.
"""
