"""The control socket of a mount, both ends.

protocol     the messages: one JSON object per line
server       the mount's end: accepts connections and answers requests
client       the command's end; ``plain_call``: the same without an event loop
lines        reads lines of bounded length from a byte stream

Start at ``protocol``. ``mount.control_api`` defines the requests.
Below: errors, limits.
Above: mount.
"""
