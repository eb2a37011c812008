"""The control socket of a mount, both ends.

protocol     the form of messages: one JSON object per line
server       the side of the mount: accepts connections and answers requests
client       the side of a command; ``plain_call``: the same without an event loop
lines        reads lines of bounded length from a byte stream

Start at ``protocol``. ``mount.control_api`` defines the requests.
Below: errors, limits.
Above: mount.
"""
