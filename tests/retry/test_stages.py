"""What a stage may use and needs: the two profiles, a person's file, and what cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracks_dagster.retry import contracts
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.stages import LIGHT, STRICT, StageRule, stage_lines
from tracks_dagster.settings import read_policy_file
from tracks_dagster.track.errors import SettingsError


def test_light_asks_for_nothing_and_strict_for_all() -> None:
    assert not LIGHT.has_gates
    assert STRICT.rule("full").needs == ("tests", "smoke", "canary", "conform")
    assert STRICT.rule("smoke") == StageRule(steps=20, device_s=300.0)
    assert DEFAULT_POLICY.stages == LIGHT


def read(folder: Path, text: str):  # type: ignore[no-untyped-def]
    path = folder / "policy.yaml"
    path.write_text(text)
    return read_policy_file(path).stages


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    assert read(tmp_path, "profile: strict") == STRICT
    assert read_policy_file(tmp_path / "policy.yaml").contracts == contracts.STRICT
    text = """
stages:
  fresh: 2d
  canary: {steps: 50, time: 10min, money: 20, loss_falls: 5%, trend_p_max: 0.01}
  full: {needs: [tests, smoke, canary]}
"""
    policy = read(tmp_path, text)
    assert policy.has_gates
    assert policy.fresh_s == 2 * 86_400
    assert policy.rule("canary") == StageRule(
        steps=50, device_s=600.0, money=20.0, loss_falls_by=0.05, trend_p_max=0.01
    )
    assert policy.rule("smoke") == LIGHT.rule("smoke")
    assert list(stage_lines(policy)) == [
        "profile light: what a stage needs counts for 2 d, for the same code, config, data and "
        "environment",
        "stage kitchen_sink: no limit",
        "stage smoke: 20 steps, 5 min of each device at most",
        "stage canary: 50 steps, 10 min of each device, 20 in money at most; loss falls by 5% "
        "(p < 0.01)",
        "stage full: needs tests, smoke, canary",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profile: strickt", "line 1: profile: 'strickt' is not a profile; did you mean strict?"),
        ("stages: {smok: {steps: 2}}", "did you mean smoke?"),
        ("stages: {full: {needs: [canry]}}", "'canry' is not a gate; did you mean canary?"),
        ("stages: {full: {needs: canary}}", "'canary' is not a list"),
        ("stages:\n  smoke: {steps: 0}", "line 2: stages.smoke: A stage has 1 step or more"),
        ("stages: {smoke: {time: 5}}", "5 has no unit"),
        ("stages: {canary: {loss_falls: 0%}}", "A loss falls by more than 0"),
        ("stages: {canary: {trend_p_max: 0}}", "trend_p_max is a probability between 0 and 1"),
        ("stages: {smoke: {needs: [canary]}}", "smoke cannot need 'canary'; what comes before it"),
        ("stages: {fresh: 0s}", "fresh is more than 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(
    text: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
