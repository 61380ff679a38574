"""A run as one HTML file that opens anywhere: no network, light and dark, on a phone and on paper.

For people who were not there: state and attempts first, the time line, the curve, where the seconds
went, then each attempt's explanation, with its evidence folded away. Everything in it comes from the
track, the journals and the evidence. It stays readable for a run of 300 attempts: what ended alike
stands together, and what is left out is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.explain.explanation import AttemptExplanation, RunExplanation
from tracks_dagster.review.effects.explain.glossary import used_words
from tracks_dagster.review.effects.explain.run import (
    NOTHING_AROUND,
    Around,
    Told,
    explain_told,
    read_to_explain,
)
from tracks_dagster.review.effects.explain.sections import sections
from tracks_dagster.review.effects.explain.stretches import STRETCHES_MAX
from tracks_dagster.review.effects.explain.text import broken_lines, end_word
from tracks_dagster.review.effects.report.buckets import bucket_bar
from tracks_dagster.review.effects.report.lineage_picture import lineage_picture
from tracks_dagster.review.effects.report.loss_curve import loss_curve
from tracks_dagster.review.effects.report.rich_lines import rich
from tracks_dagster.review.effects.report.tables import attempt_rows, record_rows
from tracks_dagster.review.effects.report.timeline import timeline
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.safe_text import visible

TEMPLATE = Path(__file__).with_name("report.html")
STYLE = Path(__file__).with_name("report.css")
EXPLAINED_MAX = 40  # attempts, the newest; the others stand in the tables
EVIDENCE_CHARACTERS_MAX = 200_000  # of one attempt; logs of many ranks would drown the page
EVIDENCE_CHARACTERS_ALL = 2_000_000  # of the page


def render_report(tracks: Tracks, run_id: str, around: Around = NOTHING_AROUND) -> str:
    """Return the report of a run as it stands now; raises as `read_to_explain`."""
    return render_told(tracks, read_to_explain(tracks, run_id, around), around)


def report_anchor(attempt_id: int) -> str:
    """Return the name of an attempt's place in the page."""
    return f"a{attempt_id:02d}"


def render_told(
    tracks: Tracks, told: Told, around: Around, *, attempt_id: int | None = None
) -> str:
    """Return the report of a run that was read before, the explanation of `attempt_id` unfolded."""
    run, state = told.run, told.run.state
    explained = explain_told(tracks, told, around, attempts_max=EXPLAINED_MAX, also=attempt_id)
    explanations = "\n".join(_explanations(tracks.store, explained, attempt_id))
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(state.run_id),
        style=STYLE.read_text(encoding="utf-8"),
        state=escape(run.status.state),
        why=rich(" ".join(filter(None, (run.status.why, explained.waits_for)))),
        broken="".join(
            f'<p class="broken">{rich(each)}</p>' for each in broken_lines(told.read.broken)
        ),
        intent=escape(state.declared.intent),
        facts=escape(_facts(state)),
        as_of=f"{tracks.now():%Y-%m-%d %H:%M} UTC",
        promotion="\n".join(f"<p>{rich(each)}</p>" for each in explained.promotions),
        together=_together(told),
        rows="\n".join(attempt_rows(run, told.history)),
        timeline=timeline(run, told.history, until=told.until)
        or "<p>No attempt was opened yet.</p>",
        curve=loss_curve(run.receipts, [c.ref.step for c in state.checkpoints])
        or "<p>No step is in the journals yet.</p>",
        buckets=bucket_bar(told.time),
        picture=lineage_picture(run, told.history),
        explanations=explanations,
        left_out=_left_out(explained),
        record_count=len(told.read.records),
        history="\n".join(record_rows(state.run_id, told.read.records)),
        words="\n".join(
            f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>"
            for word, meaning in used_words(explanations)
        ),
    )
    return visible(page)  # nothing of ours has a control character in it


def _facts(state: RunState) -> str:
    declared = state.declared
    code = declared.code.git_commit or declared.code.package_version
    source = declared.branched_from
    branch = f"; a branch of {checkpoint_at(source)}" if source is not None else ""
    return (
        f"{declared.model_family}, stage {declared.stage}, {declared.compute.ranks} rank(s) of "
        f"{declared.compute.device_class}; declared {state.declared_at:%Y-%m-%d %H:%M:%S} UTC by "
        f"{declared.owner} ({declared.team}); data {declared.snapshot.dataset} "
        f"{declared.snapshot.snapshot_id[:12]}; code {code[:12]}{branch}"
    )


def _together(told: Told) -> str:
    """Say that neighbours stand together, where they do."""
    count = len(told.run.receipts)
    if len(told.history) == count:
        return ""
    return (
        f'<p class="soft">There are {count} attempts, more than the {STRETCHES_MAX} that are shown one '
        "by one: neighbours that ended for the same reason stand together.</p>"
    )


def _left_out(explained: RunExplanation) -> str:
    if not explained.left_out:
        return ""
    return (
        f'<p class="soft">The oldest {explained.left_out} attempts are not explained here: '
        f"<code>tracks explain {escape(explained.run_id)}/aNN</code> explains each of them.</p>"
    )


def _explanations(
    store: ObjectStore, explained: RunExplanation, unfolded: int | None
) -> Sequence[str]:
    """Return each attempt's explanation; evidence until the page has had enough of it."""
    parts, left = [], EVIDENCE_CHARACTERS_ALL
    for each in reversed(explained.attempts):  # the newest are asked about most
        evidence = _evidence(store, each, min(left, EVIDENCE_CHARACTERS_MAX))
        left -= len(evidence)
        parts.append(_explanation(each, evidence, is_open=each.attempt_id == unfolded))
    return parts[::-1]


def _explanation(told: AttemptExplanation, evidence: str, *, is_open: bool) -> str:
    terms = "\n".join(
        f"<dt>{escape(section.label)}</dt><dd>{''.join(map(_paragraph, section.lines))}</dd>"
        for section in sections(told)
        if section.label != "history"
    )
    return (
        f'<details class="told" id="{report_anchor(told.attempt_id)}"{" open" if is_open else ""}>'
        f"<summary><b>Attempt {told.attempt_id}</b> {escape(end_word(told))}</summary>\n"
        f"<dl>\n{terms}\n</dl>\n{evidence}</details>"
    )


def _paragraph(line: str) -> str:
    """Return a line; what was said by a program as it was said, in its own letters."""
    mark, _, words = line.partition(" ")
    if mark in ("|", ">"):
        return f'<p class="quoted">{escape(words)}</p>'
    return f"<p>{rich(line)}</p>"


def _evidence(store: ObjectStore, told: AttemptExplanation, characters_max: int) -> str:
    data = store.get(told.ended.evidence_key) if told.ended else None
    if data is None:
        return ""
    text = data.decode("utf-8", errors="replace")
    cut = ""
    if len(text) > characters_max:
        cut = f"\n… the rest: tracks explain {told.key} --evidence"
    return (
        "<details><summary>Evidence as stored</summary>"
        f"<pre>{escape(text[:characters_max] + cut)}</pre></details>\n"
    )
