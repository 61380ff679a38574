"""The code location loads from the root with Dagster's own two checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("check", ["dagster definitions validate", "dg check defs"])
def test_the_code_location_loads_and_writes_no_home(check: str, tmp_path: Path) -> None:
    program, *arguments = check.split()
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments],
        cwd=ROOT,
        env=os.environ | {"TRACKS_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "home").exists()
