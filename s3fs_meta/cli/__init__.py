"""The commands of ``s3fs-meta``, one module per command.

command:   a module with HELP (the text) and a function; its parameters are the command's options.
options:   arguments and options that several commands share.
entry:     builds the command-line parser; ``start`` runs without it where possible.

Start at ``entry``; ``mkfs`` is a short command, ``fsck`` with ``fsck_run`` a long one. contrib/docs
generates the reference pages and man pages from the texts of the commands (``command_help``).
Below: mount (mounts and requests to them), export (copying files out), console (terminal).
Above: nothing.
"""
