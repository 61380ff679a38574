"""moto's S3 server as a process of its own: prints its address, ends when its stdin is closed.

In the tests' own process its threads would meet the tests' warning filters and environment.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer


def put_one_at_a_time() -> None:
    """Make a conditional put atomic, as S3 has it: moto looks for the object, and then writes."""
    lock, put = threading.Lock(), S3Response.put_object

    def put_alone(response: S3Response) -> Any:
        with lock:
            return put(response)

    S3Response.put_object = put_alone


def main() -> None:
    """Serve until the one who started this closes the pipe, or dies."""
    put_one_at_a_time()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
