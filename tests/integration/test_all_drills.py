"""Every drill on the embedded default, with the real daemon: what was expected is what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, embedded
from tracks_dagster.attempts.drills import KINDS
from tracks_dagster.wings.lab.effects.drill_score import ALERTED

ALL_S_MAX = 4 * COMMAND_S_MAX
PARTS = 3

pytestmark = [pytest.mark.full, pytest.mark.timeout(ALL_S_MAX)]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_drill_is_scored_right(tmp_path: Path, part: int) -> None:
    kinds = sorted(KINDS)[part::PARTS]
    chosen = [f"--only={kind}" for kind in kinds]
    command = embedded(tmp_path).start("drill", *chosen, "--json", "--home", str(tmp_path / "home"))
    stdout, stderr = command.communicate(timeout=ALL_S_MAX)
    rows = json.loads(stdout)
    assert sorted(row["drill"].partition("@")[0] for row in rows) == kinds, stderr
    wrong = {row["drill"]: row["missing"] for row in rows if not row["right"]}
    assert wrong == {}
    assert command.returncode == 0
    played = {row["drill"].partition("@")[0]: row for row in rows if not row["skipped"]}
    found = {kind: played[kind]["detection_s"] for kind in ALERTED if kind in played}
    print("\ndetected after:", ", ".join(f"{kind} {found[kind]} s" for kind in found))
    # That a rank is slow is known before it is slowed down, where the machine is busy.
    assert all(found[kind] is not None for kind in found if "slow" not in kind), found
