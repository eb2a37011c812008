"""The control socket of a mount, both ends.

protocol     the messages: one JSON object per line
server       the end of the mount
client       the end of a command; ``plain_call``: the same without an event loop
lines        lines from a byte stream, bounded

Start at ``protocol``. Which requests exist is ``mount.control_api``.
Below: errors, limits.
Above: mount.
"""
