"""A run as one HTML file that opens anywhere: no network, light and dark, readable on a phone.

For people who were not there: state and attempts first, the curve, then each attempt's explanation
and evidence folded away. Everything in it comes from the track, the journals and the evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from html import escape
from pathlib import Path
from string import Template

from tracks_dagster.core.checkpoints import checkpoint_at
from tracks_dagster.core.ports import ObjectStore
from tracks_dagster.core.records import Record
from tracks_dagster.core.run_state import RunState
from tracks_dagster.core.track import run_track
from tracks_dagster.core.user_rules import NO_RULES, UserRules
from tracks_dagster.services.explain import explain_run
from tracks_dagster.services.explain_text import attempt_text
from tracks_dagster.services.explanation import AttemptExplanation, RunExplanation
from tracks_dagster.services.loss_curve import colour, loss_curve
from tracks_dagster.services.narrate import sentence
from tracks_dagster.services.receipts import Receipt, read_receipts
from tracks_dagster.services.tracks import Tracks

TEMPLATE = Path(__file__).with_name("report.html")
EVIDENCE_CHARACTERS_MAX = 200_000  # of one attempt; logs of many ranks would drown the page


def render_report(tracks: Tracks, run_id: str, rules: UserRules = NO_RULES) -> str:
    """Return the report of a run as it stands now; raises UnknownRun."""
    run = read_receipts(tracks, run_id)
    told = explain_run(tracks, run_id, rules)
    records = tracks.records(run_track(run_id))
    state = run.state
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(run_id),
        state=escape(run.status.state),
        why=escape(run.status.why),
        intent=escape(state.declared.intent),
        facts=escape(_facts(state)),
        promotion=_promotion(told),
        rows="\n".join(_row(receipt) for receipt in run.receipts),
        curve=loss_curve(run.receipts, [c.ref.step for c in state.checkpoints])
        or "<p>No step is in the journals yet.</p>",
        explanations="\n".join(_explanation(tracks.store, each) for each in told.attempts),
        record_count=len(records),
        history="\n".join(_history(records)),
    )


def _facts(state: RunState) -> str:
    declared = state.declared
    code = declared.code.git_commit or declared.code.package_version
    source = declared.branched_from
    branch = f"; a branch of {checkpoint_at(source)}" if source is not None else ""
    return (
        f"{declared.model_family}, stage {declared.stage}, {declared.compute.ranks} rank(s) of "
        f"{declared.compute.device_class}; declared {_time(state.declared_at)} by "
        f"{declared.owner} ({declared.team}); data {declared.snapshot.dataset} "
        f"{declared.snapshot.snapshot_id[:12]}; code {code[:12]}{branch}"
    )


def _promotion(told: RunExplanation) -> str:
    return "\n".join(f"<p>{escape(each)}</p>" for each in told.promotions)


def _row(receipt: Receipt) -> str:
    attempt, account = receipt.attempt, receipt.account
    seconds = f"{attempt.ended.device_seconds:.1f}" if attempt.ended else "–"
    numbers = [attempt.resumed_step, account.last, account.kept, account.lost, seconds]
    continuity = receipt.continuity.sentence if receipt.continuity else "–"
    return (
        f'<tr><td><svg class="key" viewBox="0 0 20 10"><line class="line '
        f'{colour(attempt.attempt_id)}" x1="0" x2="20" y1="5" y2="5"/></svg></td>'
        f"<td>{attempt.attempt_id}</td>"
        f"<td>{escape(attempt.reason.value if attempt.reason else 'open')}</td>"
        + "".join(f'<td class="number">{number}</td>' for number in numbers)
        + f'<td class="words">{escape(continuity)}</td></tr>'
    )


def _explanation(store: ObjectStore, told: AttemptExplanation) -> str:
    reason = told.ended.reason if told.ended else "open"
    parts = [
        f"<details><summary>Attempt {told.attempt_id}: {escape(reason)}</summary>",
        f"<pre>{escape(attempt_text(told))}</pre>",
    ]
    evidence = store.get(told.ended.evidence_key) if told.ended else None
    if evidence is not None:
        text = evidence.decode("utf-8", errors="replace")
        cut = "" if len(text) <= EVIDENCE_CHARACTERS_MAX else "\n… the rest is in the store"
        parts += [
            "<details><summary>Evidence as stored</summary>",
            f"<pre>{escape(text[:EVIDENCE_CHARACTERS_MAX])}{cut}</pre></details>",
        ]
    return "\n".join([*parts, "</details>"])


def _history(records: Iterable[Record]) -> Iterable[str]:
    for record in records:
        yield (
            f'<tr><td class="number">{record.seq}</td>'
            f'<td class="soft">{_time(record.at)}</td>'
            f'<td class="words">{escape(sentence(record))}</td></tr>'
        )


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
