"""The rules of alerts as a table, and when an episode of one begins and ends. Pure.

A rule holds by what `healthy`, `improving` and `resources` find; an event's alert is raised by who sees
it. How long it has to hold is in the check itself, over steps or seconds that the journal has: nothing
is remembered from one look to the next, so a daemon that is killed anywhere raises nothing twice.

An episode begins with an `alert` and ends with an `alert_cleared`. It ends when the rule is clearly
over: the check asks less of a rule whose alert is open, an episode lasts at least EPISODE_S_MIN, and a
rule begins at most EPISODES_MAX of them in one attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tracks_dagster.attempts.idle import IdleDay
from tracks_dagster.review.lights import Colour, Finding, Question
from tracks_dagster.track import names
from tracks_dagster.track.bodies import Alert, AlertCleared
from tracks_dagster.track.names import ALERT_DEVICE_UNHELD
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.states.alerts import Alerts, AlertState, open_alerts
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.units import about, counted, duration
from tracks_dagster.wings.watch.health import healthy, improving, resources

EPISODE_S_MIN = 60.0
EPISODES_MAX = 20  # of one rule in one attempt; then it flaps, and a person knows
EVENT_FOR = timedelta(days=1)  # after which an event of no attempt is over
RUNBOOKS = "docs/runbooks"
_H, _I, _R = Question.HEALTHY, Question.IMPROVING, Question.RESOURCES
_Y, _RED = Colour.YELLOW, Colour.RED


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row. severity: what an alert has that does not say; where it grows, the lesser one.

    threshold, holds: for people. command: the first to give, with {run}. is_of_run: it outlives the
    attempt in which it begins. is_event: somebody else raises it, and here it only ends.
    """

    name: str
    light: Question
    severity: Colour
    threshold: str
    holds: str
    command: str
    is_of_run: bool = False
    is_event: bool = False

    @property
    def runbook(self) -> str:
        """The page that says what to do, below the checkout."""
        return f"{RUNBOOKS}/{self.name}.md"


def _rule(
    name: str,
    light: Question,
    severity: Colour,
    threshold: str,
    holds: str,
    command: str,
    **kinds: bool,
) -> Rule:
    return Rule(
        name=name,
        light=light,
        severity=severity,
        threshold=threshold,
        holds=holds,
        command=command,
        **kinds,
    )


_AT_ONCE = "at once"
_STEPS = "20 steps"
_EXPLAIN, _STATUS, _LOGS = "tracks explain {run}", "tracks status {run}", "tracks logs {run}"

# A table, to be read by the line:
# fmt: off
_RULES = (
    _rule(healthy.NO_GANG, _H, _RED, "an open attempt whose journal is silent",
          f"max({duration(healthy.GONE_S_MIN)}, {healthy.GONE_GREY:g} × the silence of a grey light)",
          "tracks triage {run}"),
    _rule(healthy.RETRIES_IN_AN_HOUR, _H, _RED, f"{healthy.RETRIES} retries by the policy",
          "within 1 h", _EXPLAIN, is_of_run=True),
    _rule(healthy.GRADIENT_NORM, _H, _RED, f"gradient norm above {healthy.NORM_FACTOR:g} × its median",
          f"{healthy.NORM_STEPS} steps", _LOGS),
    _rule(healthy.COMMIT_LATE, _H, _Y,
          f"no commit for {healthy.COMMIT_YELLOW:g} × the cadence; red: {healthy.COMMIT_RED:g} ×",
          "and at least 1 min (2 min) more than the cadence", "tracks checkpoints list {run}"),
    _rule(names.ALERT_SLOW_RANK, _H, _Y, "the fastest rank's own time below 0.75 of a rank's own",
          _STEPS, "tracks health {run}"),
    _rule(healthy.SAME_FAILURE, _H, _Y,
          f"{healthy.SAME_FAILURES} failures with one fingerprint, and no commit beyond them",
          _AT_ONCE, _EXPLAIN, is_of_run=True),
    _rule(names.ALERT_LOSS_SPIKE, _H, _Y, "the modified z-score of a loss above 12",
          f"within {healthy.SPIKE_STEPS} steps", "tracks health {run}", is_event=True),
    _rule(names.ALERT_SAVE_FAILED, _H, _Y, "a save failed, and none has succeeded since",
          _AT_ONCE, "tracks checkpoints list {run}", is_event=True),
    _rule(improving.LOSS_FLAT, _I, _Y,
          f"the loss does not fall by {improving.FLAT_WITHIN:.1%} any more",
          "the newest max(64, 10 %) losses", "tracks health {run}"),
    _rule(names.ALERT_VALIDATION_FLAT, _I, _Y, "the best of what is evaluated not better by 0.1 %",
          f"{improving.FLAT_YELLOW} evaluations; red: {improving.FLAT_RED}", "tracks health {run}"),
    _rule(improving.BEST_UNKNOWN, _I, _Y,
          "no checkpoint has the metric by which the best are to be kept", _AT_ONCE,
          "tracks checkpoints list {run}"),
    _rule(improving.DIVERGENCE, _I, _RED,
          "losses far above their recent range (modified z-score above 10)",
          f"{improving.DIVERGING_STEPS} steps, or until the onset of the last one is passed", _LOGS),
    _rule(names.ALERT_STEP_TIME, _R, _Y,
          "a step 20 % longer than the median of steps 11 to 60 of the attempt, and no slow rank",
          _STEPS, "tracks profile {run}"),
    _rule(names.ALERT_DATA_WAIT, _R, _Y, "more than 20 % of a step is waiting for data", _STEPS,
          "tracks profile {run}"),
    _rule(names.ALERT_DEVICE_UNDERUSED, _R, _RED, f"a device used below {resources.USE_PERCENT} %",
          duration(resources.USE_S), "tracks profile {run}"),
    _rule(resources.DEVICE_IDLE, _R, _RED, "a device is held and no step is finished",
          duration(resources.IDLE_S), "tracks triage {run}"),
    _rule(resources.QUEUE_LATE, _R, _RED, "not started within its class's objective for the queue",
          _AT_ONCE, _STATUS),
    _rule(resources.THROUGHPUT_LOW, _R, _Y,
          "a step 20 % longer than the same config took before on as many devices of the kind",
          f"{resources.THROUGHPUT_STEPS} steps", "tracks profile {run}"),
    _rule(resources.COST_CAP, _R, _Y,
          f"{resources.CAP_YELLOW:.0%} of its cap in money are spent; red: {resources.CAP_RED:.0%}",
          _AT_ONCE, _EXPLAIN, is_of_run=True),
    _rule(names.ALERT_DEVICE_UNHELD, _R, _Y, "an accelerator of this machine that nobody holds",
          "1 h", "tracks pool devices"),
    _rule(names.ALERT_RETRY_STORM, _H, _Y, "retried again and again without a new commit", _AT_ONCE,
          _EXPLAIN, is_event=True),
    _rule(names.ALERT_POOL_STORM, _H, _Y, "a pool interrupts many runs at once", _AT_ONCE,
          "tracks pool", is_event=True),
    _rule(names.ALERT_NO_NODE_LEFT, _H, _RED, "every node that is known is excluded", _AT_ONCE,
          "tracks pool", is_event=True),
    _rule(names.ALERT_CHECKPOINT_UNREAD, _H, _RED, "the checkpoint that decides cannot be read",
          "1 h", "tracks checkpoints verify {run}", is_event=True),
    _rule(names.ALERT_FIRST_ATTEMPT_HELD, _H, _Y, "its first attempt may not start", _AT_ONCE,
          _STATUS, is_event=True),
    _rule(names.ALERT_OBJECTIVE_MISSED, _R, _Y, "its class misses an objective on the last day",
          _AT_ONCE, "tracks slo --last 1d", is_of_run=True, is_event=True),
)
# fmt: on
RULES: Mapping[str, Rule] = {rule.name: rule for rule in _RULES}


def severity_of(alert: Alert) -> str:
    """Return how grave an alert is, yellow or red: as it says, else by its rule; yellow for a rule
    unknown here."""
    if alert.severity in (Colour.YELLOW, Colour.RED):
        return alert.severity
    rule = RULES.get(alert.rule)
    return (rule.severity if rule is not None else Colour.YELLOW).value


def runbook_of(rule: str) -> str | None:
    """Return the page that says what to do, below the checkout; None for a rule unknown here."""
    known = RULES.get(rule)
    return None if known is None else known.runbook


def command_of(rule: str, run_id: str | None) -> str:
    """Return the first command to give; what explains the run, for a rule unknown here."""
    known = RULES.get(rule)
    return (known.command if known is not None else _EXPLAIN).format(run=run_id or "RUN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """An episode to begin. attempt_id: of the alert, None for one that outlives the attempt."""

    alert: Alert
    attempt_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """An episode to end."""

    alert: AlertState
    cleared: AlertCleared


def next_episode(
    state: RunState, findings: tuple[Finding, ...], clear: Collection[str], now: datetime
) -> Begin | End | None:
    """Return the next episode that has to begin or to end; None where the record is as it should be."""
    for finding in findings:
        if _has_to_begin(state, finding):
            attempt = state.open_attempt
            of_run = RULES[finding.rule].is_of_run or attempt is None
            attempt_id = None if of_run or attempt is None else attempt.attempt_id
            return Begin(alert=alert_of(finding), attempt_id=attempt_id)
    by_rule = {finding.rule: finding for finding in findings}
    for alert in state.open_alerts:
        why = _why_over(state, alert, by_rule.get(alert.body.rule), clear, now)
        if why is not None:
            body = AlertCleared(rule=alert.body.rule, alert_seq=alert.seq, why=why)
            return End(alert=alert, cleared=body)
    return None


def alert_of(finding: Finding) -> Alert:
    """Return the alert that begins the episode of a finding."""
    data = {**finding.numbers, **({"about": list(finding.about)} if finding.about else {})}
    return Alert(
        rule=finding.rule,
        text=finding.sentence,
        data=data,
        severity=finding.severity.value,
        light=finding.light.value,
    )


def _has_to_begin(state: RunState, finding: Finding) -> bool:
    rule = RULES.get(finding.rule)
    if rule is None or rule.is_event:
        return False
    of_rule = [each for each in state.alerts if each.body.rule == finding.rule]
    if any(each.is_open and _is_same(each, finding) for each in of_rule):
        return False
    attempt = state.open_attempt
    since = attempt.opened_seq if attempt is not None and not rule.is_of_run else 0
    return sum(each.seq > since for each in of_rule) < EPISODES_MAX


def _is_same(alert: AlertState, finding: Finding) -> bool:
    """Whether a finding is the alert's episode: of something that it names, and no graver."""
    named = set(alert.body.data.get("about", ()))
    is_graver = finding.severity is Colour.RED and severity_of(alert.body) != Colour.RED
    return not is_graver and (not finding.about or bool(named & set(finding.about)))


def _why_over(
    state: RunState,
    alert: AlertState,
    finding: Finding | None,
    clear: Collection[str],
    now: datetime,
) -> str | None:
    """Say why an open episode is over; None while it is not, or nobody can say."""
    name, rule = alert.body.rule, RULES.get(alert.body.rule)
    if rule is not None and rule.is_event:
        return _why_event_over(state, alert, name in clear, now)
    newer = [each for each in state.open_alerts if each.body.rule == name and each.seq > alert.seq]
    if any(_is_graver(each, alert) for each in newer):
        return f"It became red: record {newer[-1].seq}."
    if (now - alert.at).total_seconds() < EPISODE_S_MIN:
        return None
    if name in clear:
        return "The rule no longer holds."
    if finding is not None and finding.about and not _is_about(alert, finding):
        return f"It holds for {', '.join(finding.about)} now."
    return None


def _is_graver(newer: AlertState, alert: AlertState) -> bool:
    return severity_of(newer.body) == Colour.RED != severity_of(alert.body)


def _is_about(alert: AlertState, finding: Finding) -> bool:
    return bool(set(alert.body.data.get("about", ())) & set(finding.about))


def _why_event_over(
    state: RunState, alert: AlertState, is_clear: bool, now: datetime
) -> str | None:
    """Say why what others raised is over: a later commit, later steps, or a day."""
    if is_clear:
        return "The rule no longer holds."
    match alert.body.rule:
        case names.ALERT_SAVE_FAILED if any(c.seq > alert.seq for c in state.checkpoints):
            return "A later save succeeded."
        case names.ALERT_OBJECTIVE_MISSED if now - alert.at > EVENT_FOR:
            return "A day has passed."
    return None


# --- of a machine, no run: its episodes are in the pool's track -------------------------------------


UNHELD_S = 3600.0


def next_of_machine(alerts: Alerts, day: IdleDay, now: datetime) -> Alert | AlertCleared | None:
    """Return the next episode to begin or to end. alerts: of the pool's track; day: of its devices."""
    idle_s = unheld_s(day, now)
    long = tuple(name for name, seconds in idle_s.items() if seconds >= UNHELD_S)
    standing = [each for each in open_alerts(alerts) if each.body.rule == ALERT_DEVICE_UNHELD]
    for each in standing:
        named = set(each.body.data.get("about", ()))
        lasted_s = (now - each.at).total_seconds()
        if not named & set(idle_s) and lasted_s >= EPISODE_S_MIN:
            return AlertCleared(
                rule=ALERT_DEVICE_UNHELD, alert_seq=each.seq, why="It is held, used or gone."
            )
    alerted = {name for each in standing for name in each.body.data.get("about", ())}
    new = tuple(name for name in long if name not in alerted)
    if not new:
        return None
    longest = max(idle_s[name] for name in new)
    finding = Finding(
        rule=ALERT_DEVICE_UNHELD,
        severity=Colour.YELLOW,
        light=Question.RESOURCES,
        sentence=(
            f"Nobody has held {counted(len(new), 'accelerator')} of {day.node} for {about(longest)}."
        ),
        numbers={"node": day.node, "devices": len(new), "idle_s": round(longest)},
        about=new,
    )
    return alert_of(finding)


def unheld_s(day: IdleDay, now: datetime) -> dict[str, float]:
    """Return how long each device that nobody holds has been so, in seconds, as far as it was seen."""
    return {
        name: max(0.0, (now - parse_time(device.idle_since)).total_seconds())
        for name, device in day.devices.items()
        if device.idle_since is not None
    }
