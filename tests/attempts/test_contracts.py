"""Each section of the policy: what violates a rule is refused, or marked, with the rule's name."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.asked import CODE, Asked, declare
from tests.attempts.test_runs import REQUEST
from tests.bodies import TRAIN
from tests.deciders import decided_promotion, settled_run, world_of
from tests.examples import example
from tests.fakes import FakeObjectStore
from tests.histories import History
from tests.policies import policy_of
from tests.stories import Story
from tracks_dagster.attempts.effects.branches import find_origin
from tracks_dagster.attempts.effects.manual_retry import ManualRetry, retry_by_person
from tracks_dagster.evals.effects.promoting import promote
from tracks_dagster.evals.effects.running import waive
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.projects.project import ConfigKey
from tracks_dagster.retry.contracts import LIGHT, STRICT, check_raised_cap, contract_lines
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.review.effects.explain.run import explain_attempt, explain_run
from tracks_dagster.review.explain.text import attempt_text, run_text
from tracks_dagster.track.bodies import LOGGED_MAX, PromotionRule, RetentionRule
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.states.validity import ARTIFACTS, why_invalid
from tracks_dagster.wings.watch.notifying.delivery import Channel, Delivery, check_notified

FIELDS = ("intent", "owner", "team", "on_call", "commit", "snapshot", "experiment", "expect")
NO_CHECKOUT = replace(CODE, git_commit=None)
EMPTY = REQUEST.but(intent="A run of gpt; no intent was given.", owner="dagster", code=NO_CHECKOUT)


def refusal(tracks: Tracks, text: str, request: Asked = REQUEST) -> str:
    """Return why the policy refuses the request; nothing was written then."""
    with pytest.raises(InvalidInput) as refused:
        declare(tracks, request, policy=policy_of(text))
    assert tracks.find_run(request.run_id) is None
    return str(refused.value)


def test_by_default_nothing_is_asked(data: Story, tracks: Tracks) -> None:
    assert DEFAULT_POLICY.contracts == LIGHT
    assert list(contract_lines(LIGHT)) == []
    declared = declare(tracks, EMPTY)
    assert why_invalid(tracks.run(declared.run_id)) is None


def test_a_strict_policy_names_everything_that_is_missing_at_once(
    data: Story, tracks: Tracks
) -> None:
    """It refused one group of rules at a time: three rounds until a person knew all."""

    def reaches_nobody() -> None:
        check_notified(STRICT, "full", "vision", lambda: None)

    policy = policy_of("profile: strict\nscheduling: {teams: {speech: {devices: 1}}}")
    request = EMPTY.but(stage="full")
    with pytest.raises(InvalidInput) as refused:
        declare(tracks, request, policy=policy, checks=[reaches_nobody])
    assert re.findall(r"^Refused by policy ([\w.]+):", str(refused.value), re.MULTILINE) == [
        "scheduling.teams",
        "submission.required_fields",
        "monitoring.notify_stages",
        "stages.full.needs",
    ]
    assert tracks.find_run(request.run_id) is None


def test_all_that_is_wrong_with_a_request_is_said_at_once(data: Story, tracks: Tracks) -> None:
    wrong = REQUEST.but(
        team=" ",
        stage="ful",
        config={"leyers": 2, "lrr": 0.1},
        retention=RetentionRule(keep_last=0, direction="up"),
        skip_gates=("canry",),
    )
    said = refusal(tracks, "", wrong)
    for words in ("team is empty", "'ful'", "'leyers'", "'lrr'", "keep_last is 0", "'up'", "canry"):
        assert words in said, words


# --- submission -----------------------------------------------------------------------------------


def test_every_field_that_is_missing_is_named_with_how_it_is_given(
    data: Story, tracks: Tracks
) -> None:
    asked = [name for name in FIELDS if name != "snapshot"]
    words = refusal(tracks, f"submission: {{required_fields: [{', '.join(asked)}]}}", EMPTY)
    assert words.startswith(
        "Refused by policy submission.required_fields: intent, owner, team, on_call, commit, "
        "experiment, expect are missing. How it is given: intent: --intent"
    )
    one = refusal(tracks, "submission: {required_fields: [on_call]}")
    assert one == (
        "Refused by policy submission.required_fields: on_call is missing. How it is given: on_call: "
        "--on-call NAME, or on_call: in its tracks.yaml."
    )


def test_a_whole_declaration_is_taken_and_explained(data: Story, tracks: Tracks) -> None:
    text = f"submission: {{required_fields: [{', '.join(FIELDS)}]}}"
    said = {"team": "vision", "on_call": "grace", "experiment": "wider", "expect": "below 2.4"}
    declared = declare(tracks, REQUEST.but(**said), policy=policy_of(text))
    assert {name: getattr(declared, name) for name in said} == said
    result = attempt_text(explain_attempt(tracks, "r-1", 1))
    assert "owner ann, team vision, on call grace" in result
    assert "of the experiment wider (`tracks diff --experiment wider`)" in result


def test_a_parameter_is_a_key_of_the_config_in_that_role(data: Story, tracks: Tracks) -> None:
    text = """
        submission:
          required_parameters:
            any: [lr, global_batch, micro_batch, accumulation]
            single: [warmup, base_checkpoint]
            sweep: [optimizer]
    """
    words = refusal(tracks, text)
    assert words.startswith(
        "Refused by policy submission.required_parameters: warmup, base_checkpoint are missing"
    )
    assert "warmup: KEY, base_checkpoint: KEY" in words
    keys = {**example().keys, "warm": ConfigKey(default=10), "from": ConfigKey(default="")}
    roles = {**example().roles, "warmup": "warm", "base_checkpoint": "from"}
    project = replace(example(), keys=keys, roles=roles)
    named = REQUEST.but(project=project)
    assert "base_checkpoint is missing" in refusal(tracks, text, named)  # it has no value
    given = named.but(config={**named.config, "from": "gpt-1@40"})
    assert declare(tracks, given, policy=policy_of(text)).roles["warmup"] == "warm"


# --- scheduling, fault tolerance: their own tests have the rest -----------------------------------


def test_a_team_that_the_queue_does_not_know_is_refused(data: Story, tracks: Tracks) -> None:
    words = refusal(tracks, "scheduling: {teams: {vision: {devices: 8}}}")
    assert words.startswith("Refused by policy scheduling.teams: 'unknown' is not a team; ")


def test_a_failure_that_may_not_be_retried_is_not(store: FakeObjectStore, tracks: Tracks) -> None:
    History().declare().open().place().end("hang", last_step=3).write_to(store)
    policy = policy_of("fault_tolerance: {reasons: {hang: {count: 0}}}")
    settled = settled_run(tracks, policy=policy)
    assert settled.what == "refused"
    assert (
        "hang is not retried: the same attempt would end the same (policy "
        "fault_tolerance.reasons.hang). Decided"
    ) in settled.why


def test_a_limit_of_a_policy_file_is_named_and_a_shipped_one_is_not(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    History().declare().open().place().end("hang", last_step=3).write_to(store)
    policy = policy_of("""
        fault_tolerance:
          limits: {fingerprint_limit: 0}
          reasons: {code_error: {count: 0}, hang: {backoff: 1s}}
    """)
    why = settled_run(tracks, policy=policy).why
    assert re.findall(r"\(policy ([^)]*)\)", why) == ["fault_tolerance.limits.fingerprint_limit"]


# --- tracking and monitoring: what makes a run valid ----------------------------------------------


def test_a_run_is_valid_once_it_has_left_what_was_asked_for() -> None:
    history = History().declare(required_artifacts=ARTIFACTS, required_signals=("loss", "lr"))
    rule = "tracking.required_artifacts"
    signals = "monitoring.required_signals"
    steps = (
        (lambda: history.open(), ["checkpoint", "weights", "environment", "evals", "logs"]),
        (lambda: history.place().restore(), ["checkpoint", "weights", "evals", "logs"]),
        (lambda: history.commit(40, metrics={"loss": 2.0}), ["weights", "evals", "logs"]),
        (lambda: history.end("completed", last_step=40), ["evals"]),
    )
    for step, missing in steps:
        step()
        said = (why_invalid(history.state) or "").split("; ")
        assert said[0] == f"{rule}: {', '.join(missing)} missing"
        assert said[1].startswith(f"{signals}: ")
    assert said[1] == f"{signals}: lr missing"
    history.open_eval(history.state.resumable[-1])
    history.end_eval(history.state.evals[-1].opened)
    assert why_invalid(history.state) == f"{signals}: lr missing"


@pytest.mark.parametrize(
    ("changes", "is_valid"),
    [
        ({"logs": {"0": "a" * 64}}, True),
        ({"logs": {}}, False),  # it began to run, and nothing of its log was stored
        ({"logs": {}, "first_line_ran": False}, True),
        ({"logs": None}, True),  # of an older version: the last lines, with the evidence
        ({"logs": None, "evidence_key": ""}, False),
    ],
)
def test_the_logs_that_are_asked_for_are_the_stored_logs_of_every_attempt(
    changes: dict[str, Any], is_valid: bool
) -> None:
    history = History().declare(required_artifacts=("logs",)).open().place().restore().commit(20)
    history.end("gpu_oom", last_step=23, **changes)
    history.open().place().restore().commit(40).end("completed", logs={"0": "b" * 64})
    assert (why_invalid(history.state) is None) is is_valid


def test_what_makes_a_run_valid_is_what_was_asked_when_it_was_declared(
    data: Story, tracks: Tracks, store: FakeObjectStore, ledger: Ledger
) -> None:
    text = "tracking: {required_artifacts: [checkpoint]}\nmonitoring: {required_signals: [loss]}"
    declare(tracks, REQUEST, policy=policy_of(text))
    Projector(store, ledger).scan()
    missing = (
        "tracking.required_artifacts: checkpoint missing; monitoring.required_signals: loss missing"
    )
    assert f"Not valid: {missing}." in run_text(explain_run(tracks, "r-1"))
    [row] = ledger.query("select is_valid, invalid_why from training_runs", {})
    assert not row["is_valid"]
    assert row["invalid_why"] == missing


def test_what_a_launch_may_log_is_what_the_policy_allowed_when_it_was_declared(
    data: Story, tracks: Tracks
) -> None:
    policy = policy_of("tracking: {media_items: 7, media_size: 3MiB}")
    assert list(contract_lines(policy.contracts)) == [
        "tracking.media_items: 7",
        "tracking.media_size: 3 MiB",
    ]
    declared = declare(tracks, REQUEST, policy=policy)
    assert (declared.media_items, declared.media_size_bytes) == (7, 3 * 1024**2)
    assert (tracks.run("r-1").declared.media_items, LIGHT.tracking.media_items) == (7, LOGGED_MAX)


@pytest.mark.parametrize(
    ("channels", "is_heard"),
    [
        ((), False),
        ((Channel(name="all", to="x"),), True),
        ((Channel(name="theirs", to="x", teams=("speech",)),), False),
        ((Channel(name="ours", to="x", teams=("vis*",)),), True),
        ((Channel(name="one", to="x", rules=("dead_gang",)),), False),
    ],
)
def test_a_stage_whose_alerts_reach_nobody_is_refused(
    channels: tuple[Channel, ...], is_heard: bool
) -> None:
    contracts = policy_of("monitoring: {notify_stages: [full]}").contracts
    check = partial(
        check_notified, contracts, team="vision", load=lambda: Delivery(channels=channels)
    )
    check(stage="canary")
    if is_heard:
        check(stage="full")
        return
    with pytest.raises(
        InvalidInput, match=r"^Refused by policy monitoring\.notify_stages: red alert"
    ):
        check(stage="full")


# --- cost and tuning ------------------------------------------------------------------------------


def test_a_run_costs_no_more_than_the_policy_has(data: Story, tracks: Tracks) -> None:
    text = "cost: {max_cost: 200}\ngovernance: {may_raise_cap: [leads], teams: {leads: [grace]}}"
    words = refusal(tracks, text, REQUEST.but(max_cost=500.0))
    assert words == (
        "Refused by policy cost.max_cost: a max cost of 500 is more than 200, the most for a run. By "
        "governance.may_raise_cap only leads (grace) may. Names are taken as given: a record, not a "
        "log-in."
    )
    assert declare(tracks, REQUEST, policy=policy_of(text)).max_cost == 200.0
    more = REQUEST.but(run_id="r-2", owner="grace", max_cost=500.0)
    assert declare(tracks, more, policy=policy_of(text)).max_cost == 500.0


def test_without_a_name_nobody_raises_a_cap() -> None:
    contracts = policy_of("cost: {max_cost: 200}").contracts
    check_raised_cap(contracts, 200.0, by="ann", owner="ann")
    with pytest.raises(InvalidInput, match=r"governance\.may_raise_cap nobody may"):
        check_raised_cap(contracts, 200.5, by="ann", owner="ann")


def test_a_retry_raises_a_cap_only_for_who_may(tracks: Tracks, store: FakeObjectStore) -> None:
    text = "cost: {max_cost: 200}\ngovernance: {may_raise_cap: [grace]}"
    world = world_of(tracks, policy=policy_of(text))
    for run_id, cap in (("r-1", 200.0), ("r-2", 500.0)):
        history = History(run_id).declare(max_cost=cap)
        history.open().place().restore().commit(20).end("preempted").write_to(store)
    more = ManualRetry(name="ann", why="It needs more.", max_cost=300.0)
    with pytest.raises(InvalidInput, match=r"^Refused by policy cost\.max_cost: a max cost of 300"):
        retry_by_person(world, "r-1", more)
    assert len(tracks.run("r-1").attempts) == 1
    retry_by_person(world, "r-1", replace(more, name="grace"))
    retry_by_person(world, "r-2", more)  # 300 is less than the 500 that it has
    assert tracks.run("r-2").attempts[-1].opened.max_cost == 300.0


def test_every_rule_that_is_violated_is_named_at_once(data: Story, tracks: Tracks) -> None:
    text = "submission: {required_fields: [on_call]}\ncost: {max_cost: 200}"
    words = refusal(tracks, text, REQUEST.but(max_cost=500.0))
    assert re.findall(r"Refused by policy ([\w.]+)", words) == [
        "submission.required_fields",
        "cost.max_cost",
    ]


def test_an_experiment_has_so_many_trials(
    data: Story, tracks: Tracks, store: FakeObjectStore, ledger: Ledger
) -> None:
    policy = policy_of("tuning: {trials: 2, devices_per_team: 4}")
    assert policy.scheduling.classes["sweep"].devices_per_team == 4
    trial = REQUEST.but(workload_class="sweep")
    assert "give --experiment NAME" in refusal(tracks, "tuning: {trials: 2}", trial)
    for number in range(2):
        named = trial.but(run_id=f"r-{number}", experiment="wider")
        declare(tracks, named, policy=policy, ledger=ledger)
        Projector(store, ledger).scan()
    third = trial.but(run_id="r-2", experiment="wider")
    with pytest.raises(
        InvalidInput, match=r"^Refused by policy tuning\.trials: .* has 2 trials alre"
    ):
        declare(tracks, third, policy=policy, ledger=ledger)
    declare(tracks, third.but(experiment="deeper"), policy=policy, ledger=ledger)
    single = third.but(run_id="r-3", workload_class=None)
    declare(tracks, single, policy=policy, ledger=ledger)


# --- promotion and governance ---------------------------------------------------------------------

RULE = PromotionRule(
    alias="best", suite="heldout-loss", metric="loss", direction="min", threshold=4.0
)


def trained(store: FakeObjectStore, run_id: str, seed: int, *, loss: float = 3.25) -> RunState:
    """Store a run of that seed whose final checkpoint was measured."""
    history = History(run_id).declare(promotion=RULE, config={"steps": 40, "seed": seed})
    history.open().place().restore().commit(40).end("completed", last_step=40)
    measured(history, loss=loss).write_to(store)
    return history.state


def measured(history: History, *, loss: float = 3.25) -> History:
    """Add an eval of the newest checkpoint."""
    history.open_eval(history.state.resumable[-1])
    return history.end_eval(history.state.evals[-1].opened, metrics={"loss": loss})


def test_a_promotion_asks_for_other_seeds_that_meet_the_threshold_too(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger
) -> None:
    best = trained(store, "r-1", 1).resumable[-1]
    trained(store, "r-2", 2, loss=5.0)  # does not meet it
    trained(store, "r-3", 1)  # the same seed
    trained(store, "r-4", 4)
    Projector(store, ledger).scan()
    world = world_of(tracks, ledger, policy=policy_of("promotion: {seeds: 2}"))
    with pytest.raises(InvalidInput) as refused:
        promote(world, best, alias="best", by="ann", why="It is the best.")
    assert (
        "Refused by policy promotion.seeds: 2 other seeds of the same code, config and data must meet "
        "the threshold too, it has 4. " in str(refused.value)
    )
    trained(store, "r-5", 5)
    Projector(store, ledger).scan()
    assert promote(world, best, alias="best", by="ann", why="It is the best.").promoted


@pytest.mark.parametrize(
    "what",
    ["branch", "seed changed on the way", "config changed by a retry", "other data in a retry"],
)
def test_a_run_that_only_looks_like_another_seed_is_not_one(
    what: str, tracks: Tracks, store: FakeObjectStore, ledger: Ledger
) -> None:
    best = trained(store, "r-1", 1).resumable[-1]
    config = {"steps": 40, "seed": 1 if what == "seed changed on the way" else 2}
    origin = best if what == "branch" else None
    history = History("r-2").declare(promotion=RULE, config=config, branched_from=origin)
    history.open().place().restore().commit(20).end("preempted", last_step=20)
    changes: dict[str, Any] = {"config": {"steps": 40, "seed": 2}}
    if what == "config changed by a retry":
        changes = {"config": {**config, "lr": 0.5}}
    if what == "other data in a retry":
        changes["snapshot"] = replace(TRAIN, snapshot_id="0" * 64)
    history.open(**changes).place().restore().commit(40).end("completed", last_step=40)
    measured(history).write_to(store)
    Projector(store, ledger).scan()
    world = world_of(tracks, ledger, policy=policy_of("promotion: {seeds: 1}"))
    with pytest.raises(InvalidInput, match=r"Refused by policy promotion\.seeds: 1 other seed of"):
        promote(world, best, alias="best", by="ann", why="It is the best.")


def test_a_remedy_that_keeps_the_computation_leaves_it_another_seed(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger
) -> None:
    config = {"steps": 40, "seed": 1, "micro_batch": 4, "accumulation": 6}
    for run_id, seed in (("r-1", 1), ("r-2", 2)):
        history = History(run_id).declare(promotion=RULE, config={**config, "seed": seed})
        history.open().place().restore().commit(20).end("gpu_oom", last_step=20)
        halved = {"micro_batch": 2, "accumulation": 12} if seed == 2 else {}
        history.open(config={**config, "seed": seed, **halved}).place().restore().commit(40)
        measured(history.end("completed", last_step=40)).write_to(store)
    Projector(store, ledger).scan()
    world = world_of(tracks, ledger, policy=policy_of("promotion: {seeds: 1}"))
    best = tracks.run("r-1").resumable[-1]
    assert promote(world, best, alias="best", by="ann", why="It is the best.").promoted


def test_without_a_key_for_the_seed_the_refusal_says_so(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger
) -> None:
    history = History().declare(promotion=RULE, config={"steps": 40})
    history.open().place().restore().commit(40).end("completed", last_step=40)
    best = measured(history).state.resumable[-1]
    history.write_to(store)
    Projector(store, ledger).scan()
    world = world_of(tracks, ledger, policy=policy_of("promotion: {seeds: 1}"))
    with pytest.raises(InvalidInput, match="r-1 has no key for its seed"):
        promote(world, best, alias="best", by="ann", why="It is the best.")


def test_a_run_that_is_not_valid_is_not_promoted(tracks: Tracks, store: FakeObjectStore) -> None:
    history = History().declare(promotion=RULE, required_signals=("grad_norm",))
    history.open().place().restore().commit(40).end("completed", last_step=40)
    history.open_eval(history.state.resumable[-1])
    history.end_eval(history.state.evals[-1].opened).write_to(store)
    policy = policy_of("promotion: {only_valid: true}")
    decided = decided_promotion(tracks, "r-1", by="run_evals", policy=policy)
    assert decided is not None
    assert not decided.promoted
    assert decided.why == (
        "Refused by policy promotion.only_valid: the run is not valid: monitoring.required_signals: "
        "grad_norm missing"
    )


GOVERNED = """
governance:
  may_promote: [leads]
  may_waive: [owner, leads]
  teams: {leads: [grace]}
"""


def test_only_who_is_named_promotes_and_waives(tracks: Tracks, store: FakeObjectStore) -> None:
    ref = trained(store, "r-1", 1).resumable[-1]
    world = world_of(tracks, policy=policy_of(GOVERNED))
    with pytest.raises(InvalidInput) as refused:
        promote(world, ref, alias="best", by="bob", why="It reads well.")
    assert (
        "Refused by policy governance.may_promote: bob may not promote r-1: only leads (grace) "
        "may. Names are taken as given: a record, not a log-in" in str(refused.value)
    )
    assert promote(world, ref, alias="best", by="grace", why="It reads well.").promoted
    may = world.policy.contracts.governance
    owner = tracks.run("r-1").declared.owner
    with pytest.raises(
        InvalidInput, match=re.escape(f"only the run's owner ({owner}), leads (grace) may")
    ):
        waive(tracks, "r-1", "heldout-loss", by="bob", why="slow", governance=may)
    waive(tracks, "r-1", "heldout-loss", by=owner, why="slow", governance=may)


def test_a_runs_own_rule_promotes_in_the_name_of_its_owner(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    trained(store, "r-1", 1)
    decided = decided_promotion(tracks, "r-1", by="run_evals", policy=policy_of(GOVERNED))
    assert decided is not None
    assert decided.why.startswith("Refused by policy governance.may_promote: ")


# --- retention ------------------------------------------------------------------------------------


def test_a_run_keeps_at_least_what_the_policy_has(data: Story, tracks: Tracks) -> None:
    text = "retention: {keep_last: 5, delete_after: 7d}"
    words = refusal(tracks, text, REQUEST.but(retention=RetentionRule(keep_last=2)))
    assert words == (
        "Refused by policy retention.keep_last: the run keeps 2, and 5 is the least. Raise keep_last "
        "under retention: in its tracks.yaml, or give --keep-last."
    )
    kept = declare(tracks, REQUEST, policy=policy_of(text)).retention
    assert kept == RetentionRule(keep_last=5, delete_after_s=7 * 86_400.0)


# --- all together ---------------------------------------------------------------------------------


def test_what_anyone_may_is_shown_in_words() -> None:
    text = "governance: {may_raise_cap: none, may_waive: []}\ncost: {max_cost: 2500000}"
    assert list(contract_lines(policy_of(text).contracts)) == [
        "cost.max_cost: 2500000",
        "governance.may_waive: nobody",
        "governance.may_raise_cap: anyone",
    ]


def test_the_strict_contracts_say_a_line_for_each_rule() -> None:
    sections = {line.partition(".")[0] for line in contract_lines(STRICT)}
    asked = {"submission", "tracking", "monitoring", "promotion", "retention", "governance"}
    assert sections == asked  # what a run may cost, and how many trials, nobody else can say


def test_a_branch_belongs_to_its_sources_experiment(
    data: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    history = History("r-0").declare(experiment="wider", baseline="r-9", on_call="grace")
    history.open().place().restore().commit(20).write_to(store)
    fields = find_origin(tracks, "r-0@20", run_id=None).fields
    assert (fields["experiment"], fields["baseline"], fields["on_call"]) == (
        "wider",
        "r-9",
        "grace",
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"baseline": "r-9"}, "belongs to an experiment"),
        ({"experiment": "wider", "baseline": "r-9"}, "no training run 'r-9' to be the baseline"),
        ({"experiment": "a question?"}, "cannot name an experiment"),
    ],
)
def test_an_experiment_has_a_name_and_a_baseline_that_is_there(
    data: Story, tracks: Tracks, changes: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        declare(tracks, REQUEST.but(**changes))
