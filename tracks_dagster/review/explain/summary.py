"""The short answer of `tracks explain`: why it ended, what follows, what to do, what it cost. Pure.

One screen, whatever happened: at most `LINES_MAX` rows at any width from 60 on. What a person must read
is at the top and is shortened last; whatever is left out is in `sections`, which `--full` prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil

from tracks_dagster.reasons.logs import newest_own_frame
from tracks_dagster.review.explain.explanation import (
    FAILED_FIRST,
    NOT_KNOWN,
    AttemptExplanation,
    Cost,
    Ended,
    RunExplanation,
)
from tracks_dagster.review.explain.glossary import bucket_label
from tracks_dagster.review.explain.sections import (
    Section,
    clock_time,
    eval_lines,
    format_money,
    history_lines,
    is_evidence_lost,
    judgement,
    span,
)
from tracks_dagster.review.explain.text import (
    broken_lines,
    end_word,
    label_column,
    labelled_lines,
    wrapped,
)
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.exactness import NOT_EXACT
from tracks_dagster.track.text.safe_text import one_line
from tracks_dagster.track.text.units import counted

LINES_MAX = 25  # a terminal of the usual height shows all of it, with the prompt
QUOTED_MAX = 2  # lines of what programs printed
CHARACTERS_MAX = 180  # of one quoted line, note or intent
NODES_MAX = 3
INEXACT_MAX = 2  # newest resumes that were not exact
HISTORY_MAX = 6
BUCKETS_MAX = 3  # those that took longest
CUT = " …"
# Of a decision: what the head and the record already show.
_ENDED_AS = re.compile(r"^Attempt \d+ ended as [^()]+ \(record \d+\)( and is not retried)?: ")
_DECIDED_AS_OF = re.compile(r" Decided as of \S+\.$")
_LONG_WORD = re.compile(r"[^\s`]{65,}")  # longer than a sha256: it would fill lines by itself


@dataclass(frozen=True, slots=True)
class _Part:
    """One part. least: to how many printed rows it may be shortened; 0: it may be left out.

    keeps_end: its first lines go when it is shortened, not its last.
    """

    label: str
    lines: tuple[str, ...]
    least: int = 0
    keeps_end: bool = False


def attempt_summary(attempt: AttemptExplanation, *, width: int) -> str:
    """Return the short answer for one attempt, in lines of at most `width` characters."""
    found = attempt.resumed.continuity
    inexact = [f"continuity {found.sentence}"] if found is not None and found.agree is False else []
    head = [_attempt_head(attempt), *inexact, *_warnings(attempt)]
    parts = [
        *_answer(attempt, attempt.cost),
        *_background(attempt),
        _Part("history", tuple(_history_around(attempt))),
    ]
    return _fitted(head, parts, _more(attempt.key), width)


def run_summary(run: RunExplanation, *, width: int) -> str:
    """Return the short answer for a run, of which the newest attempt is the one to explain."""
    newest = run.attempts[-1] if run.attempts else None
    if newest is None:
        shows = f"`tracks status {run.run_id}` shows what it waits for."
        to_do = run.broken.to_do if run.broken is not None else shows
        parts = [_Part("what to do", (to_do,), 1)]
        return _fitted([_run_state(run), *_warnings(run)], parts, _more(run.run_id), width)
    history = _Part("history", tuple(_newest_history(run)), 1, keeps_end=True)
    parts = [*_answer(newest, run.cost), history, *_background(newest)]
    if newest.next.what == "finished":  # its head says so
        parts = [part for part in parts if part.label != "what follows"]
    if run.gates:
        parts.insert(1, _Part("gates", run.gates, 1))
    if run.promotions:
        parts.insert(1, _Part("promotion", run.promotions[-1:], 1))
    head = _run_head(run, newest)
    inexact = () if NOT_EXACT in head else run.inexact[-INEXACT_MAX:]
    return _fitted([head, *inexact, *_warnings(run)], parts, _more(run.run_id), width)


def _attempt_head(attempt: AttemptExplanation) -> str:
    return f"{attempt.key}: {end_word(attempt)}. {_end_sentence(attempt)}".rstrip()


def _run_head(run: RunExplanation, newest: AttemptExplanation) -> str:
    """Return the state and why; of a run that is not finished how its newest attempt ended."""
    if newest.ended is None or newest.next.what in ("finished", NOT_KNOWN):
        return _run_state(run)
    sentence = newest.ended.sentence[:1].lower() + newest.ended.sentence[1:]
    ended = f"attempt {newest.attempt_id} ended as {newest.ended.reason}: {sentence}"
    return f"{run.run_id}: {run.state}, {ended}"


def _run_state(run: RunExplanation) -> str:
    state = run.state if run.broken is None else f"not known, {run.state} before the break"
    return f"{run.run_id}: {state}. {run.why}".rstrip()


def _end_sentence(attempt: AttemptExplanation) -> str:
    return attempt.ended.sentence if attempt.ended else ""


def _warnings(of: AttemptExplanation | RunExplanation) -> list[str]:
    return [*broken_lines(of.broken, with_to_do=False), *filter(None, [of.waits_for])]


def _answer(attempt: AttemptExplanation, cost: Cost) -> Iterator[_Part]:
    """Yield why it ended, what follows, what to do and what it cost."""
    if attempt.ended is not None:
        yield _Part("why it ended", tuple(_why(attempt, attempt.ended)), 3)
    elif attempt.broken is None:
        yield _Part("how far it is", tuple(_progress(attempt)), 2)
    if attempt.missing and attempt.ended is not None:
        yield _Part("missing", attempt.missing, 1)
    if attempt.ended is not None or attempt.broken is not None:
        yield _Part("what follows", tuple(_follows(attempt)), 2)
    yield _Part("what to do", (_to_do(attempt),), 1)
    if attempt.quarantined and "quarantine" not in attempt.what_to_do:
        yield _Part("quarantine", attempt.quarantined, 1)
    yield _Part("what it cost", tuple(_cost(cost)), 1)
    yield _Part("checkpoint", tuple(_checkpoint(attempt)), 1)


def _progress(attempt: AttemptExplanation) -> Iterator[str]:
    yield attempt.progress.sentence if attempt.progress else "It has not ended."


def _why(attempt: AttemptExplanation, ended: Ended) -> Iterator[str]:
    for line in ended.lines[:QUOTED_MAX]:
        yield f"| {_shortened(line)}"
    if not ended.lines and ended.root_message not in ("", ended.reason):
        yield f"| {_shortened(ended.root_message)}"
    own = newest_own_frame(ended.traceback_tail)
    if own is not None:
        yield from (f"> {line}" for line in ended.traceback_tail[own.start : own.stop])
    yield from (line.partition(";")[0] for line in ended.ranks[:1] if FAILED_FIRST in line)
    yield from (_shortened(line) for line in ended.late[:1])
    at = f"at {clock_time(ended.ended_at)}, rule {ended.rule}, confidence {ended.confidence:.0%}"
    is_clear = not ended.against and not is_evidence_lost(attempt)
    yield f"{at}, nothing against it" if is_clear else at
    if not is_clear:
        yield from (_shortened(line) for line in judgement(attempt, ended))
    if ended.reclassified_why:
        yield f"read again later: {_shortened(ended.reclassified_why)}"


def _follows(attempt: AttemptExplanation) -> Iterator[str]:
    if attempt.next.decision == attempt.what_to_do:
        yield f"{attempt.next.what}: a person has to decide"
        return
    by = f" by {attempt.next.decided_by}" if attempt.next.decided_by else ""
    why = _ENDED_AS.sub("", _DECIDED_AS_OF.sub("", attempt.next.decision))
    yield f"{attempt.next.what}{by}: {why}"


def _to_do(attempt: AttemptExplanation) -> str:
    """Return what to do, without the error that is quoted whole above it."""
    root = attempt.ended.root_message.strip().rpartition("\n")[2].strip() if attempt.ended else ""
    quoted = attempt.ended.lines[:QUOTED_MAX] if attempt.ended else ()
    if not root or not any(root in line and _shortened(line) == line for line in quoted):
        return attempt.what_to_do
    return attempt.what_to_do.removeprefix(f"It ended with: {root}").lstrip(". ")


def _cost(cost: Cost) -> Iterator[str]:
    seconds = sum(cost.seconds.values())
    total_s = sum(cost.device_seconds_by.values())
    devices = (
        f"{total_s / 3600:.2f} device hours"
        if total_s >= 3600
        else counted(round(total_s), "device second")
    )
    kind = f" ({cost.accelerator})" if cost.accelerator else ""
    yield (
        f"{cost.kept_steps} steps kept, {cost.lost_steps} lost; {span(seconds)}, {devices}{kind}"
    )
    longest = sorted(cost.seconds.items(), key=lambda each: -each[1])[:BUCKETS_MAX]
    spent = [f"{bucket_label(name)} {span(taken)}" for name, taken in longest if taken >= 1]
    if spent:
        yield f"most of the time: {', '.join(spent)}"
    if cost.money.amount is not None:
        yield format_money(cost.money)


def _checkpoint(attempt: AttemptExplanation) -> Iterator[str]:
    yield attempt.rests_on
    if attempt.failed_saves:
        newest = _shortened(attempt.failed_saves[-1])
        yield f"saves failed: {len(attempt.failed_saves)}, the last: {newest}"


def _background(attempt: AttemptExplanation) -> Iterator[_Part]:
    """Yield what the attempt was, in the order of its worth at night."""
    if attempt.words:
        newest = attempt.words[-1]
        note = one_line(f"{clock_time(newest.at)} {newest.by}: {newest.text}")
        yield _Part("notes", (_shortened(note),))
    if attempt.evals or (attempt.ended is not None and attempt.ended.reason == "completed"):
        yield _Part("evals", (*list(eval_lines(attempt.evals))[-2:], *attempt.evals_owed))
    yield _Part("what it tried", tuple(_tried(attempt)))
    yield _Part("where", tuple(_where(attempt)))


def _tried(attempt: AttemptExplanation) -> Iterator[str]:
    yield _shortened(attempt.view.declared.intent)
    changes = [f"{each.key} {each.before} → {each.after}" for each in attempt.tried.changes]
    if changes:
        yield _shortened(f"changed: {', '.join(changes)}")


def _where(attempt: AttemptExplanation) -> Iterator[str]:
    ranks, record = attempt.where.ranks, attempt.view.attempt
    nodes = sorted({rank.node for rank in ranks}) or attempt.where.nodes
    more = f" and {len(nodes) - NODES_MAX} more" if len(nodes) > NODES_MAX else ""
    count = f"{len(ranks)} rank" + ("" if len(ranks) == 1 else "s")
    where = f"on {', '.join(nodes[:NODES_MAX])}{more}" if nodes else "machine unknown"
    place = f"{count} {where}" if ranks else where
    source, snapshot = record.resumed_from, record.opened.snapshot
    begun = "began afresh"
    if source is not None:
        begun = f"from step {record.resumed_step} of {_source(attempt, source)}"
    read = "" if snapshot is None else f"; {snapshot.dataset}@{snapshot.snapshot_id[:12]}"
    yield f"{place}; {begun}{read}; {_code(attempt)}"
    yield from map(_shortened, attempt.where.out[:NODES_MAX])


def _source(attempt: AttemptExplanation, ref: CheckpointRef) -> str:
    of_run = "" if ref.run_id == attempt.run_id else f" of {ref.run_id}"
    return f"attempt {ref.attempt_id}{of_run}"


def _code(attempt: AttemptExplanation) -> str:
    code, stored = attempt.code, attempt.view.code_sha256
    if code.git_commit is None:
        return f"version {code.package_version}" if stored is None else f"code {stored[:12]}"
    return f"commit {code.git_commit[:12]}{' with local changes' if code.dirty else ''}"


def _newest_history(run: RunExplanation) -> Iterator[str]:
    older = sum(stretch.count for stretch in run.history[:-HISTORY_MAX])
    if older:
        yield f"{older} older attempts, then"
    yield from history_lines(run.history[-HISTORY_MAX:], run.broken)


def _history_around(attempt: AttemptExplanation) -> Iterator[str]:
    """Yield the stretch of the attempt with its neighbours, and how the run goes on."""
    history, number = attempt.history, attempt.attempt_id
    (at,) = (i for i, each in enumerate(history) if each.first <= number <= each.last)
    near = history[max(0, at - 1) : at + 2]
    yield from history_lines(near, attempt.broken)
    if history[-1] not in near:
        between = sum(each.count for each in history[at + 2 : -1])
        if between:
            yield f"… {between} more, then"
        yield from history_lines(history[-1:], attempt.broken)


def _more(target: str) -> str:
    return f"everything: `tracks explain {target} --full`; the words: `--words`"


def _fitted(head: Iterable[str], parts: Iterable[_Part], more: str, width: int) -> str:
    """Return the text, shortened from its last part up until it fills at most LINES_MAX rows."""
    top = [line for each in head for line in wrapped(each, width).splitlines()]
    end = _printed(_Part("more", (more,)), width)
    shown = [(part, _printed(part, width)) for part in parts if part.lines]
    is_advice = [part.label == "what to do" for part, _ in shown]
    over = _rows(top, width) + _rows(end, width) - LINES_MAX
    over += sum(_rows(lines, width) for _, lines in shown)
    for is_last_resort in (False, True):
        for index in reversed(range(len(shown))):
            part, lines = shown[index]
            if over > 0 and is_advice[index] == is_last_resort:
                rows = _rows(lines, width)
                kept = _cut(part, lines, max(part.least, rows - over), width)
                over -= rows - _rows(kept, width)
                shown[index] = (part, kept)
    if over > 0:  # a record that breaks is described at any length
        top = _cut(None, top, max(1, _rows(top, width) - over), width)
    return "\n".join([*top, *(line for _, lines in shown for line in lines), *end])


def _printed(part: _Part, width: int) -> list[str]:
    lines = (
        _LONG_WORD.sub(lambda word: f"{word[0][:20]}…{word[0][-40:]}", line)
        for line in labelled_lines([Section(part.label, part.lines)])
    )
    return [each for line in lines for each in wrapped(line, width).splitlines()]


def _rows(lines: Iterable[str], width: int) -> int:
    """Return how many rows of a terminal they fill: a command on one line may need more than one."""
    return sum(max(1, ceil(len(line) / width)) for line in lines)


def _cut(part: _Part | None, lines: list[str], rows: int, width: int) -> list[str]:
    """Return the lines that fit in `rows`; at least one, unless `rows` is 0."""
    if rows >= _rows(lines, width) or not rows:
        return lines if rows else []
    keeps_end = part is not None and part.keeps_end
    count = 1
    while _rows(lines[-count - 1 :] if keeps_end else lines[: count + 1], width) <= rows:
        count += 1
    if part is not None and keeps_end:
        first, *rest = lines[-count:]
        return [f"{label_column(part.label)}{first[len(label_column('')) :]}", *rest]
    kept = lines[:count]
    if len(kept[-1]) <= width - len(CUT) or "`" not in kept[-1]:
        kept[-1] = f"{kept[-1][: width - len(CUT)].rstrip()}{CUT}"
    return kept


def _shortened(line: str) -> str:
    """Return a line of at most CHARACTERS_MAX; a command in it stays whole or is dropped."""
    if len(line) <= CHARACTERS_MAX:
        return line
    kept = line[:CHARACTERS_MAX].rpartition(" ")[0] or line[:CHARACTERS_MAX]
    if kept.count("`") % 2:
        kept = kept.rpartition("`")[0].rstrip()
    return f"{kept}{CUT}"
