"""Dagster's servers import nothing that only colours a terminal; anyone who wants it still gets it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "served",
    [
        "tracks_dagster.wings.embedded.edge.paced_sensors",
        "dagster_webserver.app",
        "tracks_dagster.definitions",
    ],
)
def test_a_server_imports_no_colours_and_its_projects_may(served: str) -> None:
    script = (
        "import sys\n"
        "from tracks_dagster.wings.embedded.edge.plain_imports import COLOURING, import_plain\n"
        "import_plain()\n"
        f"import {served}\n"
        "print([name for name in COLOURING if name in sys.modules])\n"
        "import pygments, rich\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
