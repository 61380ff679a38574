"""Why an attempt ended, from its evidence alone. Pure.

Each rule looks for one kind of signal; `RULES` is their order, by the weights in docs/reasons.md.
The first that finds something gives the verdict. The others are asked as well, and a finding of another
reason is recorded in `against`. To teach it a new cause, add a row to `rules.numbers`,
`rules.machines`, `rules.processes`, `rules.software` or `rules.capacity` (words in logs and last words)
or to `rules.control_words` (those of control planes and kernels), and raise the version: a receipt
names it, and `tracks reclassify` reads the evidence of older ones again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from tracks_dagster.reasons.evidence import START_REFUSED_RULE, Evidence, Verdict
from tracks_dagster.reasons.logs import readable
from tracks_dagster.reasons.rules import control as rules_control
from tracks_dagster.reasons.rules import ranks as rules_ranks
from tracks_dagster.reasons.rules import series as rules_series
from tracks_dagster.reasons.rules import text as rules_text
from tracks_dagster.reasons.rules.cause import NOTHING, Finding
from tracks_dagster.reasons.user_rules import NO_RULES, UserRules, without_vetoed
from tracks_dagster.track.reasons import TerminationReason

LINES_MAX = 8
LINE_CHARACTERS_MAX = 400

CLASSIFIER_VERSION = "10"

AGAINST_MAX = 5


class Weight(IntEnum):
    """How much a kind of signal weighs, the smallest number most: docs/reasons.md."""

    AS_MEANT = 0  # every rank says that it is done
    INTENT = 1  # a person or a policy asked for it
    CONTROL_PLANE = 2  # a scheduler's condition, or a line with its mark
    HARDWARE = 3  # the kernel's lines, a boot id that changed
    CONTAINER = 4  # container and cgroup status
    LAST_WORD = 5  # what the trainer itself says, by type
    EXCEPTION = 6  # the earliest initiating exception over all ranks
    EXIT = 7  # exit code and signal
    VANISHED = 8  # gone without a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of signal: what it weighs, and how it is found.

    reads_times: whether it needs the lines as they were, with what stands before their words.
    """

    name: str
    weight: Weight
    find: Callable[[Evidence], Finding | None]
    reads_times: bool = False


RULES: tuple[Rule, ...] = (
    # Not a failure: every rank says that it has done all its steps, whatever came at the same time.
    Rule(name="completed_word", weight=Weight.AS_MEANT, find=rules_ranks.completed),
    Rule(name="stop_requested", weight=Weight.INTENT, find=rules_control.stop_requested),
    Rule(name="dagster_cancelled", weight=Weight.INTENT, find=rules_control.dagster_cancelled),
    Rule(name="slurm_cancelled", weight=Weight.INTENT, find=rules_control.slurm_cancelled),
    Rule(name=START_REFUSED_RULE, weight=Weight.INTENT, find=rules_control.start_refused),
    Rule(name="oom_before_condition", weight=Weight.CONTROL_PLANE, find=rules_control.oom_first),
    Rule(name="condition", weight=Weight.CONTROL_PLANE, find=rules_control.condition),
    Rule(name="slurm_state", weight=Weight.CONTROL_PLANE, find=rules_control.slurm_state),
    Rule(name="scheduler_line", weight=Weight.CONTROL_PLANE, find=rules_control.scheduler_line),
    Rule(name="node_rebooted", weight=Weight.HARDWARE, find=rules_control.rebooted),
    Rule(name="kernel_hardware", weight=Weight.HARDWARE, find=rules_control.kernel_hardware),
    Rule(name="container_oom_killed", weight=Weight.CONTAINER, find=rules_control.container_oom),
    Rule(name="cgroup_oom_kill", weight=Weight.CONTAINER, find=rules_control.cgroup_oom),
    Rule(name="kernel_oom_killer", weight=Weight.CONTAINER, find=rules_control.kernel_oom),
    Rule(name="hung", weight=Weight.CONTAINER, find=rules_control.hung),
    Rule(name="typed_last_word", weight=Weight.LAST_WORD, find=rules_ranks.typed_last_word),
    Rule(name="known_cause", weight=Weight.EXCEPTION, find=rules_text.known_cause),
    Rule(name="evaluation", weight=Weight.EXCEPTION, find=rules_text.evaluation),
    Rule(name="exception", weight=Weight.EXCEPTION, find=rules_text.any_exception),
    Rule(name="requeued_itself", weight=Weight.EXCEPTION, find=rules_control.requeued_itself),
    Rule(name="symptom", weight=Weight.EXCEPTION, find=rules_text.symptom),
    Rule(name="job_cancelled", weight=Weight.EXCEPTION, find=rules_control.job_cancelled),
    Rule(name="exited_early", weight=Weight.EXCEPTION, find=rules_ranks.exited_early),
    Rule(name="cascade_only", weight=Weight.EXCEPTION, find=rules_text.cascade_only),
    Rule(name="crash_signal", weight=Weight.EXIT, find=rules_ranks.crash_signal),
    Rule(name="survived_cause", weight=Weight.EXIT, find=rules_text.survived_cause),
    Rule(name="diverged", weight=Weight.EXIT, find=rules_series.diverged),
    Rule(name="no_new_step", weight=Weight.EXIT, find=rules_series.no_new_step, reads_times=True),
    Rule(name="waited_for", weight=Weight.EXIT, find=rules_text.waited_for),
    Rule(name="drained", weight=Weight.EXIT, find=rules_ranks.drained),
    Rule(name="killed", weight=Weight.EXIT, find=rules_ranks.killed),
    Rule(name="all_exited_0", weight=Weight.EXIT, find=rules_ranks.all_exited_0),
    Rule(name="fenced_only", weight=Weight.EXIT, find=rules_ranks.fenced_only),
    Rule(name="exit_code", weight=Weight.EXIT, find=rules_ranks.other_exit),
    Rule(name="never_started", weight=Weight.VANISHED, find=rules_ranks.never_started),
    Rule(name="vanished", weight=Weight.VANISHED, find=rules_ranks.vanished),
)


USER_RULES_BEFORE = "known_cause"  # a user's rules are asked just before the words that ship


def classifier_version(rules: UserRules = NO_RULES) -> str:
    """Return the version that a receipt names: "3", or "3+rules:ab12cd34" with a user's rules."""
    return f"{CLASSIFIER_VERSION}+rules:{rules.digest}" if rules.digest else CLASSIFIER_VERSION


def classify(evidence: Evidence, rules: UserRules = NO_RULES) -> Verdict:
    """Return the verdict; `unknown` where the evidence does not tell. The same answer every time."""
    read = without_vetoed(readable(evidence), rules)
    found = [
        (rule, finding)
        for rule in _with_users(rules)
        if (finding := rule.find(evidence if rule.reads_times else read)) is not None
    ]
    if not found:
        return Verdict(
            reason=TerminationReason.UNKNOWN.value,
            confidence=NOTHING,
            rule="nothing",
            lines=("There is no evidence of this attempt's end.",),
            root_message="no evidence",
        )
    rule, finding = found[0]
    against = [_against(each, other) for each, other in found if _differs(other, finding)]
    return Verdict(
        reason=finding.reason.value,
        confidence=finding.confidence,
        rule=rule.name if finding.row is None else f"{rule.name}/{finding.row}",
        lines=tuple(_shortened(line) for line in finding.lines[:LINES_MAX]),
        root_message=_shortened(finding.root_message),
        against=tuple(against[:AGAINST_MAX]),
    )


def _with_users(rules: UserRules) -> Iterator[Rule]:
    """Yield the rules in order, a user's own in their place."""
    for rule in RULES:
        if rule.name == USER_RULES_BEFORE and rules.rules:
            find = partial(rules_text.user_rule, rules=rules)
            yield Rule(name="user_rule", weight=Weight.EXCEPTION, find=find)
        yield rule


def _differs(other: Finding, verdict: Finding) -> bool:
    """Whether a weaker finding has another reason; `unknown` contradicts nothing."""
    return other.reason not in (verdict.reason, TerminationReason.UNKNOWN)


def _against(rule: Rule, other: Finding) -> str:
    return _shortened(f"{rule.name} speaks for {other.reason}: {' | '.join(other.lines[:1])}")


def _shortened(text: str) -> str:
    return text if len(text) <= LINE_CHARACTERS_MAX else f"{text[: LINE_CHARACTERS_MAX - 1]}…"
