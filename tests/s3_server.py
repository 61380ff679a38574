"""moto's S3 server as a process of its own: prints its address, ends when its stdin is closed.

In the tests' own process its threads would meet the tests' warning filters and environment.
"""

from __future__ import annotations

import sys

from moto.server import ThreadedMotoServer


def main() -> None:
    """Serve until whoever started this closes the pipe, or dies."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
