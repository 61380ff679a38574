"""The last words of `tracks run` on a narrow terminal."""

from __future__ import annotations

import pytest

from tracks_dagster.cli.start.run import print_attempts

NOT_COMPARED = "steps 11 to 15 of an earlier attempt cannot be found in this one's journal"


def test_a_reason_is_never_broken_however_long_the_words_beside_it_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    attempt = {
        "attempt_id": 2,
        "termination_reason": "dependency_mismatch",
        "resumed_from_step": 10,
        "last_step": None,
        "kept_steps": 0,
        "lost_steps": 0,
        "gpu_seconds": 0.0,
        "continuity": {"agree": None, "reason": NOT_COMPARED},
    }
    print_attempts({"attempts": [attempt]})
    lines = capsys.readouterr().out.splitlines()
    assert "dependency_mismatch" in lines[0]
    assert max(map(len, lines)) <= 80
