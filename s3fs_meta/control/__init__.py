"""The control socket of a mount: server and client.

protocol:    the form of messages: one JSON object per line.
server:      accepts connections in the mount and answers requests.
connections: the open connections of a server; a silent client is disconnected for a new one.
client:      sends a request from a command; ``plain_call`` does so without an event loop.
lines:       reads lines of bounded length from a byte stream.

Start at ``protocol``. ``mount.requests.control_api`` defines the requests.
Below: errors, limits.
Above: mount.
"""
