"""What a gang would compute with is foreseen without torch, and is what the gang then says."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
import torch

import tracks_dagster
from tracks_dagster.track.bodies import AttemptPlaced
from tracks_dagster.track.body_json import to_json
from tracks_dagster.training.environment import describe_software, digest_of
from tracks_dagster.training.software import describe_code, foresee_software, list_packages

PACKAGE = Path(tracks_dagster.__file__).parent


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_foreseen_is_what_the_gang_says(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        described = describe_software()
    finally:
        torch.set_num_threads(before)
    assert foresee_software({"OMP_NUM_THREADS": str(threads)}) == described


def test_what_is_foreseen_reads_the_same_after_its_way_through_a_record() -> None:
    placed = AttemptPlaced(
        launch_id="l",
        world_size=1,
        ranks=(),
        image=None,
        environment=describe_software(),
        environment_sha256="",
    )
    recorded = to_json(placed)["environment"]
    assert digest_of(recorded) == digest_of(describe_software())


def test_it_is_foreseen_without_importing_torch() -> None:
    script = (
        "import sys; from tracks_dagster.training.software import foresee_software;"
        "print(foresee_software({})['torch'], 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [torch.__version__, "False", "False"]


def test_the_version_of_torch_is_the_one_that_it_says_itself_not_that_of_its_wheel(
    tmp_path: Path,
) -> None:
    (tmp_path / "torch").mkdir()  # as PyPI has it: the wheel does not say which CUDA it is for
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.14.1+cu130'\ncuda = '13.0'\n")
    (tmp_path / "torch-2.14.1.dist-info").mkdir()
    (tmp_path / "torch-2.14.1.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.14.1\n")
    script = (
        "from tracks_dagster.training.software import foresee_software;"
        "found = foresee_software({}); print(found['torch'], found['cuda'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE.parent}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["2.14.1+cu130", "13.0"]


def test_of_stored_code_its_own_digest_is_recorded_and_nothing_of_this_checkout() -> None:
    assert describe_code("runs/r/trainer/12ab.tar") == {"stored_code_sha256": "12ab"}
    assert describe_code("family") == {}
    assert "code_sha256" not in describe_software()


def test_every_package_is_listed_once_with_the_version_that_an_import_takes() -> None:
    first: dict[str, str] = {}
    for each in distributions():
        first.setdefault(each.name.lower().replace("_", "-"), each.version)
    assert dict(line.split("==") for line in list_packages().splitlines()) == first
