"""Whatever is flipped, edited or removed behind the records' back: fsck has a sentence for it.

One way to tamper for each kind of finding, and what fsck must then say: what it means, what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.bodies import BEGIN
from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.fsck_worlds import CODE, World, make_world
from tests.histories import History
from tests.stories import RUN_ID, Story, step_line
from tests.wings.history.worlds import HEADER, READ_SACCT, row
from tracks_dagster.ledger import track_states
from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.user_rules import NO_RULES
from tracks_dagster.recovery.effects.fsck_tracks import FindingKind
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.names import (
    MUTES_TRACK,
    QUARANTINES_TRACK,
    VIEWS_TRACK,
    AttemptRef,
    code_track,
    project_track,
    run_track,
    study_track,
)
from tracks_dagster.track.records import Draft, Kind, canonical_json, format_time, seal, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.track import log_key, study_code_key
from tracks_dagster.wings.history.effects.files import LinesOfFile
from tracks_dagster.wings.history.effects.importing import import_history

JOURNAL = journal_prefix(AttemptRef(RUN_ID, 2), "launch-2", 0)


@pytest.fixture
def world(story: Story, store: FakeObjectStore, tmp_path: Path) -> World:
    """A store with one of everything, and its ledger."""
    return make_world(story, store, tmp_path / "ledger.db")


def _last(history: History) -> str:
    return log_key(history.name, len(history.records) - 1)


def _rewrite_story(world: World, *, without: int) -> None:
    """Write a track again that chains, without its last records, as somebody would who hides them."""
    history = world.story.history
    for seq in range(len(history.records) - without, len(history.records)):
        world.store.delete(log_key(history.name, seq))


def _break_a_rule(world: World) -> None:
    """Append a record that chains and that the state forbids: the end of an attempt that is over."""
    history = world.story.history
    ended = next(r for r in history.records if r.kind is Kind.ATTEMPT_ENDED)
    draft = Draft(uid="8" * 32, kind=ended.kind, body=ended.body, attempt_id=1)
    at = history.at + timedelta(seconds=1)
    data = seal(draft, seq=len(history.records), at=at, prev_sha256=history.records[-1].sha256)
    world.store.put(log_key(history.name, len(history.records)), data)


def _append_newer(world: World, *, kind: str = "attempt_paused", count: int = 1) -> str:
    """Append records that chain, as a newer version may write them; return the key of the first."""
    history = world.story.history
    prev_sha256, first = history.records[-1].sha256, len(history.records)
    for seq in range(first, first + count):
        stored = {"seq": seq, "uid": f"{seq:032d}", "kind": kind, "body": {"why": "lunch"}}
        data = canonical_json(
            {**stored, "at": "2026-03-01T12:00:00.000000Z", "prev_sha256": prev_sha256}
        )
        world.store.put(log_key(history.name, seq), data)
        prev_sha256 = sha256_hex(data)
    return log_key(history.name, first)


def _drop_a_segment(world: World) -> None:
    later = json.dumps(step_line(31, at=format_time(BEGIN))).encode() + b"\n"
    data = world.store.objects[f"{JOURNAL}{0:012d}.jsonl"]
    world.store.put(f"{JOURNAL}{len(data) + 100:012d}.jsonl", later)


def _drop_the_branch_point(world: World) -> None:
    source = world.story.history.name
    for key in [key for key in world.store.objects if key.startswith(f"{source}/log/")]:
        world.store.delete(key)


def _lose_a_chunk(world: World) -> None:
    """Import a job of Slurm, and lose what it was."""
    project = Projector(world.store, world.ledger).project
    tracks = Tracks(world.store, now=FakeClock(BEGIN), new_uid=SequentialUids(), project=project)
    jobs = world.ledger_file.parent / "jobs"
    jobs.write_text(f"{HEADER}\n{row(7)}\n")
    given = LinesOfFile(system="slurm", path=jobs, parse=READ_SACCT)
    import_history(tracks, given, "slurm", rules=NO_RULES, by="tests")
    world.store.delete(world.key("histories/slurm/chunks/"))


def _drop_a_snapshot(world: World) -> None:
    world.store.delete(log_key("datasets/aws-docs", 1))


Tamper = Callable[[World], object]
K = FindingKind

# kind → how somebody tampers, words of what it means, words of what to do
TAMPERED: dict[FindingKind, tuple[Tamper, str, str]] = {
    K.RECORD_MISSING: (
        lambda w: w.store.delete(log_key(run_track(RUN_ID), 4)),
        "Record 4 of runs/gpt-story is gone",
        "do not retry the run",
    ),
    K.RECORD_BROKEN: (
        lambda w: w.edit(log_key(run_track(RUN_ID), 1), b"tests", b"TESTS"),
        "Records are never edited, so this is damage or tampering",
        "the records before it still hold",
    ),
    K.RECORD_NEWER: (
        lambda w: _append_newer(w, count=3),
        "is of kind 'attempt_paused', which this version does not know: a newer one wrote it, on "
        "2026-03-01T12:00:00Z",
        "Install the version of the machine that wrote it",
    ),
    K.RECORD_EDITED: (
        lambda w: w.edit(_last(w.story.history), b"old", b"new"),
        "is not the one that the ledger took in",
        "find out who wrote there",
    ),
    K.TRACK_CUT: (
        lambda w: _rewrite_story(w, without=2),
        "records at its end were deleted or damaged",
        "`tracks reindex --forget-lost` makes the ledger agree",
    ),
    K.RULES_BROKEN: (_break_a_rule, "a writer broke the rules", "do not retry the run"),
    K.CHECKPOINT_CORRUPT: (
        lambda w: w.store.put(w.key("attempts/2/", "/chunks/"), b"other weights"),
        "The checkpoint of step 30, attempt 2, of run gpt-story cannot be trusted",
        "Do not promote it",
    ),
    K.DELETION_LIST_WRONG: (
        lambda w: w.store.put(w.key("/deletions/"), b"[1]"),
        "The list of chunks that go with step 10",
        "tracks checkpoints gc gpt-story",
    ),
    K.EVIDENCE_WRONG: (
        lambda w: w.edit(w.key("attempts/2/evidence/"), b"gpu_oom", b"preempt"),
        "The evidence for the end of attempt 2 of run gpt-story has sha256",
        "Restore the object from a backup",
    ),
    K.PLACES_WRONG: (
        lambda w: w.store.put(w.key("/places/"), b"[[]]"),
        "The list of where each rank of attempt 1 of run large ran",
        "if the devices or processes matter",
    ),
    K.TRAINER_WRONG: (
        lambda w: w.store.put(w.key("/trainer/"), b"import os"),
        "The stored code of run b-1 has sha256",
        "the code of your own checkout",
    ),
    K.CODE_DIFF_WRONG: (
        lambda w: w.store.put(w.key("runs/large/code/"), b"+c"),
        "What the checkout of run large had beside commit",
        "stored whole beside it",
    ),
    K.PACKAGES_WRONG: (
        lambda w: w.store.delete(w.key("/packages/")),
        "The list of all packages that run gpt-story had from attempt 1 on is missing",
        "nothing reads it to train",
    ),
    K.CHECKS_WRONG: (
        lambda w: w.store.put(w.key("datasets/own/checks/"), b"import os"),
        "of own passed has sha256",
        "tracks snapshots add own PATH",
    ),
    K.EVAL_FILE_WRONG: (
        lambda w: w.store.put(w.key("/artifacts/a.csv"), b"2"),
        "a.csv, which eval heldout-loss@40, number 2, of run gpt-story left, has sha256",
        "tracks eval gpt-story@40 --seed N",
    ),
    K.MEDIA_WRONG: (
        lambda w: w.store.put(w.key("/media/parts/"), b"other"),
        "What attempt 1 of run gpt-story logged cannot be shown: sample of step 40 has sha256",
        "nothing is decided by it",
    ),
    K.HISTORY_WRONG: (
        _lose_a_chunk,
        "A chunk of slurm is missing. What it has of runs slurm.7 to slurm.7, attempts: 1, is not",
        "import the same source again with another --name",
    ),
    K.ARTIFACT_WRONG: (
        lambda w: w.store.put(w.key("/artifacts/parts/"), b"other"),
        "The artifact best of run gpt-story cannot be had: plot.png has sha256",
        "leave the artifact again under its name",
    ),
    K.SNAPSHOT_WRONG: (
        lambda w: w.store.put(w.key("datasets/aws-docs/shards/"), b"other rows"),
        "runs on that snapshot cannot load it",
        "make the snapshot again from the same source",
    ),
    K.EVAL_RESULT_WRONG: (
        lambda w: w.edit(w.key("/evals/", "result.json"), b"3.25", b"1.25"),
        "has other metrics than the record",
        "promotion go by the record",
    ),
    K.JOURNAL_GAP: (_drop_a_segment, "The 100 bytes of this journal before it are gone", "backup"),
    K.JOURNAL_EDITED: (
        lambda w: w.edit(f"{JOURNAL}{0:012d}.jsonl", b'"step": 25', b'"step": <5'),
        "it was edited or damaged after it was written",
        "find out who wrote there",
    ),
    K.JOURNAL_SHORT: (
        lambda w: w.store.delete(f"{JOURNAL}{0:012d}.jsonl"),
        "holds no step, and its record names step 30",
        "Nothing, where the machine is gone",
    ),
    K.SOURCE_UNKNOWN: (
        _drop_the_branch_point,
        "Run b-1 branched from gpt-story@40, attempt 3, and runs/gpt-story has no record",
        "nothing shows what the branch began with",
    ),
    K.SNAPSHOT_UNKNOWN: (
        _drop_a_snapshot,
        "datasets/aws-docs has no record of it",
        "without it nobody knows what the run saw",
    ),
    K.LEDGER_LACKS_TRACK: (
        lambda w: w.sql("delete from track_cursors where track = 'runs/b-1'"),
        "The ledger does not know runs/b-1",
        "tracks reindex",
    ),
    K.LEDGER_ROW_WRONG: (
        lambda w: w.sql("update texts set author = 'nobody' where seq = 0"),
        "has author 'nobody'",
        "tracks reindex",
    ),
    K.LEDGER_REMEMBERS_MORE: (
        lambda w: w.store.delete(log_key(run_track(RUN_ID), 4)),
        "the ledger remembers it up to record",
        "Until then `tracks reindex` leaves these rows as they are",
    ),
    K.LEDGER_TRACK_LOST: (
        _drop_the_branch_point,
        "The ledger knows runs/gpt-story, and the store has no such track",
        "Check TRACKS_STORE",
    ),
}
IN_ARCHIVES = {  # test_fsck_archive tampers with those
    K.ARCHIVE_UNREADABLE,
    K.ARCHIVE_NEWER,
    K.MEMBER_MISSING,
    K.MEMBER_CHANGED,
    K.MEMBER_ADDED,
}
HARMS_MORE = {
    *(K.RECORD_MISSING, K.RECORD_BROKEN, K.TRACK_CUT, K.RULES_BROKEN),  # what follows is lost too
    *(K.SOURCE_UNKNOWN, K.SNAPSHOT_UNKNOWN, K.LEDGER_TRACK_LOST, K.LEDGER_REMEMBERS_MORE),
}
UNREADABLE = {K.LEDGER_UNREADABLE}  # tests/cli/test_fsck_ledger.py
UNFORESEEN = {
    K.RECORD_WITHOUT_ROWS,
    K.NOT_CHECKED,
}  # no such record is known; a test below plays one


def test_every_kind_of_finding_has_its_way_to_tamper() -> None:
    assert TAMPERED.keys() | IN_ARCHIVES | UNREADABLE | UNFORESEEN == set(FindingKind)


def test_a_world_with_one_of_everything_is_sound(world: World) -> None:
    assert world.findings() == []


@pytest.mark.parametrize("kind", TAMPERED)
def test_what_was_tampered_with_is_named_with_its_meaning_and_what_to_do(
    kind: FindingKind, world: World
) -> None:
    tamper, meaning, to_do = TAMPERED[kind]
    tamper(world)
    found = world.findings()
    answer = [finding for finding in found if finding.kind is kind]
    assert answer, [finding.kind for finding in found]
    assert any(meaning in finding.meaning and to_do in finding.to_do for finding in answer), answer
    for finding in found:
        assert finding.where
        assert finding.meaning.endswith(".")
        assert finding.to_do.endswith(".")
    if kind not in HARMS_MORE:
        assert {finding.kind for finding in found} == {kind}


@pytest.mark.parametrize(
    ("tamper", "meaning"),
    [
        (lambda w, key: w.store.delete(key), "is missing, of small/a, small/b;"),
        (
            lambda w, key: w.store.put(key, b"aB"),
            "has other bytes than the manifest names, of small/b;",
        ),
        (
            lambda w, key: w.store.put(key, b"a"),
            "has other bytes than the manifest names, of small/b;",
        ),
    ],
)
def test_a_bad_shard_of_files_is_named_with_the_files_that_it_holds(
    world: World, tamper: Callable[[World, str], None], meaning: str
) -> None:
    key = next(k for k, data in world.store.objects.items() if "own/shards/" in k and data == b"ab")
    tamper(world, key)
    [finding] = world.findings()
    assert (finding.kind, finding.where) == (K.SNAPSHOT_WRONG, key)
    assert meaning in finding.meaning


@pytest.mark.parametrize(
    ("track", "table"),
    [
        ("pools", "node_strikes"),
        (QUARANTINES_TRACK, "source_quarantines"),
        (MUTES_TRACK, "mutes"),
        (code_track(CODE), "certificates"),
        (project_track("gpt"), "project_versions"),
        (study_track("lr"), "studies"),
    ],
)
def test_the_tracks_that_are_of_no_run_are_checked_as_runs_are(
    track: str, table: str, world: World
) -> None:
    key = world.key("pools/", "/log/") if track == "pools" else log_key(track, 0)
    world.sql(f"delete from {table}")
    assert [(f.kind, f.where) for f in world.findings()] == [
        (K.LEDGER_ROW_WRONG, f"ledger, {table}")
    ]
    Projector(world.store, world.ledger).reindex()
    word = b"scope" if "codes/" in key else b"intent" if "studies/" in key else b"why"
    world.edit(key, b'"%s":"' % word, b'"%s":"not ' % word)
    assert K.RECORD_EDITED in {f.kind for f in world.findings()}


def test_the_track_of_saved_views_is_checked_though_it_has_no_table(world: World) -> None:
    world.edit(log_key(VIEWS_TRACK, 0), b"lr<0.1", b"lr<0.2")
    assert K.RECORD_EDITED in {f.kind for f in world.findings()}


def test_the_files_of_a_stored_project_are_compared_with_its_record(world: World) -> None:
    key = world.key("projects/", "/code/")
    world.store.objects[key] = b"others"
    [finding] = world.findings()
    assert (finding.kind, finding.where) == (K.TRAINER_WRONG, key)
    assert "Version 1 of the project gpt cannot be trained" in finding.meaning


def test_the_code_of_a_study_is_read_though_no_trial_has_begun(world: World) -> None:
    key = study_code_key("lr", sha256_hex(b"pass"))
    world.store.put(key, b"other")
    [finding] = world.findings()
    assert (finding.kind, finding.where) == (K.TRAINER_WRONG, key)
    assert "The stored code of the study lr" in finding.meaning


def test_every_table_of_the_ledger_is_compared_with_the_tracks() -> None:
    tracks = (
        *("runs/r-1", "datasets/d", "pools/p", "codes/c", "projects/tiny", "studies/s"),
        *(QUARANTINES_TRACK, MUTES_TRACK),
    )
    tables = {each.table: each.key for track in tracks for each in track_states.owned_rows(track)}
    keys = {
        table.name: tuple(column.name for column in table.primary_key)
        for table in metadata.tables.values()
    }
    del keys["track_cursors"]  # compared with the records themselves
    del keys["imported_nodes"]  # made of what a history's records name: `check_histories`
    assert tables == keys


def test_the_ref_of_a_branch_is_looked_up_by_its_manifest(world: World) -> None:
    forged = CheckpointRef(RUN_ID, 3, 40, "elsewhere/", "0" * 64)
    History("b-2").declare(branched_from=forged, snapshot=world.story.snapshot).write_to(
        world.store
    )
    Projector(world.store, world.ledger).scan()
    assert [f.kind for f in world.findings()] == [K.SOURCE_UNKNOWN]


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b'{"kind": "step"}', b'{"kind": "step", "step": []}']
)
def test_a_journal_with_a_line_of_any_kind_is_read_to_its_end(line: bytes, world: World) -> None:
    key = f"{JOURNAL}{0:012d}.jsonl"
    world.store.put(key, line + b"\n" + world.store.objects[key])
    assert {finding.kind for finding in world.findings()} <= {K.JOURNAL_EDITED}
    result = world.key("/evals/", "result.json")
    world.store.put(result, line)
    assert K.EVAL_RESULT_WRONG in {finding.kind for finding in world.findings()}


def _delete(world: World, seq: int) -> None:
    world.store.delete(log_key(run_track(RUN_ID), seq))


def _edit(world: World, seq: int) -> None:
    world.edit(log_key(run_track(RUN_ID), seq), b'"uid":"', b'"uid":"x')


@pytest.mark.parametrize("seq", [0, 4, 12])
@pytest.mark.parametrize("harm", [_delete, _edit])
def test_the_ledgers_rows_of_a_broken_track_are_one_finding_that_warns_of_a_reindex(
    harm: Callable[[World, int], None], seq: int, world: World
) -> None:
    harm(world, seq)
    found = [f for f in world.findings() if f.kind is not K.SOURCE_UNKNOWN]  # the branch's
    assert [f.kind for f in found] == [
        K.RECORD_MISSING if harm is _delete else K.RECORD_BROKEN,
        K.LEDGER_REMEMBERS_MORE,
    ]
    assert f"record {len(world.story.history.records) - 1}" in found[1].meaning
    assert not any("The track holds" in f.meaning for f in found)


def test_a_reindex_mends_what_is_wrong_and_keeps_what_the_ledger_remembers_of_a_broken_track(
    world: World,
) -> None:
    world.sql("update texts set author = 'nobody' where track = 'runs/b-1' and seq = 0")
    _delete(world, 4)
    wanted = f"select * from training_attempts where run_id = '{RUN_ID}'"
    remembered = world.ledger.query(wanted)
    done = Projector(world.store, world.ledger).reindex()
    assert [problem.partition(":")[0] for problem in done.problems] == [f"runs/{RUN_ID}"]
    assert "stays as it is" in done.problems[0]
    assert world.ledger.query(wanted) == remembered
    assert K.LEDGER_ROW_WRONG not in {f.kind for f in world.findings()}
    Projector(world.store, world.ledger).reindex(forgets_lost=True)
    assert len(world.ledger.query(wanted)) < len(remembered)


def test_a_record_of_which_no_rows_can_be_made_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("a value that nobody thought of")

    monkeypatch.setattr(track_states, "_rows", fails)
    found = world.findings()
    assert {f.kind for f in found} == {K.RECORD_WITHOUT_ROWS}
    assert "KeyError: 'a value that nobody thought of'" in found[0].meaning


def test_times_and_nothing_are_written_as_people_write_them(world: World) -> None:
    world.sql("update attempt_facts set closed_us = null where run_id = 'gpt-story'")
    world.sql(
        "update training_runs set declared_at = '2026-02-03T04:05:06.000000Z' where run_id = 'large'"
    )
    answer = " ".join(finding.meaning for finding in world.findings())
    assert "has closed_us nothing; the records give 2026-01-31T" in answer
    assert "has declared_at 2026-02-03T04:05:06.000000Z" in answer
    assert "datetime" not in answer
    assert "None" not in answer


def test_a_record_that_cannot_be_read_says_once_that_those_before_it_hold(world: World) -> None:
    key = log_key(run_track(RUN_ID), 4)
    world.store.put(key, world.store.objects[key][:-5])
    [broken] = [f for f in world.findings() if f.kind is K.RECORD_BROKEN]
    assert f"{broken.meaning} {broken.to_do}".count("still hold") == 1


def test_a_time_in_the_ledger_that_is_not_one_is_reported_beside_all_other_findings(
    world: World,
) -> None:
    world.sql("update training_runs set declared_at = 'soon' where run_id = 'large'")
    world.store.put(world.key("attempts/2/", "/chunks/"), b"other weights")
    found = world.findings()
    assert [f.kind for f in found] == [K.CHECKPOINT_CORRUPT, K.LEDGER_UNREADABLE]
    assert "declared_at" in found[1].meaning
    assert "'soon'" in found[1].meaning


@pytest.mark.parametrize("table", ["track_cursors", "checkpoints"])
def test_a_ledger_that_cannot_be_read_any_more_loses_no_finding_of_the_store(
    table: str, world: World
) -> None:
    world.store.put(world.key("attempts/2/", "/chunks/"), b"other weights")
    world.drop(table)
    found = {finding.kind for finding in world.findings()}
    assert found >= {K.LEDGER_UNREADABLE, K.CHECKPOINT_CORRUPT}


def test_a_number_that_is_not_a_time_is_shown_as_it_is(world: World) -> None:
    world.sql(f"update attempt_facts set closed_us = {10**18} where run_id = 'gpt-story'")
    assert any(f"has closed_us {10**18}" in finding.meaning for finding in world.findings())


def test_what_a_newer_version_wrote_is_neither_damage_nor_a_reason_to_restore(world: World) -> None:
    key = _append_newer(world, count=3)
    [newer] = world.findings()
    assert (newer.kind, newer.where) == (K.RECORD_NEWER, key)
    assert "neither damage nor tampering" in newer.meaning
    assert "restore nothing" in newer.to_do


@pytest.mark.parametrize("behind", [1, 2])
def test_a_broken_chain_behind_a_newer_record_is_reported_as_one(behind: int, world: World) -> None:
    _append_newer(world, count=4)
    seq = len(world.story.history.records) + behind
    world.edit(log_key(run_track(RUN_ID), seq), b"lunch", b"break")
    found = {f.kind: f for f in world.findings()}
    assert found[K.RECORD_BROKEN].where == log_key(run_track(RUN_ID), seq + 1)
    assert K.RECORD_NEWER in found


def test_an_edited_kind_is_an_edited_record_and_no_newer_version(world: World) -> None:
    world.edit(log_key(run_track(RUN_ID), 4), b'"kind":"', b'"kind":"x')
    found = [f.kind for f in world.findings() if f.kind is not K.SOURCE_UNKNOWN]
    assert found == [K.RECORD_BROKEN, K.LEDGER_REMEMBERS_MORE]


def test_an_edited_kind_of_the_last_record_is_found_by_the_ledgers_memory(world: World) -> None:
    world.edit(_last(world.story.history), b'"kind":"', b'"kind":"x')
    found = [f.kind for f in world.findings()]
    assert found == [K.RECORD_EDITED, K.LEDGER_REMEMBERS_MORE]


def test_a_reason_of_a_newer_version_breaks_no_rule(world: World) -> None:
    history = (
        History("r-new")
        .declare(snapshot=world.story.snapshot)
        .open()
        .place(packages_sha256=None)
        .end("unknown")
    )
    history.write_to(world.store)
    last = _last(history)
    world.edit(last, b'"reason":"unknown"', b'"reason":"bored"')
    found = {f.kind: f for f in world.findings()}
    assert found.keys() == {K.RECORD_NEWER, K.LEDGER_LACKS_TRACK}
    assert found[K.RECORD_NEWER].where == last
    assert "names the reason 'bored'" in found[K.RECORD_NEWER].meaning


@pytest.mark.parametrize(
    ("old", "new", "meaning"),
    [
        (b'"size_bytes":', b'"size":', "1 of what its list names is of a kind"),
        (b'"kind":"', b'"kind":"x', "1 of what its list names is of a kind"),
        (b'"items":[', b'"others":[', "1 of what its list names is of a kind"),
        (b"{", b"", "the list of it is not JSON"),
    ],
)
def test_what_a_list_of_logged_things_leaves_out_is_found(
    world: World, old: bytes, new: bytes, meaning: str
) -> None:
    key = world.key("/media.json")
    world.edit(key, old, new)
    [found] = [f for f in world.findings() if f.kind is K.MEDIA_WRONG]
    assert found.where == key
    assert meaning in found.meaning


def test_rows_that_a_newer_version_took_in_are_left_to_it(world: World) -> None:
    _append_newer(world)
    seq = len(world.story.history.records)
    data = world.store.objects[log_key(run_track(RUN_ID), seq)]
    world.sql(
        f"update track_cursors set seq = {seq}, sha256 = '{sha256_hex(data)}' "
        f"where track = 'runs/{RUN_ID}'"
    )
    world.sql(f"update training_runs set owner = 'nobody' where run_id = '{RUN_ID}'")
    assert [f.kind for f in world.findings()] == [K.RECORD_NEWER]


def test_what_trains_on_a_dataset_that_a_newer_version_writes_is_not_a_finding(
    world: World,
) -> None:
    key = world.key("datasets/aws-docs/log/", "1.json")
    world.edit(key, b'"kind":"', b'"kind":"new_')
    world.sql("delete from track_cursors where track = 'datasets/aws-docs'")
    assert {f.kind for f in world.findings()} == {K.RECORD_NEWER, K.LEDGER_LACKS_TRACK}
