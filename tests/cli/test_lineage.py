"""`tracks lineage`, `blast`, `quarantine` and `release` over the story: one run, three attempts, a
promotion."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from dagster import AssetMaterialization, DagsterInstance

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story

CANDIDATE = f"promotion:{RUN_ID}/best"


def snapshot_of(story: Story) -> str:
    return f"snapshot:{story.snapshot.dataset}@{story.snapshot.snapshot_id[:10]}"


def test_what_came_of_a_snapshot_is_reported_with_what_is_in_use_first(
    story: Story, call: Call
) -> None:
    result = call("blast", snapshot_of(story))
    assert result.exit_code == 1  # something promoted descends from it
    lines = result.stdout.splitlines()
    assert (
        "3 attempts in 1 run and 4 checkpoints descend from it; 1 alias in use now rests on it."
        in lines[0]
    )
    assert lines[1].startswith("1 promotion (1 in use):")
    assert CANDIDATE in lines[2]
    assert "attempt:gpt-story/a02 (2026-01-31T02:01:17Z, samples 480 to 720)" in result.stdout
    assert (
        "samples 0 to 480, and perhaps more" in result.stdout
    )  # three steps after its last commit


def test_what_came_of_a_checkpoint_leaves_out_what_was_saved_before_it(
    story: Story, call: Call
) -> None:
    value = json.loads(call("blast", f"checkpoint:{RUN_ID}@20", "--json").stdout)
    hit = value["hit"]
    assert [each["thing"] for each in hit["checkpoints"]["newest"]] == [
        f"checkpoint:{RUN_ID}/a03@40",
        f"checkpoint:{RUN_ID}/a02@30",
    ]
    assert [each["thing"] for each in hit["spared"]["newest"]] == [
        f"checkpoint:{RUN_ID}/a01@10",
    ]
    assert hit["attempts"]["count"] == 2


def test_what_dagster_made_of_a_promoted_checkpoint_is_named_and_where_that_ends(
    story: Story, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    manifest = story.history.state.promotions[-1].body.checkpoint.manifest_sha256
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        tags = {"dagster/input_data_version/gpt/model": manifest}
        instance.report_runless_asset_event(AssetMaterialization("scores", tags=tags))
    found = call("blast", snapshot_of(story))
    assert f"in Dagster ({tmp_path}): 1 materialization downstream" in found.stdout
    assert "  scores (20" in found.stdout
    assert "Here it ends" in found.stdout
    value = json.loads(call("blast", snapshot_of(story), "--json").stdout)
    assert [use["asset"] for use in value["dagster"]["uses"]] == ["scores"]
    (tmp_path / "dagster.yaml").write_text("storage: nonsense")
    assert f"The Dagster of {tmp_path} cannot be read" in call("blast", snapshot_of(story)).stdout


def test_an_asset_of_dagster_leads_back_to_the_snapshots_that_its_model_was_trained_on(
    story: Story, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    manifest = story.history.state.promotions[-1].body.checkpoint.manifest_sha256
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        tags = {
            "dagster/input_data_version/gpt/model": manifest,
            "dagster/input_data_version/theirs": "f" * 64,
        }
        instance.report_runless_asset_event(AssetMaterialization("scores", tags=tags))
    found = call("lineage", "asset:scores").stdout
    assert "rests on 1 model or snapshot." in found.splitlines()[0]
    assert f"{RUN_ID}/a03@40" in found.splitlines()[1]
    assert snapshot_of(story).partition(":")[2] in found
    [rests_on] = json.loads(call("lineage", "asset:scores", "--json").stdout)["rests_on"]
    assert rests_on == json.loads(call("lineage", f"checkpoint:{manifest}", "--json").stdout)
    refused = call("lineage", "asset:none")
    assert refused.exit_code == 2
    assert f"{tmp_path} has no materialization of none" in refused.stderr


def test_as_of_a_time_only_what_was_recorded_by_then_counts(story: Story, call: Call) -> None:
    first = next(c for c in story.history.state.checkpoints if c.ref.step == 10)
    value = json.loads(
        call("blast", snapshot_of(story), "--json", "--as-of", first.at.isoformat()).stdout
    )
    assert value["is_promoted"] is False
    assert value["hit"]["checkpoints"]["count"] == 1
    assert value["hit"]["attempts"]["newest"][0]["detail"] == "samples 0 to 240, and perhaps more"


def test_lineage_tells_the_chain_attempt_by_attempt(story: Story, call: Call) -> None:
    result = call("lineage", CANDIDATE)
    assert result.exit_code == 0
    chain = [line for line in result.stdout.splitlines() if "└" in line]
    assert ["a03" in chain[0], "a02" in chain[1], "a01" in chain[2]] == [True] * 3
    assert "from step 20, up to its checkpoint of step 30" in chain[1]
    assert "from step 0, up to its checkpoint of step 20" in chain[2]


def test_as_of_a_time_before_it_a_thing_rests_on_nothing_yet(story: Story, call: Call) -> None:
    time = "2026-01-31T02:02:30"
    asked = ("lineage", CANDIDATE, "--as-of", time)
    value = json.loads(call(*asked, "--json").stdout)
    result, as_of = value["rests_on"], f"{time}.000000Z"
    assert value["as_of"] == as_of
    assert f" as of {as_of}\n" in call(*asked).stdout
    assert (result["chain"], "not there yet" in result["missing"]) == ([], True)
    assert json.loads(call("lineage", CANDIDATE, "--json").stdout)["rests_on"]["chain"]


def test_a_quarantine_is_shown_by_what_descends_and_undone_by_a_release(
    story: Story, call: Call
) -> None:
    source = f"attempt:{RUN_ID}/a02"
    result = call("quarantine", source, "--why", "its node corrupted bits")
    assert result.exit_code == 0
    assert f"{source} is in quarantine: record 0." in result.stdout
    assert "as it was already" in call("quarantine", source, "--why", "again").stdout
    assert f"! it descends from {source}" in call("lineage", CANDIDATE).stdout
    assert f"{source} is released: record 1." in call("release", source, "--why", "ok").stdout
    assert "was not in quarantine" in call("release", source, "--why", "ok").stdout
    assert "descends from" not in call("lineage", CANDIDATE).stdout


def test_the_list_of_checkpoints_and_the_status_of_a_run_show_a_quarantine(
    story: Story, call: Call
) -> None:
    source = f"checkpoint:{RUN_ID}/a01@20"
    assert call("quarantine", source, "--why", "it is bad").exit_code == 0
    rows = json.loads(call("checkpoints", "list", RUN_ID, "--json").stdout)
    by_step = {row["step"]: row for row in rows}
    assert [step for step, row in by_step.items() if row["quarantined_by"] == [source]] == [
        20,
        30,
        40,
    ]
    assert [step for step, row in by_step.items() if row["is_resume_target"]] == [10]
    assert f"no start from it: {source} is in quarantine" in by_step[40]["why"]
    assert "a resume starts from it" not in by_step[40]["why"]
    for command in (("checkpoints", "list", RUN_ID), ("status", RUN_ID)):
        assert f"tracks release {source}" in call(*command).stdout
    assert call("release", source, "--why", "looked at").exit_code == 0
    for command in (("checkpoints", "list", RUN_ID), ("status", RUN_ID)):
        assert "quarantine" not in call(*command).stdout


def test_as_of_a_time_before_a_quarantine_nobody_knew_of_it(story: Story, call: Call) -> None:
    before = story.history.at.isoformat()
    sources = (f"attempt:{RUN_ID}/a02", snapshot_of(story))
    for source in sources:
        assert call("quarantine", source, "--why", "it is bad").exit_code == 0
        assert "in quarantine since" in call("blast", source).stdout
        assert "in quarantine" not in call("blast", source, "--as-of", before).stdout
    assert "descends from" in call("lineage", CANDIDATE).stdout
    assert "descends from" not in call("lineage", CANDIDATE, "--as-of", before).stdout
    for source in sources:  # and as of a time when it held it does, though it is released since
        held = datetime.now(UTC).isoformat()
        assert call("release", source, "--why", "looked at").exit_code == 0
        assert "in quarantine since" in call("blast", source, "--as-of", held).stdout
        assert "in quarantine" not in call("blast", source).stdout


def test_a_thing_is_found_without_its_kind_and_a_snapshot_without_its_dataset(
    story: Story, call: Call
) -> None:
    """`blast snapshot:ID` named a command that led nowhere; `lineage RUN@STEP` was refused."""
    snapshot_id = story.snapshot.snapshot_id
    same = {
        "gpt-story@40": "checkpoint:gpt-story@40",
        "gpt-story/a03@40": "checkpoint:gpt-story@40",
        "gpt-story/a02": "attempt:gpt-story/a02",
        "gpt-story": "run:gpt-story",
        f"snapshot:{snapshot_id[:12]}": f"snapshot:aws-docs@{snapshot_id[:12]}",
        f"aws-docs@{snapshot_id[:12]}": f"snapshot:aws-docs@{snapshot_id[:12]}",
        snapshot_id: f"snapshot:aws-docs@{snapshot_id[:12]}",
        story.history.state.checkpoints[-1].ref.manifest_sha256: "checkpoint:gpt-story@40",
    }
    for short, whole in same.items():
        for command in ("lineage", "blast"):
            if command == "blast" and whole.startswith("run:"):
                continue
            found, wanted = call(command, short), call(command, whole)
            assert found.stdout == wanted.stdout != "", (command, short, found.stderr)
    listed = call("snapshots", "list", snapshot_id[:12])
    assert (listed.exit_code, "There is no dataset" in listed.stderr) == (2, True)


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        ("nonsense", "There is no training run 'nonsense'"),
        ("nonsense", "write the kind too: snapshot:DATASET@ID"),
        ("gpt-story@25", "the nearest are: 10, 20, 30, 40"),
        ("snapshot:ffffff", "No dataset has a snapshot whose id begins with 'ffffff'"),
        ("attempt:gpt-stroy/a01", "did you mean gpt-story?"),
        (
            "attempt:gpt-story/a09",
            "gpt-story has no attempt 9; it has gpt-story/a01 to gpt-story/a03",
        ),
        ("checkpoint:gpt-story@25", "the nearest are: 10, 20, 30, 40"),
        ("checkpoint:ffffffffff", "No checkpoint has a manifest with the sha256 'ffffffffff'"),
        ("snapshot:aws-doc@ffffff", "did you mean aws-docs"),
        ("snapshot:aws-docs@ffffff", "There is no snapshot 'ffffff' of dataset aws-docs"),
        ("node:node-11", "did you mean node-1?"),
        ("node:zz", "they ran on: node-1"),
        ("code:c0ffef", "did you mean c0ffee?"),
        ("code:000000", "the newest runs have c0ffee"),
    ],
)
def test_what_does_not_exist_is_answered_with_the_nearest(
    story: Story, call: Call, thing: str, says: str
) -> None:
    for command in (("lineage",), ("blast",), ("quarantine", "--why", "x")):
        result = call(command[0], thing, *command[1:])
        assert result.exit_code == 2, (result.stdout, result.stderr)
        assert says in result.stderr


def test_only_sources_have_a_blast_radius_or_a_quarantine(story: Story, call: Call) -> None:
    for command in (("blast", CANDIDATE), ("quarantine", CANDIDATE, "--why", "x")):
        result = call(*command)
        assert result.exit_code == 2
        assert f"tracks lineage {CANDIDATE}" in result.stderr


def test_a_bad_time_is_wrong_use(story: Story, call: Call) -> None:
    result = call("blast", "node:node-1", "--as-of", "yesterday")
    assert (result.exit_code, "2026-01-31T02:00" in result.stderr) == (2, True)


def test_a_node_a_commit_and_a_version_reach_what_ran_there(story: Story, call: Call) -> None:
    for source in ("node:node-1", "code:c0ff", "code:0"):
        value = json.loads(call("blast", source, "--json").stdout)
        assert (value["hit"]["attempts"]["count"], value["is_promoted"]) == (3, True)


def test_a_promotion_that_another_one_replaced_is_said_to_be(story: Story, call: Call) -> None:
    again = call("promote", f"{RUN_ID}@40", "--alias", "best", "--why", "once more")
    assert again.exit_code == 0, again.stderr
    assert "to best: once more. heldout-loss" in again.stdout  # two sentences, and a stop between
    result = call("blast", f"checkpoint:{RUN_ID}@20").stdout
    lines = result.splitlines()
    at = lines.index("2 promotions (1 in use, 1 replaced since):")
    assert "in use, step 40" in lines[at + 1]  # what an alias names now comes first
    assert "replaced since, step 40" in lines[at + 2]
