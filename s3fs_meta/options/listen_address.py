"""The address on which an HTTP server of this program listens.

Owns: the pair of an IP address and a TCP port, and its text. Does not know: sockets, options.
The class is not in ``model``, because it needs ``typing_extensions``: ``rm`` imports ``model``, and
importing ``typing_extensions`` would take a quarter of the CPU time of ``rm``.
"""

import ipaddress
from typing import NamedTuple

from typing_extensions import override


class Address(NamedTuple):
    """An IP address and a TCP port to listen on."""

    host: str
    port: int  # TCP port; 0 selects any free port

    @property
    def is_loopback(self) -> bool:
        """Return whether only programs on this host can connect."""
        return ipaddress.ip_address(self.host).is_loopback

    @override
    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
