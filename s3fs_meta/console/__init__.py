"""The terminal: messages, progress, passphrases, exit statuses, log lines.

boundary             the outermost error handler: one line and an exit status for each error
exits                the exit status of each error
ui                   notices, progress and questions of a long command
output               results on standard output: JSON or a table
passphrase_source    a file, the environment or the terminal; ``secret_environment`` clears it
logs                 the journal, a terminal or the log file of a daemon

Start at ``boundary.run``.
Below: sync (what a passphrase opens), errors.
Above: mount, export, cli.
"""
