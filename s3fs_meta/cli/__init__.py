"""The commands of ``s3fs-meta``: one module each, named as the command.

command    HELP (its text) and a function whose parameters are its arguments and options
options    arguments and options that several commands share
entry      puts the commands together; ``start`` decides whether that is needed at all

Start at ``entry``; ``mkfs`` is a short command, ``fsck`` with ``fsck_run`` a long one. contrib/docs
makes the generated pages and man pages from the same texts (``command_help``).
Below: mount (a running mount and how to reach it), export (files copied out), console (terminal).
Above: nothing.
"""
