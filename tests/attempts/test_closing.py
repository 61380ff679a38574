"""An attempt is closed once, with all that is known of its end, no matter who comes first."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.bodies import BEGIN, placed
from tests.deciders import closed
from tests.evidences import leave_word
from tests.fakes import FakeGangs, FakeObjectStore
from tests.histories import History
from tests.stories import RUN_ID, Story
from tracks_dagster.attempts.effects.closing import OTHER_RANKS_S_MAX, is_over
from tracks_dagster.attempts.effects.evidence import EndProblem, read_places
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.evidence import CANNOT_START, Condition, Evidence, RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase
from tracks_dagster.track.bodies import RankPlace, TimeSpent
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.placement import compacted, places_key
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, Kind, canonical_json, format_time, sha256_hex
from tracks_dagster.track.states.run_state import AttemptState

STARTED, ENDED = format_time(BEGIN), format_time(BEGIN + timedelta(seconds=30))
LOST = "RuntimeError: Connection closed by peer [10.0.0.2]:4021"
DISRUPTED = Condition(
    type="DisruptionTarget",
    reason="PreemptionByScheduler",
    message="taken",
    at=STARTED,
    source="kubernetes",
)


def test_the_record_names_the_evidence_that_is_stored(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().place().restore().commit(10).write_to(store)
    write_journal(store, history, last_step=12)
    gone(gangs, end(0, signal=9), end(1, signal=9), conditions=(DISRUPTED,))
    attempt = close(tracks, gangs)
    assert attempt.ended is not None
    assert attempt.reason is TerminationReason.PREEMPTED
    assert (attempt.ended.last_step, attempt.ended.cursor_to) == (12, 24 * 12)
    assert attempt.ended.device_seconds == 60.0  # 2 ranks × 30 s
    assert attempt.ended.first_line_ran
    assert attempt.ended.spent == TimeSpent(steps_s=20.0, data_s=4.0)
    assert attempt.ended.last_stepped_at == ENDED
    data = store.objects[attempt.ended.evidence_key]
    assert sha256_hex(data) == attempt.ended.evidence_sha256
    evidence = from_json(Evidence, json.loads(data))
    assert evidence.conditions == (DISRUPTED,)
    assert [rank.signal for rank in evidence.ranks] == [9, 9]


def test_the_record_has_the_newest_value_of_every_metric_with_its_step(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    """A script reports some of them at few steps only; what is not a number was ignored."""
    history.supervise().place().write_to(store)
    step = {"kind": "step", "t": ENDED, "step_s": 0.5, "data_s": 0.1}
    lines: list[dict[str, Json]] = [
        {**step, "step": 10, "loss": 2.0, "metrics": {"acc": 0.5, "lr": 0.1}},
        {"kind": "evaluated", "t": ENDED, "step": 10, "metrics": {"val_loss": 2.5, "loss": 2.4}},
        {**step, "step": 11, "loss": 1.5, "metrics": {"lr": 0.2, "x" * 65: 1.0}},
        {**step, "step": 12, "loss": "nan", "metrics": {}},
    ]
    key = f"runs/r-1/attempts/1/{history.launch_id}/journal/rank-0/{0:012d}.jsonl"
    store.put(key, b"".join(canonical_json(line) + b"\n" for line in lines))
    gone(gangs, end(0, exit_code=1), end(1, exit_code=1))
    ended = close(tracks, gangs).ended
    assert ended is not None
    values = {"acc": 0.5, "evaluated/loss": 2.4, "loss": 1.5, "lr": 0.2, "val_loss": 2.5}
    steps = {"acc": 10, "evaluated/loss": 10, "loss": 11, "lr": 11, "val_loss": 10}
    assert (ended.metrics, ended.metric_steps) == (values, steps)


def test_names_of_metrics_never_make_the_record_too_large(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().place().write_to(store)
    metrics = {f"{n:02d}" + "é" * 60: 1.0 for n in range(20)}
    line = {"kind": "step", "t": ENDED, "step": 1, "loss": 2.0, "metrics": metrics}
    key = f"runs/r-1/attempts/1/{history.launch_id}/journal/rank-0/{0:012d}.jsonl"
    store.put(key, canonical_json(line) + b"\n")
    gone(gangs, end(0, exit_code=1))
    ended = close(tracks, gangs).ended
    assert ended is not None
    assert ended.metrics is not None
    assert "loss" in ended.metrics
    assert len(ended.metrics) < 8  # 768 bytes of names with 124 or more


@pytest.mark.parametrize(
    ("allocated", "devices", "device_seconds"),
    [
        ("billing=8,cpu=16,gres/gpu:a100=8,gres/gpu=8,mem=64G,node=2", 8, 240.0),  # 8 × 30 s
        ("cpu=16,gres/gpu=8,node=2", 8, 240.0),
        ("cpu=16,mem=64G,node=2", None, 60.0),  # 2 ranks × 30 s: no devices are named
        (None, None, 60.0),
    ],
    ids=["typed", "untyped", "without", "not said"],
)
def test_devices_are_counted_from_what_the_place_allocated(
    tracks: Tracks,
    gangs: FakeGangs,
    store: FakeObjectStore,
    history: History,
    allocated: str | None,
    devices: int | None,
    device_seconds: float,
) -> None:
    history.supervise().place().write_to(store)
    gone(gangs, end(0, signal=9), end(1, signal=9))
    report = gangs.reports["r-1", 1]
    gangs.reports["r-1", 1] = replace(report, allocated=allocated)
    ended = close(tracks, gangs).ended
    assert ended is not None
    assert (ended.devices, ended.device_seconds) == (devices, device_seconds)
    evidence = from_json(Evidence, json.loads(store.objects[ended.evidence_key]))
    assert evidence.allocated == allocated


def test_the_state_in_which_slurm_left_the_job_is_evidence(
    tracks: Tracks, gangs: FakeGangs, store: FakeObjectStore, history: History
) -> None:
    history.supervise().place().write_to(store)
    gone(gangs, end(0, signal=9))
    report = gangs.reports["r-1", 1]
    gangs.reports["r-1", 1] = replace(report, slurm_state="PREEMPTED")
    attempt = close(tracks, gangs)
    assert attempt.reason == "preempted"
    assert attempt.ended is not None
    assert "Slurm state: PREEMPTED" in attempt.ended.lines


def test_the_step_at_which_the_numbers_went_wrong_is_the_earliest_that_a_rank_saw(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().place().write_to(store)
    exits = f"{history.launch_id}/exit"
    leave_word(store, f"{exits}/rank-0.json", "nan_loss", onset_step=12)
    leave_word(store, f"{exits}/rank-1.json", "nan_loss", rank=1, onset_step=11)
    gone(gangs, end(0, exit_code=1), end(1, exit_code=1))
    attempt = close(tracks, gangs)
    assert attempt.ended is not None
    assert (attempt.ended.reason, attempt.ended.onset_step) == ("nan_loss", 11)


def test_an_onset_is_given_for_numbers_only_and_a_node_where_a_rank_failed(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().place().write_to(store)
    gone(gangs, end(0, exit_code=0), end(1, signal=11))
    attempt = close(tracks, gangs)
    assert attempt.ended is not None
    assert attempt.ended.onset_step is None
    assert attempt.placed is not None
    assert attempt.ended.blamed_node == attempt.placed.ranks[1].node


@pytest.mark.parametrize(
    ("ends", "blamed"),
    [
        ([RankEnd(rank=0, exit_code=1, log_tail=LOST)], None),  # rank 1 went away with its node
        ([RankEnd(rank=0, exit_code=1, log_tail=LOST), RankEnd(rank=1)], None),
        ([RankEnd(rank=0, signal=9)], None),  # what was left of the gang was killed
        ([RankEnd(rank=0, signal=15), RankEnd(rank=1, exit_code=1, log_tail=LOST)], None),
        ([RankEnd(rank=0, signal=9), RankEnd(rank=1, exit_code=1, log_tail=LOST)], 0),
        ([RankEnd(rank=0, signal=9, oom_killed=True)], 0),
        ([RankEnd(rank=0, exit_code=1, log_tail="RuntimeError: mine")], 0),
    ],
    ids=["one survivor", "end not seen", "killed", "all followed", "first", "memory", "its own"],
)
def test_a_survivor_of_another_rank_gives_its_node_no_strike(
    tracks: Tracks,
    store: FakeObjectStore,
    gangs: FakeGangs,
    history: History,
    ends: list[RankEnd],
    blamed: int | None,
) -> None:
    history.supervise().place().write_to(store)
    gone(gangs, *ends)
    attempt = close(tracks, gangs)
    assert attempt.ended is not None
    assert attempt.placed is not None
    node = None if blamed is None else attempt.placed.ranks[blamed].node
    assert attempt.ended.blamed_node == node


def test_what_the_machine_reported_is_kept_cleaned_whatever_the_verdict(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().place().write_to(store)
    gangs.reports["r-1", 1] = GangReport(
        phase=GangPhase.GONE,
        ranks=(end(0, exit_code=1),),
        cgroup={"not_readable": "no memory cgroup is to be seen from here"},
        kernel_lines=("kernel log not readable: /dev/kmsg: Operation not permitted",),
        beats=(Beat(rank=0, phase=Phase.SAVING, step=7),),
    )
    attempt = close(tracks, gangs)
    assert attempt.ended is not None
    found = from_json(Evidence, json.loads(store.objects[attempt.ended.evidence_key]))
    assert found.cgroup["not_readable"] == "no memory cgroup is to be seen from here"
    assert "not readable" in found.kernel_lines[0]
    assert found.beats == {"0": "saves in step 7"}
    assert attempt.reason is TerminationReason.UNKNOWN


def test_what_lives_is_killed_and_its_journals_are_shipped_before_anything_is_judged(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().place().write_to(store)
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.ALIVE, ranks=(RankEnd(rank=0),))
    close(tracks, gangs)
    assert [call[0] for call in gangs.calls] == ["kill", "ship"]


def test_closing_twice_appends_once_and_returns_the_same_end(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().place().write_to(store)
    gone(gangs, end(0, exit_code=1), end(1, exit_code=1))
    first, second = close(tracks, gangs), close(tracks, gangs)
    assert first == second
    kinds = [record.kind for record in tracks.records("runs/r-1")]
    assert kinds.count(Kind.ATTEMPT_ENDED) == 1


def test_a_launch_that_is_placed_while_evidence_is_gathered_is_gathered_too(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().write_to(store)
    gone(gangs, end(0, exit_code=1))
    places_late = PlacesLate(gangs, history, store)
    attempt = close(tracks, places_late)
    assert attempt.placed is not None
    assert attempt.ended is not None
    evidence = json.loads(store.objects[attempt.ended.evidence_key])
    assert evidence["launch_id"] == attempt.placed.launch_id


def test_only_the_last_words_of_the_placed_launch_count(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().place().write_to(store)
    leave_word(store, f"{history.launch_id}/exit/rank-0.json", "completed")
    leave_word(store, "another-launch/exit/rank-0.json", "fenced")
    gone(gangs, end(0, exit_code=0), end(1, exit_code=0))
    assert close(tracks, gangs).reason is TerminationReason.COMPLETED


def test_before_a_launch_is_placed_every_last_word_of_the_attempt_counts(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().write_to(store)
    leave_word(store, "early/0123/exit.json", "config_error", message="no such layer")
    gone(gangs, end(0, exit_code=1))
    attempt = close(tracks, gangs)
    assert attempt.reason is TerminationReason.CONFIG_ERROR
    assert attempt.ended is not None
    assert attempt.ended.first_line_ran


def test_an_attempt_whose_gang_never_ran_says_so(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().write_to(store)
    attempt = closed(tracks, gangs, problem=EndProblem(message="no space for a gang"))
    assert attempt.ended is not None
    assert not attempt.ended.first_line_ran
    assert attempt.ended.device_seconds == 0.0
    assert "no space for a gang" in attempt.ended.root_message


def test_secrets_do_not_reach_the_stored_evidence(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().place().write_to(store)
    leave_word(
        store, f"{history.launch_id}/exit/rank-0.json", "code_error", message="s3://u:hunter22@h"
    )
    gone(gangs, end(0, exit_code=1, log_tail="postgresql://u:hunter22@h/d"))
    close(tracks, gangs)
    stored = [data for key, data in store.objects.items() if "/evidence/" in key]
    stored += [data for key, data in store.objects.items() if "/log/" in key]
    assert not any(b"hunter22" in data for data in stored)


def test_the_record_stays_small_whatever_the_ranks_wrote(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().place().write_to(store)
    leave_word(store, f"{history.launch_id}/exit/rank-0.json", "code_error", message="x" * 50_000)
    gone(gangs, end(0, exit_code=1, log_tail="y" * 60_000), end(1, exit_code=1))
    assert close(tracks, gangs).reason is TerminationReason.CODE_ERROR


def test_an_attempt_that_was_never_opened_is_unknown(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.write_to(store)
    with pytest.raises(UnknownRun, match="no attempt 7"):
        closed(tracks, gangs, attempt_id=7)


def test_a_gang_is_over_when_it_is_gone_or_the_other_ranks_do_not_follow() -> None:
    one_ended = GangReport(phase=GangPhase.ALIVE, ranks=(end(0, exit_code=1), RankEnd(rank=1)))
    first_end = BEGIN + timedelta(seconds=30)
    assert not is_over(one_ended, first_end + timedelta(seconds=OTHER_RANKS_S_MAX - 1))
    assert is_over(one_ended, first_end + timedelta(seconds=OTHER_RANKS_S_MAX))
    assert is_over(GangReport(phase=GangPhase.GONE), first_end)
    assert not is_over(GangReport(phase=GangPhase.ALIVE, ranks=(RankEnd(rank=0),)), first_end)


class PlacesLate(FakeGangs):
    """Its first report comes back just after a launch was placed."""

    def __init__(self, gangs: FakeGangs, history: History, store: FakeObjectStore) -> None:
        super().__init__()
        self.reports = gangs.reports
        self._history: History | None = history
        self._store = store

    def observe(self, ref: AttemptRef) -> GangReport:
        if self._history is not None:
            self._history.place().write_to(self._store)
            self._history = None
        return super().observe(ref)


@pytest.fixture
def gangs() -> FakeGangs:
    return FakeGangs()


@pytest.fixture
def history() -> History:
    return History("r-1").declare().open()


def close(tracks: Tracks, gangs: FakeGangs) -> AttemptState:
    return closed(tracks, gangs)


def gone(gangs: FakeGangs, *ranks: RankEnd, conditions: tuple[Condition, ...] = ()) -> None:
    gangs.reports["r-1", 1] = GangReport(
        phase=GangPhase.GONE, ranks=ranks, conditions=conditions, started_at=STARTED
    )


def end(
    rank: int, *, exit_code: int | None = None, signal: int | None = None, log_tail: str = ""
) -> RankEnd:
    return RankEnd(
        rank=rank,
        exit_code=exit_code,
        signal=signal,
        started_at=STARTED,
        ended_at=ENDED,
        log_tail=log_tail,
    )


def write_journal(store: FakeObjectStore, history: History, *, last_step: int) -> None:
    line = {"kind": "step", "t": ENDED, "step": last_step, "cursor_to": 24 * last_step}
    lines = [{**line, "spent": {"steps_s": 20.0, "data_s": 4.0}}]
    lines.append({"kind": "heartbeat", "t": ENDED, "step": last_step})
    data = b"".join(canonical_json(line) + b"\n" for line in lines) + b'{"kind":"step","t'
    key = f"runs/r-1/attempts/1/{history.launch_id}/journal/rank-0/{0:012d}.jsonl"
    store.put(key, data)


def test_a_gang_that_its_launcher_has_given_up_is_closed_though_it_still_stands(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History
) -> None:
    history.supervise().write_to(store)
    words = (
        "Pod p got no node within 900 s: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    )
    given_up = Condition(
        type=CANNOT_START, reason="Unschedulable", message=words, at=STARTED, source="supervisor"
    )
    report = GangReport(phase=GangPhase.ALIVE, conditions=(given_up,))
    assert is_over(report, BEGIN)
    assert not is_over(GangReport(phase=GangPhase.ALIVE), BEGIN)
    gangs.reports["r-1", 1] = report
    attempt = close(tracks, gangs)
    assert attempt.ended is not None
    assert attempt.reason is TerminationReason.SCHEDULING_TIMEOUT
    assert attempt.ended.root_message.endswith(words)


# All places of a large gang come from the object that its record names.


PLACES = tuple(
    RankPlace(
        rank=rank,
        node=f"node-{rank}",
        pid=1,
        pid_started=1.0,
        boot_id=f"boot-{rank}",
        device="cpu",
        accelerator="cpu",
    )
    for rank in range(200)
)


def test_a_large_gang_s_places_are_read_from_their_object() -> None:
    store = FakeObjectStore()
    body, data = compacted(placed("launch", world_size=200, ranks=PLACES))
    assert data is not None
    store.put(places_key(AttemptRef("r", 1), "launch", str(body.places_sha256)), data)
    assert read_places(store, AttemptRef("r", 1), body) == PLACES


@pytest.mark.parametrize("found", [None, b"[]", b"{"])
def test_places_that_are_lost_or_broken_leave_what_the_record_holds(found: bytes | None) -> None:
    store = FakeObjectStore()
    body, _ = compacted(placed("launch", world_size=200, ranks=PLACES))
    if found is not None:
        store.put(places_key(AttemptRef("r", 1), "launch", str(body.places_sha256)), found)
    assert read_places(store, AttemptRef("r", 1), body) == PLACES[:1]


def test_a_small_gang_s_places_stand_in_its_record_and_an_unplaced_one_has_none() -> None:
    small = placed("launch", world_size=2, ranks=PLACES[:2])
    assert read_places(FakeObjectStore(), AttemptRef("r", 1), small) == PLACES[:2]
    assert read_places(FakeObjectStore(), AttemptRef("r", 1), None) == ()


@pytest.mark.parametrize("differs_from", [None, 22])
def test_the_end_of_a_resumed_attempt_names_the_first_step_that_came_out_otherwise(
    tracks: Tracks, gangs: FakeGangs, story: Story, differs_from: int | None
) -> None:
    story.attempt("preempted", last_step=23, commits=(10, 20))
    story.begin()
    story.ship(range(21, 29), differs_from=differs_from)
    story.write_tracks()
    gangs.reports[RUN_ID, 2] = GangReport(phase=GangPhase.GONE, ranks=(end(0, exit_code=3),))
    attempt = closed(tracks, gangs, RUN_ID, attempt_id=2)
    assert attempt.ended is not None
    assert attempt.ended.differs_from_step == differs_from
