"""What a wheel of the checkout carries beside its modules."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]
SOURCES = ("tracks_dagster", "pyproject.toml", "LICENSE")
BUILD_S_MAX = 250


def test_a_wheel_has_its_licence_its_types_and_every_page_and_query(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            tmp_path,
            tree,
        ],
        check=True,
        capture_output=True,
        timeout=BUILD_S_MAX,
    )
    [wheel] = tmp_path.glob("*.whl")
    carried = set(ZipFile(wheel).namelist())
    beside = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tracks_dagster").rglob("*")
        if path.suffix in (".sql", ".html", ".css", ".js", ".typed")
    }
    assert len(beside) > 20
    runbooks = {path.name for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert {
        f"tracks_dagster/wings/watch/health/runbooks/{name}" for name in runbooks
    } <= carried  # by a link
    examples = (ROOT / "tracks_dagster" / "examples").rglob("*.*")
    assert {str(each.relative_to(ROOT)) for each in examples if each.suffix != ".pyc"} <= carried
    assert beside <= carried
    assert any(name.endswith("/licenses/LICENSE") for name in carried)
    assert {name.split("/")[0].split("-")[0] for name in carried} == {"tracks_dagster"}
