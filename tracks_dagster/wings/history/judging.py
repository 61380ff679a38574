"""From what a source says to an attempt with our verdict, by the same `classify` as our own. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from tracks_dagster.reasons.classify import classifier_version, classify
from tracks_dagster.reasons.evidence import Evidence, Verdict
from tracks_dagster.reasons.fingerprints import fingerprint
from tracks_dagster.reasons.rules.cause import LIKELY
from tracks_dagster.reasons.user_rules import UserRules
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.imported import ImportedAttempt, ImportedNode
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, canonical_json, format_time, sha256_hex
from tracks_dagster.track.text.redact import Redact, redact_json
from tracks_dagster.track.text.safe_text import valid_text
from tracks_dagster.wings.history.curves import newest_values
from tracks_dagster.wings.history.source import Point, SourceAttempt, SourceNode, uid_of

RUN_ID_CHARACTERS_MAX = 40
TITLE_CHARACTERS_MAX = 100
BY_SOURCE = "source_said_completed"  # the rule of such a verdict
NO_FAILURE = frozenset({"all_exited_0", "vanished", "nothing", "never_started"})
CONFIG_BYTES_MAX, METRICS_BYTES_MAX = 6 * 1024, 3 * 1024  # that a record has room for
VALUE_CHARACTERS_MAX = 300  # of a text in a config
NODES_MAX = 300  # that a record names; the raw row has them all
NODES_BYTES_MAX, EXCLUDED_BYTES_MAX = 8 * 1024, 4 * 1024
NAME_BYTES_MAX = 200  # of an owner, a team, a kind of device
INT_MAX = 2**63  # beyond it a number is stored as its digits
ROW_CHARACTERS_MAX = 4000  # of a line about nodes, which is stored with each of them
VERDICTS_MAX = 10_000  # kept: a month of a cluster has a few hundred kinds of ends
TEXTS_MAX, TEXT_CHARACTERS_MAX = 50_000, 200  # kept: names of nodes, runs and people come again
LINES_MAX, LINE_BYTES_MAX, ROOT_BYTES_MAX = 12, 400, 1000
# Nearly all of a row of Slurm, and no secret by value or shape: short words and numbers, steps, times.
_PLAIN = re.compile(
    r"\w{0,5}|[A-Za-z]{1,9}|\d{6,9}|\d{1,9}\.(?:batch|extern|\d{1,4})|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
    r"|(?:\d{1,3}-)?\d{1,2}(?::\d\d){1,2}(?:\.\d{3})?",
    re.ASCII,
)
_NOT_OF_AN_ID = re.compile(r"[^a-z0-9.-]+|\.(?![a-z0-9-])")


class Judge:
    """Judges the attempts of one history. Ends that look alike are judged once."""

    def __init__(self, history: str, rules: UserRules, clean: Redact) -> None:
        self._history = history
        self._rules = rules
        self._redact = clean
        self._short_cleaned = lru_cache(TEXTS_MAX)(lambda text: clean(valid_text(text)))
        self._verdicts: dict[Json, Verdict] = {}
        self._fingerprints: dict[Json, str] = {}
        self._version = classifier_version(rules)

    def imported(self, attempt: SourceAttempt) -> ImportedAttempt:
        """Return the attempt as it is stored; ValueError, in words, for one that cannot have been."""
        _check_times(attempt)
        evidence = self._evidence(attempt)
        verdict = self._verdict(attempt, evidence)
        unknown = dict(attempt.unknown)
        nodes = self._nodes(attempt.nodes, unknown)
        config = self._config(attempt.config, unknown)
        metrics = self._finite(attempt.metrics or newest_values(attempt.points), unknown)
        raw = self._raw(attempt.row)
        asked_at = min(attempt.submitted_at, attempt.started_at or attempt.ended_at)
        return ImportedAttempt(
            uid=uid_of(self._history, attempt.id),
            run_id=run_id_of(self._history, attempt.run, self._clean),
            title=self._clean(attempt.title)[:TITLE_CHARACTERS_MAX] or "unnamed",
            owner=self._name(attempt.owner) or "unknown",
            team=self._name(attempt.team) or "unknown",
            pool=pool_of(self._history),
            cause=attempt.cause,
            submitted_at=format_time(asked_at),
            started_at=evidence.started_at,
            ended_at=format_time(attempt.ended_at),
            reason=verdict.reason,
            confidence=verdict.confidence,
            rule=verdict.rule,
            lines=tuple(_short(line, LINE_BYTES_MAX) for line in verdict.lines[:LINES_MAX]),
            root_message=_short(verdict.root_message, ROOT_BYTES_MAX),
            classifier_version=self._version,
            fingerprint=self._fingerprint(verdict, config, nodes),
            devices=attempt.devices,
            device_class=self._name(attempt.device_class),
            device_seconds=_device_seconds(attempt),
            evidence={**to_json(evidence), "source": raw, "unknown": unknown},
            nodes=nodes,
            excluded_nodes=self._named(attempt.excluded_nodes, EXCLUDED_BYTES_MAX),
            config=config,
            resumed_step=attempt.resumed_step,
            last_step=attempt.last_step,
            unknown=unknown,
            amount=(attempt.values or len(attempt.points), _size(raw, evidence)),
            metrics=_fitting(metrics, METRICS_BYTES_MAX, "metrics", unknown),
        )

    def node(self, given: SourceNode) -> ImportedNode:
        """Return what a source says of a node as it is stored."""
        seen_at = format_time(given.seen_at)
        times = (given.since_at, given.booted_at)
        since_at, booted_at = (None if at is None else format_time(at) for at in times)
        what = (given.program, given.node, seen_at, *given.out, given.reason, since_at, booted_at)
        return ImportedNode(
            uid=uid_of(self._history, "/".join(map(str, what))),
            pool=pool_of(self._history),
            node=self._clean(given.node),
            program=given.program,
            state=self._clean(given.state),
            out=tuple(map(self._clean, given.out)),
            reason=_short(self._clean(given.reason), ROOT_BYTES_MAX),
            set_by=self._clean(given.set_by),
            since_at=since_at,
            seen_at=seen_at,
            booted_at=booted_at,
            gres=self._clean(given.gres),
            row=self._clean(given.row)[:ROW_CHARACTERS_MAX],
        )

    def points(self, given: Sequence[Point]) -> Sequence[Point]:
        """Return the points as they are stored: without secrets in their names."""
        names = {name: self._clean(name) for name in {each.name for each in given}}
        if all(name == cleaned for name, cleaned in names.items()):
            return given
        return [each._replace(name=names[each.name]) for each in given]

    def _clean(self, text: str) -> str:
        """Return a text made valid, without secrets."""
        if len(text) <= TEXT_CHARACTERS_MAX:
            return self._short_cleaned(text)
        return self._redact(valid_text(text))

    def _name(self, text: str) -> str:
        """Return the name of an owner, a team or a kind of device."""
        return _short(self._clean(text), NAME_BYTES_MAX)

    def _finite(self, values: Mapping[str, Json], unknown: dict[str, str]) -> dict[str, Json]:
        """Return the metrics that are finite numbers; says in `unknown` how many are not."""
        found = dict[str, Json]()
        for name, value in values.items():
            with suppress(TypeError, ValueError, OverflowError):
                if math.isfinite(number := float(value)):
                    found[self._clean(name)] = number
        if len(found) < len(values):
            unknown["metrics"] = (
                f"{len(values) - len(found)} of {len(values)} are not finite numbers"
            )
        return found

    def _named(self, nodes: Sequence[str], bytes_max: int) -> tuple[str, ...]:
        """Return as many of the nodes as a record has room for, the first ones."""
        found, size = list[str](), 0
        for node in map(self._clean, nodes[:NODES_MAX]):
            size += len(canonical_json(node)) + 1
            if size > bytes_max:
                break
            found.append(node)
        return tuple(found)

    def _nodes(self, nodes: Sequence[str], unknown: dict[str, str]) -> tuple[str, ...]:
        """Return the nodes that a record has room for; says in `unknown` how many there are."""
        named = self._named(nodes, NODES_BYTES_MAX)
        if len(named) < len(nodes):
            unknown["nodes"] = f"of {len(nodes)} nodes the first {len(named)} are named here"
        return named

    def _config(self, given: Mapping[str, Json], unknown: dict[str, str]) -> dict[str, Json]:
        """Return a config as a record has it: flat, short, without secrets."""
        cleaned = redact_json(dict(_flat(given)), self._clean)
        short = {
            self._clean(key): value[:VALUE_CHARACTERS_MAX] if isinstance(value, str) else value
            for key, value in cleaned.items()
        }
        return _fitting(short, CONFIG_BYTES_MAX, "config", unknown)

    def _evidence(self, attempt: SourceAttempt) -> Evidence:
        """Return what the attempt is judged by."""
        return replace(
            self._without_secrets(attempt.evidence),
            started_at=None if attempt.started_at is None else format_time(attempt.started_at),
            finished_at=format_time(attempt.ended_at),
            last_step=attempt.last_step,
        )

    def _without_secrets(self, evidence: Evidence) -> Evidence:
        """Return the evidence without what its logs and messages hold of secrets."""
        of_ranks = any(end.log_tail or end.last_word for end in evidence.ranks)
        of_place = evidence.conditions or evidence.stop or evidence.kernel_lines or evidence.dagster
        if not of_ranks and not of_place:  # as most rows of Slurm, a million
            return evidence
        return from_json(Evidence, redact_json(to_json(evidence), self._clean))

    def _raw(self, row: Json) -> Json:
        """Return the row that an attempt was read from, as it is stored."""
        if not isinstance(row, Mapping):  # rows of Slurm, a million, have no names of secrets
            return self._cleaned(row)
        return self._cleaned(redact_json(row, self._clean))

    def _cleaned(self, value: Json) -> Json:
        """Return a raw row without the secrets that a command line or a log in it may hold."""
        match value:
            case str():
                return value if _PLAIN.fullmatch(value) else self._clean(value)
            case list():
                return [self._cleaned(each) for each in value]
            case Mapping():
                return {self._cleaned(str(key)): self._cleaned(each) for key, each in value.items()}
            case bool() | None:
                return value
            case int() if abs(value) < INT_MAX:
                return value
            case float() if math.isfinite(value):
                return value
        return self._clean(str(value))  # JSON has no nan, no date and no bytes

    def _verdict(self, attempt: SourceAttempt, evidence: Evidence) -> Verdict:
        """Return the verdict on the evidence, or what the source says where that shows no failure."""
        verdict = self._classified(evidence)
        if verdict.rule not in NO_FAILURE:
            return verdict
        if attempt.succeeded is not None:
            return _succeeded(self._clean(attempt.succeeded))
        if attempt.failed is not None:
            words = self._clean(attempt.failed)
            return replace(verdict, lines=(words,), root_message=words)
        return verdict

    def _classified(self, evidence: Evidence) -> Verdict:
        """Return the verdict; where neither order nor words matter, the one on the same end before."""
        if evidence.conditions or len(evidence.ranks) != 1 or evidence.ranks[0].log_tail:
            return classify(evidence, self._rules)
        end = evidence.ranks[0]
        key = (
            *(evidence.slurm_state, evidence.kernel_lines, evidence.placed, evidence.vanished),
            *(end.exit_code, end.signal, end.oom_killed, end.last_word, evidence.last_step),
        )
        if key not in self._verdicts and len(self._verdicts) < VERDICTS_MAX:
            self._verdicts[key] = classify(evidence, self._rules)
        return self._verdicts.get(key) or classify(evidence, self._rules)

    def _fingerprint(
        self, verdict: Verdict, config: Mapping[str, Json], nodes: tuple[str, ...]
    ) -> str:
        key = (verdict.reason, verdict.root_message, str(config), nodes)
        if key not in self._fingerprints:
            if len(self._fingerprints) >= VERDICTS_MAX:
                self._fingerprints.clear()
            self._fingerprints[key] = fingerprint(
                TerminationReason(verdict.reason), verdict.root_message, config, None, nodes
            )
        return self._fingerprints[key]


def _check_times(attempt: SourceAttempt) -> None:
    """Raise ValueError for an attempt that ends before it starts."""
    if attempt.started_at is not None and attempt.ended_at < attempt.started_at:
        raise ValueError(f"it ends at {attempt.ended_at}, before it starts at {attempt.started_at}")


def _device_seconds(attempt: SourceAttempt) -> float:
    """Return the time of all its devices; none of one that never started."""
    if attempt.started_at is None:
        return 0.0
    busy_s = (attempt.ended_at - attempt.started_at).total_seconds()
    return round(busy_s * attempt.devices, 3)


def _size(raw: Json, evidence: Evidence) -> int:
    """Return how many characters a source has of an attempt; a key without a value is none."""
    logs = sum(len(end.log_tail or "") for end in evidence.ranks)
    return logs + len(canonical_json(raw).replace(b"null", b""))


def _flat(given: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Yield keys with plain values; what lies in an object by both names: "optimizer.lr"."""
    for key, value in given.items():
        name = valid_text(f"{prefix}{key}")[:VALUE_CHARACTERS_MAX]
        match value:
            case Mapping():
                yield from _flat(value, f"{name}.")
            case bool() | None:
                yield name, value
            case int() if abs(value) < INT_MAX:
                yield name, value
            case float() if math.isfinite(value):
                yield name, value
            case _:  # cut for good only once it is without secrets
                yield name, str(value)[: 10 * VALUE_CHARACTERS_MAX]


def _short(text: str, bytes_max: int) -> str:
    """Return as much of the text as has so many bytes in a record, from its beginning."""
    if text.isascii() and text.isprintable() and 2 * len(text) <= bytes_max:  # quotes have two
        return text
    text = valid_text(text)
    while (size := len(canonical_json(text)) - 2) > bytes_max:
        text = text[: min(len(text) - 1, len(text) * bytes_max // size)]
    return text


def _fitting(
    values: Mapping[str, Json], bytes_max: int, what: str, unknown: dict[str, str]
) -> dict[str, Json]:
    """Return as many as a record has room for; says in `unknown` how many others there are."""
    found, size = dict[str, Json](), 0
    for name, value in values.items():
        size += len(canonical_json({name: value}))
        if size > bytes_max:
            left = len(values) - len(found)
            unknown[what] = f"a record has no room for {left} of {len(values)}; its row has them"
            break
        found[name] = value
    return found


def _succeeded(words: str) -> Verdict:
    """Return the verdict where nothing speaks for a failure, and the source says success."""
    return Verdict(
        reason=TerminationReason.COMPLETED.value,
        confidence=LIKELY,
        rule=BY_SOURCE,
        lines=(words,),
        root_message="completed",
    )


def pool_of(history: str) -> str:
    """Return the pool of imported attempts and nodes."""
    return f"imported/{history}"


def run_id_of(history: str, run: str, clean: Redact) -> str:
    """Return the id of an imported run, which shows the other system's where that can be an id.

    "slurm", "12.52a" → "slurm.12.52a"; what had to be changed ends in some digits of its sha256, so
    that no two become one.
    """
    plain = _NOT_OF_AN_ID.sub("-", clean(run).lower()).strip("-.") or "run"
    found = f"{history}.{plain}"
    if plain == run and len(found) <= RUN_ID_CHARACTERS_MAX:
        return found
    mark = sha256_hex(run.encode("utf-8", "replace"))[:8]
    return f"{found[: RUN_ID_CHARACTERS_MAX - 9].rstrip('.-')}-{mark}"
