"""`tracks pool` and `tracks drain`: a person looks at nodes, empties one, and lets it back."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
from tests.pools import CLUSTER, POOL, PoolHistory, clustered
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import MOVE
from tracks_dagster.track.names import pool_track
from tracks_dagster.track.track import log_key
from tracks_dagster.wiring import App, build


@pytest.fixture
def app(home: Path) -> App:
    """A home with a run on n-1 and n-2, and one that is named like a node of another."""
    app = build(Settings.from_environment())
    begin = app.now()
    for history in (
        clustered("r-1", begin=begin),
        clustered("n-9", begin=begin, nodes="n-3"),
        clustered("r-2", begin=begin, nodes="n-9"),
        clustered("r-3", begin=begin, nodes="n-1").end("node_failure", blamed_node="n-1"),
    ):
        history.write_to(app.store)
    app.projector.scan()
    return app


def nodes(call: Call, *arguments: str) -> dict[str, dict[str, object]]:
    result = call("pool", *arguments, "--json")
    assert result.exit_code == 0, result.output
    [pool] = json.loads(result.stdout)
    assert pool["pool"] == POOL
    return {node["node"]: node for node in pool["nodes"]}


def test_a_node_is_quarantined_shown_with_its_reason_and_released(app: App, call: Call) -> None:
    result = call("pool", "quarantine", POOL, "n-1", "--for", "36h", "--why", "a loud fan")
    assert result.exit_code == 0, result.output
    assert "Node n-1 of pool kubernetes/h100 is in quarantine until" in result.stdout
    shown = nodes(call)["n-1"]
    assert shown["why"] == "a loud fan"
    assert shown["quarantined_until"] is not None
    assert nodes(call, POOL) == nodes(call, "show", POOL)
    table = call("pool", POOL).stdout
    assert "a loud fan" in table
    assert "per 100 h" in table
    assert call("pool", "release", POOL, "n-1", "--why", "a new fan").exit_code == 0
    released = nodes(call)["n-1"]
    assert released["quarantined_until"] is None
    assert str(released["note"]).endswith("a new fan")
    again = call("pool", "release", POOL, "n-1", "--why", "once more", "--json")
    assert json.loads(again.stdout)["seq"] is None


def sinfo(monkeypatch: pytest.MonkeyPatch, home: Path, script: str) -> None:
    """Set gangs on Slurm up, where `sinfo` is this script."""
    programs = home.parent / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "sinfo").write_text(f"#!/bin/sh\n{script}\n")
    (programs / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    home.mkdir(exist_ok=True)
    (home / "slurm.yaml").write_text("python: /shared/python\n")


def test_nodes_that_slurm_drained_are_shown_with_its_reason_and_by_whom(
    app: App, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = (
        "NODELIST|USER|TIMESTAMP|REASON",
        "n-[7-8]|root|2026-11-28T09:14:38|NHC: GPU 1 | fell off",
        "n-9|ann|2026-11-28T09:14:38|a new fan",
    )
    sinfo(monkeypatch, home, r"printf '%s\n' " + " ".join(f"'{line}'" for line in listed))
    shown = call("pool", "--json")
    assert shown.exit_code == 0, shown.output
    ours, theirs = json.loads(shown.stdout)
    assert (ours["pool"], theirs["pool"]) == (POOL, "slurm")
    assert {node["node"]: node["note"] for node in theirs["nodes"]} == {
        "n-7": "slurm drained it, by root: NHC: GPU 1 | fell off",
        "n-8": "slurm drained it, by root: NHC: GPU 1 | fell off",
        "n-9": "slurm drained it, by ann: a new fan",
    }
    assert "by ann: a new fan" in " ".join(call("pool").stdout.split())
    assert set(nodes(call, POOL)) == {"n-1"}  # of another place


def test_a_slurm_that_does_not_answer_hides_no_pool(
    app: App, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinfo(monkeypatch, home, "echo 'Unable to contact slurm controller' >&2; exit 1")
    shown = call("pool", "--json")
    assert shown.exit_code == 1
    assert [pool["pool"] for pool in json.loads(shown.stdout)] == [POOL]
    assert "slurm: Cannot run sinfo now: Unable to contact slurm controller" in shown.stderr


def test_what_cannot_be_decided_is_reported(app: App, call: Call, home: Path) -> None:
    before = files_of(home)
    for arguments, says in (
        (("quarantine", "spot", "n-1", "--why", "x"), "There is no pool 'spot'"),
        (("quarantine", POOL, "n 1", "--why", "x"), "cannot name a node"),
        (("quarantine", POOL, "n-1", "--for", "2", "--why", "x"), "--for: '2' has no unit"),
        (("quarantine", POOL, "n-1", "--for", "800d", "--why", "x"), "a year"),
        (("release", POOL, "n-1", "--why", "x"), "No record of pool"),
        (("spot",), "There is no pool 'spot'; attempts have been opened into: kubernetes/h100"),
    ):
        result = call("pool", *arguments)
        assert result.exit_code == 2, result.output
        assert says in result.stderr
    assert files_of(home) == before


def test_a_pool_whose_track_is_damaged_hides_no_other(app: App, call: Call) -> None:
    assert call("pool", "quarantine", POOL, "n-1", "--why", "a loud fan").exit_code == 0
    spot = clustered("r-9", begin=app.now(), nodes="s-1", compute=replace(CLUSTER, pool="spot"))
    spot.end("completed").write_to(app.store)
    app.projector.scan()
    app.store.put(log_key(pool_track(POOL), 0), b"no record")
    result = call("pool", "--json")
    assert result.exit_code == 1
    assert [pool["pool"] for pool in json.loads(result.stdout)] == ["spot"]
    assert "kubernetes/h100: Record 0" in result.stderr
    assert "tracks fsck" in result.stderr


def test_drain_empties_a_node_and_says_who_leaves(app: App, call: Call) -> None:
    result = call("drain", "n-2", "--why", "a new kernel", "--for", "2h")
    assert result.exit_code == 0, result.output
    assert "Node n-2 is in quarantine in kubernetes/h100 until" in result.stdout
    assert "Asked to save and resume elsewhere: r-1." in result.stdout
    assert [stop.body.mode for stop in app.tracks.run("r-1").stops] == [MOVE]
    assert "Ending already: r-1." in call("drain", "n-2", "--why", "a new kernel").stdout


def test_drain_of_a_run_keeps_its_meaning(app: App, call: Call) -> None:
    result = call("drain", "r-1", "--why", "make room")
    assert result.exit_code == 0, result.output
    assert "the run then waits for `tracks retry`" in result.stdout
    assert [stop.body.mode for stop in app.tracks.run("r-1").stops] == ["drain"]
    assert app.tracks.find_pool(POOL) is None


def test_a_node_named_like_a_run_is_asked_about(app: App, call: Call) -> None:
    result = call("drain", "n-9", "--why", "a new kernel")
    assert result.exit_code == 2
    assert "is a training run, and a node of pool kubernetes/h100" in result.stderr
    assert app.tracks.run("n-9").stops == app.tracks.run("r-2").stops == ()
    assert call("drain", "n-9", "--node", "--why", "a new kernel").exit_code == 0
    assert [stop.body.mode for stop in app.tracks.run("r-2").stops] == [MOVE]
    assert app.tracks.run("n-9").stops == ()
    assert call("drain", "n-9", "--run", "--why", "make room").exit_code == 0
    assert [stop.body.mode for stop in app.tracks.run("n-9").stops] == ["drain"]


def test_what_is_neither_a_run_nor_a_node_is_reported(app: App, call: Call) -> None:
    for arguments, says in (
        (("gpu-77.internal",), "neither a training run nor a node"),
        (("n-2", "--run"), "There is no training run"),
        (("r-1", "--run", "--pool", POOL), "--pool is of a node"),
        (("r-1", "--for", "long"), "--for: 'long'"),
    ):
        result = call("drain", *arguments, "--why", "x")
        assert result.exit_code == 2
        assert says in result.stderr


def test_the_devices_of_this_machine_are_shown_with_who_has_them(
    app: App, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_DEVICES", "2")
    pool = app.devices
    assert pool is not None
    PoolHistory(pool.here.pool, begin=app.now()).lease(
        "r-1/a01", "pretended:1", store=app.store.url
    ).write_to(app.store)
    shown = json.loads(call("pool", "devices", "--json").stdout)
    assert [(each["device"], each["held_by"]) for each in shown["devices"]] == [
        ("pretended:0", []),
        ("pretended:1", ["r-1/a01"]),
    ]
    assert "r-1/a01" in call("pool", "devices").stdout


def test_devices_of_a_home_that_is_gone_are_given_back_by_a_person(
    app: App, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_DEVICES", "2")
    assert app.devices is not None
    pool, gone = app.devices.here.pool, str(home.parent / "gone" / "store")
    history = PoolHistory(pool, begin=app.now()).lease("r-1/a01", "pretended:1", store=gone)
    history.confirm(0).write_to(app.store)
    assert f"tracks pool free {pool} r-1/a01" in call("pool", "devices").stderr
    for arguments, words in (
        ((pool, "r-2/a01"), "r-2/a01 has no devices; those that have: r-1/a01"),
        (("local/other", "r-1/a01"), f"which is {pool}"),
    ):
        refused = call("pool", "free", *arguments, "--why", "x")
        assert refused.exit_code == 2
        assert words in refused.stderr
    result = call("pool", "free", pool, "r-1/a01", "--why", "its home was removed")
    assert "The devices of r-1/a01 may be given out: record 2." in result.stdout
    shown = json.loads(call("pool", "devices", "--json").stdout)
    assert [each["held_by"] for each in shown["devices"]] == [[], []]


def test_a_device_of_this_machine_is_taken_out_alone_and_shown_with_the_reason(
    app: App, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_DEVICES", "2")
    assert app.devices is not None
    pool, before = app.devices.here.pool, files_of(home)
    refused = call("pool", "quarantine", pool, "pretended:7", "--why", "x")
    assert refused.exit_code == 2
    assert "names no device of this machine; it has: pretended:0, pretended:1" in refused.stderr
    assert files_of(home) == before
    result = call("pool", "quarantine", pool, "pretended:1", "--for", "36h", "--why", "a loud fan")
    assert result.exit_code == 0, result.output
    assert "Device pretended:1 is given to nobody until" in result.stdout
    table = call("pool", "devices").stdout
    assert all(len(line) <= 80 for line in table.splitlines())
    assert "in quarantine until" in table
    _, shown = json.loads(call("pool", "devices", "--json").stdout)["devices"]
    assert (shown["device"], shown["quarantined_until"] is not None) == ("pretended:1", True)
    assert nodes_of(call, pool) == ["pretended:1"]
    assert call("pool", "release", pool, "pretended:1", "--why", "a new fan").exit_code == 0
    again = call("pool", "release", pool, "pretended:1", "--why", "once more", "--json")
    assert json.loads(again.stdout)["seq"] is None
    assert "a loud fan" not in call("pool", "devices").stdout


def nodes_of(call: Call, pool: str) -> list[str]:
    """Return what `tracks pool NAME` names."""
    [shown] = json.loads(call("pool", pool, "--json").stdout)
    return [node["node"] for node in shown["nodes"]]
