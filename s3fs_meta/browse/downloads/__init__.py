"""Past directories as archives.

archive:    the entries of an archive, and a buffer that combines small pieces.
tar_stream: a directory as a tar archive.
zip_stream: a directory as a zip archive.

An archive is created while it is sent, so it needs no disk space.

Start at ``archive``.
Below: sources (files and their content), export (walking a tree).
Above: pages.
"""
