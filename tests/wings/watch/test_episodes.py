"""When an episode of a rule begins and ends: nothing twice, nothing for ever."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.histories import History
from tests.wings.watch.health_cases import training
from tracks_dagster.review.lights import Colour, Finding, Question
from tracks_dagster.track import names
from tracks_dagster.track.bodies import Alert, AlertCleared
from tracks_dagster.track.records import Kind
from tracks_dagster.wings.watch.health.rules import (
    EPISODE_S_MIN,
    EPISODES_MAX,
    RULES,
    Begin,
    End,
    next_episode,
    severity_of,
)


def flat(severity: Colour = Colour.YELLOW) -> Finding:
    return Finding(
        rule="validation_flat",
        severity=severity,
        light=Question.IMPROVING,
        sentence="It has not been better.",
        numbers={"evaluations": 3},
    )


def slow(*ranks: int) -> Finding:
    return Finding(
        rule="slow_rank",
        severity=Colour.YELLOW,
        light=Question.HEALTHY,
        sentence="Local.",
        numbers={"ranks": list(ranks)},
        about=tuple(f"rank {rank}" for rank in ranks),
    )


class Watched:
    """A run with its watcher: every look records what begins and ends, until nothing does."""

    def __init__(self, history: History) -> None:
        self.history = history

    def look(
        self, *findings: Finding, clear: tuple[str, ...] = (), after_s: float = 0.0
    ) -> list[str]:
        """Return what was recorded, "+rule" or "-rule"."""
        self.history.at += timedelta(seconds=after_s)
        done: list[str] = []
        for _ in range(10):
            match next_episode(self.history.state, findings, clear, self.history.at):
                case Begin(alert=alert, attempt_id=attempt_id):
                    self.history.add(Kind.ALERT, alert, attempt_id=attempt_id)
                    done.append(f"+{alert.rule}")
                case End(alert=alert_, cleared=cleared):
                    self.history.add(Kind.ALERT_CLEARED, cleared, attempt_id=alert_.attempt_id)
                    done.append(f"-{cleared.rule}")
                case None:
                    return done
        raise AssertionError(f"it never ends: {done}")

    @property
    def open_rules(self) -> list[str]:
        return [each.body.rule for each in self.history.state.open_alerts]


@pytest.fixture
def run() -> Watched:
    return Watched(training())


def test_an_episode_begins_once_and_ends_once_when_the_rule_is_clear(run: Watched) -> None:
    assert run.look(flat()) == ["+validation_flat"]
    assert run.look(flat()) == []
    [alert] = run.history.state.open_alerts
    assert alert.attempt_id == 1
    assert (alert.body.severity, alert.body.light) == ("yellow", "improving")
    assert alert.body.data == {"evaluations": 3}
    assert run.look(clear=("validation_flat",), after_s=EPISODE_S_MIN) == ["-validation_flat"]
    assert run.look(clear=("validation_flat",), after_s=EPISODE_S_MIN) == []
    [over] = run.history.state.alerts
    assert (over.cleared_why, over.is_open) == ("The rule no longer holds.", False)


def test_what_cannot_be_judged_ends_nothing(run: Watched) -> None:
    run.look(flat())
    assert run.look(after_s=3600) == []
    assert run.open_rules == ["validation_flat"]


def test_an_episode_lasts_a_minute_and_a_rule_that_flaps_falls_silent(run: Watched) -> None:
    assert run.look(flat()) == ["+validation_flat"]
    assert run.look(clear=("validation_flat",), after_s=EPISODE_S_MIN - 20) == []
    for _ in range(50):
        run.look(flat(), after_s=EPISODE_S_MIN)
        run.look(clear=("validation_flat",), after_s=EPISODE_S_MIN)
    assert len(run.history.state.alerts) == EPISODES_MAX
    run.history.end("preempted", last_step=3).open().place().restore()
    assert run.look(flat()) == ["+validation_flat"]  # of another attempt


def test_yellow_that_becomes_red_is_one_more_record_and_the_yellow_one_is_over(
    run: Watched,
) -> None:
    run.look(flat())
    assert run.look(flat(Colour.RED)) == ["+validation_flat", "-validation_flat"]
    [red] = run.history.state.open_alerts
    assert severity_of(red.body) == "red"
    assert run.history.state.alerts[0].cleared_why == f"It became red: record {red.seq}."
    assert run.look(flat()) == []  # yellow again: the red one ends when the rule does


def test_another_rank_is_another_episode_and_one_more_is_not(run: Watched) -> None:
    assert run.look(slow(5)) == ["+slow_rank"]
    assert run.look(slow(5, 6), after_s=EPISODE_S_MIN) == []
    assert run.look(slow(7), after_s=EPISODE_S_MIN) == ["+slow_rank", "-slow_rank"]
    [alert] = run.history.state.open_alerts
    assert alert.body.data["about"] == ["rank 7"]


def test_an_alert_of_an_attempt_ends_with_it_and_without_a_record_of_its_own(run: Watched) -> None:
    run.look(flat(), slow(5))
    run.history.end("preempted", last_step=3)
    assert run.open_rules == []
    assert {a.cleared_why for a in run.history.state.alerts} == {"Attempt 1 ended."}
    assert {a.cleared_seq for a in run.history.state.alerts} == {run.history.state.head.seq}


def test_what_was_raised_between_attempts_ends_when_a_gang_is_placed(run: Watched) -> None:
    run.history.end("preempted", last_step=3)
    storm = Alert(rule=names.ALERT_POOL_STORM, text="A storm.")
    run.history.add(Kind.ALERT, storm, attempt_id=1)
    run.history.open()
    assert run.open_rules == [names.ALERT_POOL_STORM]
    run.history.place()
    assert run.open_rules == []


def test_an_alert_of_the_run_outlives_its_attempts_and_ends_with_the_run(run: Watched) -> None:
    cost = Finding(
        rule="cost_cap",
        severity=Colour.YELLOW,
        light=Question.RESOURCES,
        sentence="80 % are spent.",
    )
    run.look(cost)
    assert run.history.state.alerts[0].attempt_id is None
    run.history.commit(40).end("completed", last_step=40).open().place().restore()
    assert run.look(cost) == []
    assert run.open_rules == ["cost_cap"]
    run.history.end("completed", last_step=40).finish()
    assert run.open_rules == []
    run.history.alert("afterwards")
    assert run.open_rules == []  # of a run that is over nothing is open


def test_what_is_raised_before_the_first_attempt_ends_with_its_placement() -> None:
    run = Watched(History().declare())
    late = Finding(
        rule="queue_late", severity=Colour.RED, light=Question.RESOURCES, sentence="Late."
    )
    assert run.look(late) == ["+queue_late"]
    run.history.open().place()
    assert run.open_rules == []


def test_events_begin_elsewhere_and_end_here(run: Watched) -> None:
    failed = Alert(rule=names.ALERT_SAVE_FAILED, text="No space.")
    run.history.add(Kind.ALERT, failed, attempt_id=1)
    carried = Finding(
        rule=names.ALERT_SAVE_FAILED,
        severity=Colour.YELLOW,
        light=Question.HEALTHY,
        sentence="No space.",
    )
    assert run.look(carried) == []  # no second record
    run.history.commit(10)
    assert run.look() == ["-save_failed"]
    missed = Alert(rule=names.ALERT_OBJECTIVE_MISSED, text="Late.")
    run.history.add(Kind.ALERT, missed)
    assert run.look(after_s=23 * 3600) == []
    assert run.look(after_s=2 * 3600) == ["-objective_missed"]


def test_a_clearing_of_what_is_not_open_changes_nothing(run: Watched) -> None:
    run.look(flat())
    body = AlertCleared(rule="validation_flat", alert_seq=99, why="of another")
    run.history.add(Kind.ALERT_CLEARED, body)
    assert run.open_rules == ["validation_flat"]


def test_an_alert_of_another_version_has_its_rules_severity() -> None:
    assert severity_of(Alert(rule=names.ALERT_NO_NODE_LEFT, text="")) == "red"
    assert severity_of(Alert(rule=names.ALERT_NO_NODE_LEFT, text="", severity="purple")) == "red"
    assert severity_of(Alert(rule="of a newer version", text="")) == "yellow"


def test_every_alert_that_is_raised_anywhere_has_its_row() -> None:
    raised = {value for name, value in vars(names).items() if name.startswith("ALERT_")}
    assert raised <= RULES.keys()


def test_a_clock_that_was_set_back_ends_no_episode_early(run: Watched) -> None:
    run.look(flat())
    before: datetime = run.history.at - timedelta(hours=1)
    assert next_episode(run.history.state, (), ("validation_flat",), before) is None
