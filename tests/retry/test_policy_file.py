"""A person's policy file: what it changes, what stays, and every error of it with its line."""

from __future__ import annotations

import re
from dataclasses import Field, fields
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracks_dagster.retry.contracts import LIGHT, Contracts
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.effects.policy_file import read_policy
from tracks_dagster.retry.policy import Remedy, RetryPolicy
from tracks_dagster.retry.policy_words import limit_lines, rule_lines
from tracks_dagster.scheduling.policy import (
    SHIPPED_CLASSES,
    Allowance,
    Order,
    Placement,
    Sharing,
)
from tracks_dagster.scheduling.policy_check import find_impossible
from tracks_dagster.track.effects.settings_file import Problem, parse_settings
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.track.reasons import TerminationReason as R

POLICY_PAGE = Path(__file__).parents[2] / "docs" / "policy.md"
DOCS = Path(__file__).parents[2] / "docs" / "scheduling.md"
HUGE = "9" * 400
DAY = 86_400.0


def read(text: str) -> tuple[RetryPolicy | None, list[Problem]]:
    file = parse_settings(text, "The file")
    try:
        return read_policy(file, DEFAULT_POLICY), file.problems
    except SettingsError:
        return None, file.problems


def good(text: str) -> RetryPolicy:
    policy, problems = read(text)
    assert problems == []
    assert policy is not None
    return policy


def lines_of(text: str) -> list[int]:
    return [problem.line for problem in sorted(read(text)[1])]


def test_what_a_row_names_changes_and_everything_else_stays() -> None:
    policy = good("reasons:\n  node_failure: {count: 8, backoff: 30s, backoff_max: 20 min}\n")
    rule, before = policy.rule(R.NODE_FAILURE), DEFAULT_POLICY.rule(R.NODE_FAILURE)
    assert (rule.count, rule.backoff_s, rule.backoff_s_max) == (8, 30.0, 1200.0)
    assert (rule.window_s, rule.remedy) == (before.window_s, before.remedy)
    others = [r for r in policy.rules if r.reason is not R.NODE_FAILURE]
    assert others == [r for r in DEFAULT_POLICY.rules if r.reason is not R.NODE_FAILURE]
    assert policy.version != DEFAULT_POLICY.version


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}", "reasons: {}", "limits: {}"])
def test_a_file_that_says_nothing_is_the_default(text: str) -> None:
    assert good(text) == DEFAULT_POLICY


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("unknown", "count: none", "count", None),
        ("unknown", "window: 7d", "window_s", 7 * DAY),
        ("unknown", "window: 1.5h", "window_s", 5400.0),
        ("unknown", "window: none", "window_s", None),
        ("unknown", "window: 500 steps", "window_steps", 500),
        ("unknown", "window: 500 steps", "window_s", None),
        ("nan_loss", "window: 24h", "window_steps", None),
        ("unknown", "refund: 50%", "refund", 0.5),
        ("unknown", "refund: 0", "refund", 0.0),
        ("unknown", "remedy: resume", "remedy", Remedy.RESUME),
        ("unknown", "other_node_from: none", "other_node_from", None),
        ("unknown", "fingerprint_limited: false", "fingerprint_limited", False),
        ("rank_lost_secondary", "counts_as: none", "counts_as", None),
        ("hang", "counts_as: unknown", "counts_as", R.UNKNOWN),
        ("image_pull", "time: 3h", "time_s", 10_800.0),
        ("code_error", "count_before_first_step: 1", "count_before_first_step", 1),
    ],
)
def test_every_key_of_a_row_is_read(key: str, text: str, field: str, value: object) -> None:
    policy = good(f"reasons: {{{key}: {{{text}}}}}")
    assert getattr(policy.rule(R(key)), field) == value


def test_limits_storms_environments_devices_and_pools_are_read() -> None:
    policy = good(
        """
        limits:
          {fingerprint_limit: 4, device_time_floor: 2h, never_started_limit: 5,
           checkpoints_may_be_off: true}
        storm: {ends: 20, window: 10min, share: 10%}
        environment: {torch: 2, cuda: any, nccl: exact}
        larger_devices: {a100-40: a100-80}
        other_pools: {spot: on-demand}
        """
    )
    assert (policy.fingerprint_limit, policy.device_s_floor) == (4, 7200.0)
    assert policy.never_started_limit == 5
    assert policy.checkpoints_may_be_off
    assert any("may train without" in line for line in limit_lines(policy))
    assert (policy.storm.ends, policy.storm.window_s, policy.storm.share) == (20, 600.0, 0.1)
    assert policy.storm.runs == DEFAULT_POLICY.storm.runs
    rules = {rule.key: rule.parts for rule in policy.environment}
    assert rules == {"torch": 2, "python": 2, "numpy": 2, "nccl": None}
    assert policy.larger_devices == {"a100-40": "a100-80"}
    assert policy.other_pools == {"spot": "on-demand"}


def test_the_queue_its_classes_teams_and_owners_are_read() -> None:
    scheduling = good(
        """
        scheduling:
          {order: fair, backfill: false, preemption: false, placement: spread, sharing: none,
           half_life: 2d, move_rest: 0s, default_class: nightly}
        classes:
          sweep: {devices_per_team: 4, loss: none, wait_max: 2d, promise: 1h, money_per_day: 10.5}
          nightly: {priority: 5, queue: 8h, completion: 12h, recovery: 1h, reserved: 1, devices: 6,
                    devices_per_owner: 2, ranks_min: 2}
        teams: {vision: {devices: 8, share: 2, money_per_day: 500}}
        owners: {ada: {devices: 2, money_per_day: none}}
        """
    ).scheduling
    assert (scheduling.order, scheduling.placement) == (Order.FAIR, Placement.SPREAD)
    assert (scheduling.sharing, scheduling.half_life_s) == (Sharing.NONE, 2 * DAY)
    assert (scheduling.backfill, scheduling.preemption, scheduling.move_rest_s) == (False, False, 0)
    sweep, nightly = scheduling.classes["sweep"], scheduling.class_of(None)
    assert (sweep.devices_per_team, sweep.loss_s, sweep.money_per_day) == (4, None, 10.5)
    assert (sweep.wait_s_max, sweep.promise_s) == (2 * DAY, 3600.0)
    assert sweep.priority == SHIPPED_CLASSES["sweep"].priority  # what is not given stays
    assert (nightly.priority, nightly.reserved, nightly.devices, nightly.ranks_min) == (5, 1, 6, 2)
    assert scheduling.teams == {"vision": Allowance(devices=8, share=2.0, money_per_day=500.0)}
    assert scheduling.owners == {"ada": Allowance(devices=2)}


def test_the_queues_example_in_the_docs_is_read_and_everything_can_start_by_it() -> None:
    text = DOCS.read_text(encoding="utf-8").split("share eight devices:\n\n")[1].split("\n\n")[0]
    scheduling = good(dedent(text)).scheduling
    assert scheduling.classes["nightly"].priority == 50
    assert list(find_impossible(scheduling)) == []


FLAT = """
reasons: {hang: {count: 5}}
limits: {fingerprint_limit: 4}
storm: {ends: 20}
nodes: {strikes: 3}
environment: {torch: 2}
larger_devices: {a100-40: a100-80}
other_pools: {spot: on-demand}
"""
QUEUE = """
classes: {sweep: {devices: 4}}
teams: {vision: {devices: 8}}
owners: {ada: {devices: 2}}
"""


def test_a_file_from_before_there_were_sections_means_the_same() -> None:
    flat = good(f"scheduling: {{order: fair}}{FLAT}{QUEUE}")
    queue = indent(f"order: fair{QUEUE}", "  ")
    sections = good(f"fault_tolerance:{indent(FLAT, '  ')}\nscheduling:\n{queue}")
    assert flat == sections
    assert flat != DEFAULT_POLICY


def test_what_is_given_alone_and_in_its_section_is_given_twice() -> None:
    _, problems = read(
        "limits: {fingerprint_limit: 4}\nclasses: {}\n"
        "fault_tolerance:\n  limits: {fingerprint_limit: 5}\nscheduling:\n  classes: {}\n"
    )
    assert [(each.line, each.words) for each in sorted(problems)] == [
        (4, "fault_tolerance.limits: limits was given before, in line 1; give it once."),
        (6, "scheduling.classes: classes was given before, in line 2; give it once."),
    ]


def test_the_ten_sections_are_those_that_the_docs_name() -> None:
    page = POLICY_PAGE.read_text(encoding="utf-8")
    named = re.findall(r"^## (\w+)$", page, flags=re.MULTILINE)
    sections = [each.name for each in fields(Contracts)]
    assert len(named) == 10
    assert set(named) == {*sections, "scheduling", "fault_tolerance"}
    keys = {
        f"`{each.name.removesuffix('_s').removesuffix('_bytes')}`"
        for s in fields(Contracts)
        for each in _keys(s.name)
    }
    assert [key for key in keys if key not in page] == []
    example = page.split("A team of four:\n\n")[1].split("\n\nOr")[0]
    assert good(dedent(example)).contracts != LIGHT


def _keys(section: str) -> tuple[Field[Any], ...]:
    return fields(getattr(LIGHT, section))


def test_the_storm_breaker_can_be_switched_off() -> None:
    policy = good("storm: {ends: none}")
    assert policy.storm.ends is None
    assert any("never" in line for line in limit_lines(policy))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reasons: {nod_failure: {count: 1}}", "did you mean node_failure?"),
        ("reasons: {completed: {count: 1}}", "is never retried"),
        ("reasons: {hang: {cout: 1}}", "did you mean count?"),
        ("reasons: {hang: 3}", "keys with values"),
        ("reasons: [hang]", "a list is given where"),
        ("resons: {}", "did you mean reasons?"),
        ("reasons: {hang: {count: -1}}", "-1 is not a count"),
        ("reasons: {hang: {count: 1.5}}", "1.5 is not a count"),
        ("reasons: {hang: {count: true}}", "true is not a count"),
        ("reasons: {hang: {count: '3'}}", "'3' is not a count"),
        ("reasons: {hang: {count: }}", "nothing is not a count"),
        ("reasons: {hang: {window: 24}}", "24 has no unit"),
        ("reasons: {hang: {window: '24'}}", "'24' has no unit"),
        ("reasons: {hang: {window: 24:00}}", "'24:00' is not a window"),
        ("reasons: {hang: {window: 10m}}", "has the unit 'm'"),
        ("reasons: {hang: {window: -1h}}", "'-1h' is not a window"),
        ("reasons: {hang: {window: 0h}}", "a window is empty"),
        ("reasons: {hang: {window: 99999d}}", "more than ten years"),
        ("reasons: {hang: {window: 0 steps}}", "not a number of steps"),
        ("reasons: {hang: {window: 999999999999 days}}", "has the unit 'days'"),
        ("reasons: {hang: {window: 999999999999 d}}", "more than ten years"),
        (f"reasons: {{hang: {{window: {HUGE} d}}}}", "more than ten years"),
        (f"reasons: {{hang: {{window: {HUGE} steps}}}}", "more than 1000000000000 steps"),
        (f"reasons: {{hang: {{window: {HUGE}}}}}", "has no unit"),
        (f"reasons: {{hang: {{refund: {HUGE}%}}}}", "is not a share"),
        (f"reasons: {{hang: {{count: {HUGE}}}}}", "is not a count"),
        ("reasons: {hang: {backoff: 5}}", "5 has no unit"),
        ("reasons: {hang: {backoff: 11min}}", "a backoff grows from 660 s"),
        ("reasons: {hang: {refund: 150%}}", "is not a share"),
        ("reasons: {hang: {refund: much}}", "is not a share"),
        ("reasons: {hang: {remedy: reboot}}", "'reboot' is not a remedy"),
        ("reasons: {hang: {counts_as: rank_lost_secondary}}", "share only the debits"),
        ("reasons: {hang: {fingerprint_limited: no}}", "'no' is neither true nor false"),
        ("reasons: {hang: {other_node_from: 0}}", "0th end"),
        ("reasons: {image_pull: {count: 3}}", "`time: none` takes it away"),
        ("scheduling: {order: fifoo}", "did you mean fifo? There are: fifo, priority, fair."),
        ("scheduling: {placement: tight}", "there are: pack, spread, balanced, group, locality."),
        ("scheduling: {sharing: time}", "time slicing is not for gangs"),
        ("scheduling: {sharing: some}", "'some' is not a way to share a device"),
        ("scheduling: {default_class: singel}", "did you mean single?"),
        ("scheduling: {half_life: 0s}", "A half-life is longer than nothing"),
        ("scheduling: {half_life: 7}", "7 has no unit"),
        ("classes: {swep: {devices: 4}}", "did you mean sweep?"),
        ("classes: {swep: {devices: 4}}", "One of your own needs a priority."),
        ("classes: {sweep: {devices: -1}}", "-1 is not a count"),
        ("classes: {sweep: {queue: 0s}}", "An objective is longer than nothing"),
        ("classes: {sweep: {wait_max: 0s}}", "wait_max is longer than nothing"),
        ("classes: {sweep: {money_per_day: -5}}", "-5 is not a number"),
        ("classes: {sweep: {ranks_min: 0}}", "The smallest gang has 1 rank."),
        ("teams: {vision: {devices: -2}}", "-2 is not a count"),
        ("teams: {vision: {share: 0}}", "A share is above 0"),
        ("owners: {ada: {share: 2}}", "'share' is not a key"),
        ("limits: {fingerprint_limit: many}", "'many' is not a count"),
        ("limits: {device_time_floor: 1}", "1 has no unit"),
        ("limits: {device_hours_factor: 0}", "above zero"),
        ("limits: {memory_growth: 1GiB}", "is not a number"),
        ("storm: {ends: 1}", "at least 2 ends"),
        ("storm: {pause: 2h}", "not above its maximum"),
        ("environment: {torch: maybe}", "write exact, any"),
        ("larger_devices: {a: 3}", "is not a name"),
        ("fault_tolerance: {resons: {}}", "did you mean reasons?"),
        ("fault_tolerance: {limits: {memory_growth: 0.5}}", "More memory means a factor above 1"),
        ("scheduling: {classes: {swep: {devices: 4}}}", "scheduling.classes.swep: 'swep' is not a"),
        ("submission: {required_fields: [oncall]}", "did you mean on_call?"),
        (
            "submission: {required_fields: owner}",
            "'owner' is not a list; write for example [intent].",
        ),
        ("submission: {required_parameters: {any: [lrr]}}", "did you mean lr?"),
        ("submission: {required_parameters: {swep: [lr]}}", "did you mean sweep?"),
        ("tracking: {required_artifacts: [log]}", "did you mean logs?"),
        ("tracking: {media_items: 100001}", "A launch can log 100000 things at most"),
        ("tracking: {media_size: 2TiB}", "A launch can log 1 TiB at most"),
        ("tracking: {media_size: 1000000}", "is not a size"),
        ("monitoring: {notify_stages: [ful]}", "did you mean full?"),
        ("monitoring: {required_signals: [[loss]]}", "each of the list is one name"),
        ("cost: {max_cost: 0}", "A cap in money is more than 0"),
        ("cost: {max_cots: 5}", "did you mean max_cost?"),
        ("cost: {max_cost: 1e13}", "10000000000000.0 is not a number from 0 to 1e+12"),
        ("cost: {max_cost: .nan}", "'.nan' is not a number"),
        ("cost: {max_cost: true}", "true is not a number"),
        ("cost: {max_cost: 2026-01-31}", "'2026-01-31' is not a number"),
        ("submission:", "nothing is given where keys with values belong"),
        ("submission: {required_fields: }", "nothing is not a list"),
        ("submission: {required_fields: [Owner]}", "did you mean owner?"),
        ("Submission: {}", "did you mean submission?"),
        ("promotion: {only_valid: yes}", "'yes' is neither true nor false"),
        ("promotion: {seeds: 99999999999999999999}", "is not a count"),
        ("tuning: {trials: many}", "'many' is not a count"),
        ("tuning: {trials: 0}", "An experiment has 1 trial or more"),
        ("tuning: {devices_per_team: 2}\nclasses: {sweep: {devices_per_team: 3}}", "give it once"),
        ("promotion: {seeds: -1}", "-1 is not a count"),
        ("retention: {delete_after: 7}", "7 has no unit"),
        ("retention: {keep_last: 0}", "The newest checkpoint is always kept"),
        ("retention: {keep_last: 20000}", "A run can keep 10000 checkpoints at most"),
        ("retention: {delete_after: 400d}", "A run can keep them 366 d longer at most"),
        ("governance: {may_promote: ada}", "'ada' is not a list"),
        ("governance: {may_promote: [ada, 7]}", "each of the list is one name"),
        ("governance: {teams: {owner: [ada]}}", "owner is the one who declared a run"),
        ("governance: {teams: {a: [ada], b: [a]}}", "'a' in the team b is not a person"),
        ("governance: {teams: {a: [owner]}}", "'owner' in the team a is not a person"),
        ("governance: {teams: {leads: ada}}", "'ada' is not a list"),
    ],
)
def test_what_cannot_hold_is_refused_in_words(text: str, words: str) -> None:
    _, [problem] = read(text)
    assert words in problem.words
    assert problem.line == 1


def test_every_error_is_reported_with_its_own_line() -> None:
    text = """\
reasons:
  node_failure:
    count: -1
    window: 24
    bakoff: 3s
  nodefailure: {count: 3}
  unknown:
    count: 3
    backoff: 10min
    backoff_max: 1min
limits:
  fingerprint_limit: many
  memory_growth: 0.5
storm: {}
storm: {}
other: 3
"""
    assert lines_of(text) == [3, 4, 5, 6, 9, 12, 13, 15, 16]


def test_two_values_that_hold_alone_but_not_together_are_reported_with_the_line_of_their_row() -> (
    None
):
    _, [problem] = read("reasons:\n  hang:\n    backoff: 9min\n    backoff_max: 8min\n")
    assert (problem.line, "grows from 540 s" in problem.words) == (2, True)
    assert good("reasons: {hang: {backoff: 20min, backoff_max: 1h}}").rule(R.HANG).backoff_s == 1200


@given(st.text(max_size=200))
def test_no_text_is_ever_more_than_refused(text: str) -> None:
    policy, problems = read(text)
    assert problems or isinstance(policy, RetryPolicy)


def test_the_table_marks_what_differs_from_the_default() -> None:
    policy = good("reasons: {hang: {count: 9}}")
    changed = [line for line in rule_lines(policy, DEFAULT_POLICY) if line.is_changed]
    assert [(line.reason, line.budget) for line in changed] == [("hang", "9 in 24 h")]
    assert len(rule_lines(policy, DEFAULT_POLICY)) == len(DEFAULT_POLICY.rules)


def test_the_rule_on_nodes_is_read() -> None:
    rule = good(
        """
        nodes:
          reasons: [node_failure, hang]
          at_once: [hang]
          strikes: 3
          window: 14d
          rate_factor: 5
          share: 10%
          quarantine: 6h
          quarantine_max: 3d
          memory: 30d
        """
    ).nodes
    assert (rule.reasons, rule.at_once) == ((R.NODE_FAILURE, R.HANG), (R.HANG,))
    assert (rule.strikes, rule.window_s, rule.rate_factor, rule.share) == (3, 14 * DAY, 5.0, 0.1)
    assert (rule.quarantine_s, rule.quarantine_s_max) == (21_600.0, 3 * DAY)
    assert rule.memory_s == 30 * DAY
    off = good("nodes: {strikes: none}")
    assert off.nodes.strikes is None
    assert "a node's quarantine: by a person only" in list(limit_lines(off))
    assert any("2 strikes in 7 d" in line for line in limit_lines(DEFAULT_POLICY))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("nodes:\n  strikes: 0", 2, "from 1 strike on"),
        ("nodes:\n  window: 7", 2, "has no unit"),
        ("nodes:\n  share: 3", 2, "is not a share"),
        ("nodes:\n  reasons: node_failure", 2, "is not a list"),
        ("nodes:\n  reasons: [hagn]", 2, "did you mean hang"),
        ("nodes:\n  reasons: [[hang]]", 2, "each of the list is one"),
        ("nodes:\n  strikes: 2\n  reasons: [hang]", 3, "must be one of its reasons"),
        ("nodes:\n  quarantine: 30d", 2, "not above its maximum"),
        ("nodes:\n  strike: 2", 2, "did you mean strikes"),
        ("nodes: 3", 1, "keys with values"),
    ],
)
def test_what_is_wrong_with_the_rule_on_nodes_is_reported_with_its_line(
    text: str, line: int, words: str
) -> None:
    [problem] = read(text)[1]
    assert problem.line == line
    assert words in problem.words
