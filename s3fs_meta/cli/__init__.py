"""The commands of ``s3fs-meta``, one module per command.

command:   a module with HELP (its text) and a function, whose parameters are the options.
options:   arguments and options that several commands share.
entry:     builds the command-line parser; ``start`` runs simple commands without the parser.

Start at ``entry``; ``mkfs`` is a short command, ``fsck`` with ``fsck_run`` a long one. Code in
contrib/docs generates the reference and man pages from the texts of commands (``command_help``).
Below: mount (mounts and requests to them), export (copying files out), console (terminal).
Above: nothing.
"""
