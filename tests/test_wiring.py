"""What cannot be used or reached is refused in words, before anything is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tracks_dagster.reasons.user_rules import NO_RULES
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import LedgerError, SettingsError, StoreUnavailable
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.wiring import build


def test_rules_with_errors_stop_nothing_and_a_mended_file_is_read_at_the_next_use(
    tmp_path: Path,
) -> None:
    rules_file = tmp_path / "rules.yaml"
    rules_file.write_text("- {name: a}\n")
    home = tmp_path / "home"
    app = build(Settings(home=home, store_url=str(home / "store"), rules_file=rules_file))
    rules, problem = app.usable_rules()
    assert (rules, "2 error" in (problem or "")) == (NO_RULES, True)
    rules_file.write_text("- {name: a, reason: storage_io, pattern: lustre}\n")
    rules, problem = app.usable_rules()
    assert (len(rules.rules), problem) == (1, None)


def test_a_policy_with_errors_stops_only_what_asks_for_it(tmp_path: Path) -> None:
    policy_file = tmp_path / "policy.yaml"
    policy_file.write_text("reasons: {hang: {cuont: 3}}\n")
    home = tmp_path / "home"
    app = build(Settings(home=home, store_url=str(home / "store"), policy_file=policy_file))
    with pytest.raises(SettingsError, match="'cuont' is not a key"):
        _ = app.policy
    policy, problem = app.usable_policy()
    assert (policy, "'cuont' is not a key" in (problem or "")) == (DEFAULT_POLICY, True)
    policy_file.write_text("reasons: {hang: {count: 9}}\n")
    assert app.policy.rule(TerminationReason.HANG).count == 9
    assert app.usable_policy() == (app.policy, None)


def test_a_home_of_a_newer_version_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "format.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(SettingsError, match="format 99; this one reads 1"):
        build(Settings(home=tmp_path, store_url=str(tmp_path / "store")))
    assert [path.name for path in tmp_path.iterdir()] == ["format.json"]


def test_a_home_that_is_a_file_or_has_no_readable_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="which is a file"):
        build(Settings(home=tmp_path / "file", store_url=str(tmp_path / "store")))
    (tmp_path / "format.json").write_text("{}")
    with pytest.raises(SettingsError, match="does not say which format"):
        build(Settings(home=tmp_path, store_url=str(tmp_path / "store")))


def test_what_cannot_be_reached_leaves_no_home_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    home = tmp_path / "home"
    with pytest.raises(StoreUnavailable):
        build(Settings(home=home, store_url="s3://bucket/prefix"))
    unreachable = "postgresql+psycopg2://u:p@127.0.0.1:1/d?connect_timeout=2"
    with pytest.raises(LedgerError):
        build(Settings(home=home, store_url=str(home / "store"), postgres_url=unreachable))
    assert not home.exists()


def test_an_application_is_built_on_an_empty_home_and_again_on_the_same(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", store_url=str(tmp_path / "home" / "store"))
    for _ in range(2):
        app = build(settings)
        assert app.tracks.find_run("r-1") is None
        assert app.ledger.query("select run_id from training_runs") == []
    assert json.loads((tmp_path / "home" / "format.json").read_text()) == {"format": 1}
    assert settings.home.stat().st_mode & 0o077 == 0  # though the store in it was made first


@pytest.mark.parametrize(
    ("opens", "heavy"),
    [
        ("build", ("dagster", "torch", "duckdb", "numpy")),
        ("open_tracks", ("dagster", "torch", "duckdb", "numpy", "rich", "yaml")),
        ("home_ledger", ("dagster", "numpy", "tracks_dagster.ledger.effects.tracks")),
    ],
)
def test_opening_loads_nothing_heavy_that_it_does_not_need(
    tmp_path: Path, opens: str, heavy: tuple[str, ...]
) -> None:
    script = (
        "import sys\n"
        "from tracks_dagster.settings import Settings\n"
        "from tracks_dagster import wiring\n"
        f"wiring.{opens}(Settings.from_environment())\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    environment = {"TRACKS_HOME": str(tmp_path / "home"), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
