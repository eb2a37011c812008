"""Start a MinIO cluster, print its addresses and credentials, and stop it on Ctrl-C."""

import argparse
import signal
import sys
from pathlib import Path

from contrib.cluster.minio import NODES, Cluster, ClusterError, find_program

ACCESS_KEY = "s3fs-meta"
SECRET_KEY = "only-for-trying"


def main() -> int:
    """Run the cluster until a signal arrives; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m contrib.cluster", description=__doc__)
    parser.add_argument("folder", type=Path, help="directory for the data of all nodes")
    parser.add_argument("--nodes", type=int, default=NODES, help=f"default: {NODES}")
    arguments = parser.parse_args()
    program = find_program()
    if program is None:
        print("MinIO is not installed: go install github.com/minio/minio@latest", file=sys.stderr)
        return 1
    cluster = Cluster(program, arguments.folder.resolve(), ACCESS_KEY, SECRET_KEY, arguments.nodes)
    try:
        with cluster:
            print(f"export AWS_ACCESS_KEY_ID={ACCESS_KEY} AWS_SECRET_ACCESS_KEY={SECRET_KEY}")
            for node, process in enumerate(cluster.processes):
                assert process is not None, "all nodes are up"
                print(f"# node {node}: process {process.pid} at {cluster.endpoint_url(node)}")
            print(f"s3fs-meta mkfs --endpoint-url {cluster.endpoint_url(0)} s3://BUCKET/home")
            sys.stdout.flush()
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    except ClusterError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    sys.exit(main())
