"""Every drill on the embedded default, with the real daemon: what was expected is what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, embedded
from tracks_dagster.attempts.drills import KINDS
from tracks_dagster.review.effects.drill_score import ALERTED

ALL_S_MAX = 4 * COMMAND_S_MAX

pytestmark = [pytest.mark.full, pytest.mark.timeout(ALL_S_MAX)]


def test_every_drill_is_scored_right(tmp_path: Path) -> None:
    command = embedded(tmp_path).start("drill", "--all", "--json", "--home", str(tmp_path / "home"))
    stdout, stderr = command.communicate(timeout=ALL_S_MAX)
    rows = json.loads(stdout)
    assert {row["drill"].partition("@")[0] for row in rows} == set(KINDS), stderr
    wrong = {row["drill"]: row["missing"] for row in rows if not row["right"]}
    assert wrong == {}
    assert command.returncode == 0
    found = {
        row["drill"].partition("@")[0]: row["detection_s"] for row in rows if not row["skipped"]
    }
    print("\ndetected after:", ", ".join(f"{kind} {found[kind]} s" for kind in ALERTED))
    # That a rank is slow is known before it is slowed down, where the machine is busy.
    assert all(found[kind] is not None for kind in ALERTED if "slow" not in kind), found
