"""The terminal: messages, progress, passphrases, exit statuses, log lines.

boundary:            the outermost error handler: one line and an exit status for each error.
exits:               the exit status of each error class.
ui:                  notices, progress and questions of a long command.
output_stream:       standard output, with errors that name it.
output:              results on standard output, as JSON or a table.
printable:           text without characters that control a terminal.
passphrase_source:   reads a passphrase from a file, the environment or the terminal.
secret_environment:  removes the passphrase from the environment of the process.
standard_streams:    replaces standard streams that the caller has closed.
child_signal:        restores SIGCHLD, so that child processes can be waited for.
logs:                writes log lines to the journal, a terminal or the log file of a daemon.

Start at ``boundary.run``.
Below: sync (type of a passphrase), errors.
Above: mount, export, cli.
"""
