"""Ports of the servers that tests start."""

import subprocess
import sys

from tests.programs import ROOT
from tests.servers import free_port

_PRINT_PORTS = "from tests.servers import free_port; print(free_port(), free_port())"


def test_processes_reserve_different_ports_outside_the_range_of_outgoing_connections() -> None:
    """Another process, or a connection, must not use a port before its server has started."""
    ours = [free_port(), free_port()]
    code = f"{_PRINT_PORTS}; input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        theirs = [int(word) for word in other.stdout.readline().split()]
        ours.append(free_port())
        other.communicate(b"\n")

    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low = int(file.read().split()[0])
    assert len({*ours, *theirs}) == 5
    assert all(port < low for port in (*ours, *theirs)) or low < 10_000
