"""Nodes as `scontrol show node` and `sinfo -R` list them: real lists, spoilt ones, and later ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.wings.history.worlds import BEGIN, HEADER, ImportWorld, import_world, row
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.recovery.effects.fsck_ledger import check_ledger
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.effects.pool_nodes import pool_names, view_pool
from tracks_dagster.review.effects.explain.run import explain_attempt
from tracks_dagster.review.explain.sections import sections
from tracks_dagster.wings.history.effects.importing import Imported
from tracks_dagster.wings.history.slurm_lines import SlurmLines
from tracks_dagster.wings.history.source import BadRow, Read, SourceNode

GOLDEN = Path(__file__).parent / "golden"
WHY = "NHC: GPU 1 fell off the bus"
TITLES = "REASON               USER      TIMESTAMP           NODELIST"
DRAINED = "NodeName=n1 State=IDLE+DRAIN BootTime=2025-12-31T00:00:00 AllocTRES="
BACK = "NodeName=n1 State=IDLE BootTime=2025-12-31T00:00:00 AllocTRES=\n"


def drained(why: str = WHY, at: str = "2026-01-01T00:30:00", by: str = "root") -> str:
    """Return the line of a node that somebody drained."""
    return f"{DRAINED} Reason={why} [{by}@{at}]\n"


def read(lines: Sequence[str], *, seen_at: datetime = BEGIN) -> list[Read]:
    """Return what is read of lines."""
    return list(SlurmLines(zone=UTC, seen_at=seen_at).read(lines))


def add(world: ImportWorld, *lines: str, hour: float = 1.0) -> Imported:
    """Import a list that was printed so many hours after BEGIN."""
    parse = SlurmLines(zone=UTC, seen_at=BEGIN + timedelta(hours=hour)).read
    return world.add(["".join(lines).rstrip("\n")], parse=parse)


@pytest.fixture
def world(tmp_path: Path) -> ImportWorld:
    """An empty home."""
    return import_world(tmp_path)


def notes(world: ImportWorld) -> dict[str, str | None]:
    """Return what `tracks pool` notes of each node."""
    pool = view_pool(world.tracks, world.ledger, DEFAULT_POLICY.nodes, "imported/slurm")
    return {node.node: node.note for node in pool.nodes}


def where(world: ImportWorld, run_id: str) -> list[str]:
    """Return what `tracks explain` says of the nodes that a run's first attempt ran on."""
    (found,) = (
        each.lines
        for each in sections(explain_attempt(world.tracks, run_id, 1))
        if each.label == "where"
    )
    return [line for line in found if line.startswith("on ") or "took no job" in line]


@pytest.mark.parametrize("name", ["nodes", "reasons"])
def test_a_real_list_names_drained_nodes_with_reason_and_who(name: str) -> None:
    lines = (GOLDEN / f"slurm-22.05.{name}").read_text(encoding="utf-8").splitlines(keepends=True)
    found = {each.node: each for each in read(lines) if isinstance(each, SourceNode)}
    assert len(found) == len(read(lines)) == (2 if name == "nodes" else 1)
    n2 = found["n2"]
    assert (n2.out, n2.reason, n2.set_by) == (("DRAIN",), WHY, "root")
    assert n2.since_at == datetime(2026, 11, 28, 9, 14, 38, tzinfo=UTC)
    assert n2.row == lines[-1].rstrip("\n")
    if name == "nodes":
        assert n2.booted_at == datetime(2026, 11, 27, 18, 2, 45, tzinfo=UTC)
        assert (n2.gres, n2.state, found["n1"].out) == ("gpu:2", "IDLE+DRAIN", ())


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # `sinfo -R` as it is, which cuts the reason; `sinfo -R -l`; without titles; with a `|` in it.
        ([TITLES, "Not responding       slurm     2026-01-01T00:30:00 n[08-10],x"],
         [(n, "Not responding", "slurm") for n in ("n08", "n09", "n10", "x")]),
        (["Thu Jan 01 00:40:00 2026", "REASON USER TIMESTAMP STATE NODELIST",
          "bad  disk root(0) 2026-01-01T00:30:00 drain* n1"], [("n1", "bad disk", "root(0)")]),
        (["bad disk  root  2026-01-01T00:30:00 n1"], [("n1", "bad disk", "root")]),
        (["NODELIST|USER|TIMESTAMP|REASON", "n1|root|Unknown|a | b"], [("n1", "a | b", "root")]),
        (["REASON|USER|TIMESTAMP|NODELIST", "a|b|root|1767227400|n1"], [("n1", "a|b", "root")]),
        (["REASON USER TIMESTAMP NODELIST", "none Unknown Unknown n1"], [("n1", "", "")]),
        # `scontrol show node` without -o, as of 17.11, and of 23.11 with what follows the reason.
        (["NodeName=n1 Arch=x86_64\n", "   State=DOWN* ThreadsPerCore=1\n",
          "   Reason=a=b [c] d [bob@2026-01-01T00:30:00]\n", "\n"], [("n1", "a=b [c] d", "bob")]),
        (["NodeName=n1 State=DOWN+DRAIN+NOT_RESPONDING AllocTRES= Reason=x [a@2026-01-01T00:30:00] "
          "Comment=left [here] Extra=e=1"], [("n1", "x", "a")]),
        (["NodeName=n1 State=DOWN AllocTRES= Reason=by hand Comment=r"], [("n1", "by hand", "")]),
    ],
)  # fmt: skip
def test_lists_of_other_versions_and_forms(
    lines: list[str], expected: list[tuple[str, str, str]]
) -> None:
    found = [each for each in read(lines) if isinstance(each, SourceNode)]
    assert [(each.node, each.reason, each.set_by) for each in found] == expected
    assert all(each.out for each in found)


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        ("NodeName=n1 AllocTRES=", "it has no State"),
        ("NodeName=n1 State=IDLE+DRAIN Reason=x [a@2026-01-01T00:00:00]", "no AllocTRES"),
        ("Kill task failed", "1 of 4|3 of 4"),
        (drained(at="2026-13-01T00:00:00").strip(), "its time is '2026-13-01T00:00:00'"),
        ("NodeName=n[1- State=IDLE AllocTRES=", "is cut"),
        ("NodeName=" + "n" * 70_000, "more than 65536 characters"),
    ],
)
def test_a_spoilt_line_is_named_and_loses_nothing_else(spoilt: str, why: str) -> None:
    """A line of the other list is as good as any: files that were put together are read whole."""
    lines = [drained(), f"{TITLES}\n", f"{spoilt}\n", "x  root  2026-01-01T00:30:00 n3\n"]
    found = read(lines)
    bad = [each for each in found if isinstance(each, BadRow)]
    assert [each.line for each in bad] == [3]
    assert any(each in bad[0].why for each in why.split("|")), bad
    assert [each.node for each in found if isinstance(each, SourceNode)] == ["n1", "n3"]


def test_a_line_that_is_still_being_written_is_named(world: ImportWorld) -> None:
    cut = read([BACK, drained("x").replace("n1", "n2")[:-3]])
    assert [type(each) for each in cut] == [SourceNode, BadRow]


def test_what_is_listed_again_adds_nothing(world: ImportWorld) -> None:
    assert add(world, drained()).nodes_new == 1
    before = world.ledger.dump()
    busy = drained().replace("IDLE", "MIXED")  # the same node with the same drain
    assert [
        add(world, each, hour=hour).nodes_new for each in (drained(), busy) for hour in (1, 2)
    ] == [
        0,
        0,
        0,
        0,
    ]
    assert world.ledger.dump() == before
    Projector(world.store, world.ledger).reindex(forgets_lost=False)
    assert world.ledger.dump() == before


def test_pools_show_known_nodes_and_why_some_take_no_job(world: ImportWorld) -> None:
    add(world, drained(), BACK.replace("n1", "n2"))
    assert pool_names(world.ledger) == ["imported/slurm"]
    expected = f"IDLE+DRAIN since 2026-01-01T00:30:00Z, by root: {WHY} (seen 2026-01-01T01:00:00Z)"
    assert notes(world) == {"n1": expected, "n2": None}
    add(world, f"{TITLES}\n", "NHC: GPU 1 fell off  root      2026-01-01T00:30:00 n1\n", hour=1.5)
    assert notes(world)["n1"] == expected  # the one whose reason is not cut
    add(world, BACK, hour=2)
    assert notes(world)["n1"] is None
    add(world, drained(), hour=3)
    assert "seen 2026-01-01T03" in (notes(world)["n1"] or "")


def test_lists_in_any_order_give_the_same(tmp_path: Path) -> None:
    first, second = import_world(tmp_path, "first"), import_world(tmp_path, "second")
    lists = [(drained(), 1.0), (BACK, 2.0), (drained("again", "2026-01-01T02:30:00"), 3.0)]
    for line, hour in lists:
        add(first, line, hour=hour)
    for line, hour in [*reversed(lists), *lists]:
        add(second, line, hour=hour)
    rows = "select uid, reason, seen_at from imported_nodes order by uid"
    assert first.ledger.query(rows) == second.ledger.query(rows)
    assert notes(first) == notes(second)


@pytest.mark.parametrize(
    ("hour", "hours", "after"),
    [
        (0.0, 1.0, ""),  # drained at 00:30, while it ran
        (0.0, 0.4, ", after the attempt had ended"),
        (0.7, 5.0, ""),  # it ran on a node that was drained before, and seen so at 01:00
        (-3.0, 1.0, None),
        (1.5, 1.0, None),
    ],
)
def test_an_attempt_is_explained_with_nodes_that_took_no_job_then(
    world: ImportWorld, hour: float, hours: float, after: str | None
) -> None:
    world.add([HEADER, row(7, hour=hour, hours=hours, State="NODE_FAIL")])
    add(world, drained())
    lines = where(world, "slurm.7")
    assert lines[0] == "on n1, n2"
    words = f"n1 took no job: IDLE+DRAIN since 2026-01-01T00:30:00Z, by root: {WHY} (seen "
    assert lines[1:] == ([] if after is None else [f"{words}2026-01-01T01:00:00Z){after}"])


def test_the_line_is_in_sql_and_a_secret_in_it_is_not(world: ImportWorld) -> None:
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"
    add(world, drained(f"token={secret}"))
    (found,) = world.ledger.query("select line, is_out, reason from imported_nodes")
    assert found["line"].startswith(DRAINED)
    assert secret not in str(found)


def test_fsck_finds_nothing_wrong_with_imported_nodes(world: ImportWorld) -> None:
    add(world, drained())
    assert world.ledger.query("select count(*) as n from imported_nodes") == [{"n": 1}]
    records = world.tracks.records("histories/slurm")
    cursor = world.ledger.cursor("histories/slurm")
    assert list(check_ledger(world.ledger, "histories/slurm", records, cursor, [])) == []


def test_a_dry_run_writes_nothing(world: ImportWorld) -> None:
    assert world.add([drained().strip()], dry_run=True).nodes_new == 1
    assert list(world.store.list("")) == []
