"""The client of ``forked.serving``.

Arguments: the socket address, then the words of the command.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(sys.argv[1])
    request = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(server, [request], [0, 1, 2])
    sys.exit(int(server.recv(8)))
