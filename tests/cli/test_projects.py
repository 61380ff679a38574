"""`tracks projects`, called as by a person."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.cli.conftest import Call


def test_a_project_is_added_listed_and_removed(call: Call, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    refused = call("projects", "add", str(folder))
    assert (refused.exit_code, home.exists()) == (2, False)
    (folder / "train.py").write_text("")
    (folder / "tracks.yaml").write_text(
        "name: tiny\nentry: train.py\ndataset: d\nclass: urgent\n"
        "schedule: {cron: 0 3 * * 1, only_if: snapshot differs}\n"
    )
    added = call("projects", "add", str(folder)).stdout
    assert "Added tiny. It trains at 0 3 * * 1 (UTC), if the newest snapshot differs." in added
    assert "`tracks up` sees it within ten seconds." in added
    listed = json.loads(call("projects", "list", "--json").stdout)
    assert [each["name"] for each in listed] == ["gpt", "tabular", "tiny"]
    assert (listed[2]["folder"], listed[2]["problem"]) == (str(folder), None)
    assert [each["class"] for each in listed] == [None, None, "urgent"]
    shutil.rmtree(folder)
    broken = call("projects", "list")
    assert broken.exit_code == 1
    assert "does not exist any more" in broken.stderr
    assert "Removed tiny" in call("projects", "remove", "tiny").stdout
    assert call("projects", "list").exit_code == 0
