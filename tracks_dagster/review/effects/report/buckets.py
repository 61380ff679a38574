"""Where the seconds of a run went, as a bar and the table that says the same in words."""

from __future__ import annotations

from collections.abc import Mapping

from tracks_dagster.ledger.time_buckets import BUCKETS, RunTime
from tracks_dagster.review.effects.explain.glossary import BUCKET_WORDS, bucket_label
from tracks_dagster.review.effects.explain.sections import span

SHARE_SHOWN_MIN = 0.0005  # of the bar; what is narrower stands in the table only


def bucket_bar(time: RunTime) -> str:
    """Return the bar and its legend; empty for a run that has taken no time."""
    if time.wall_s <= 0:
        return ""
    return "\n".join([_bar(time.seconds, time.wall_s), _table(time)])


def _bar(seconds: Mapping[str, float], wall_s: float) -> str:
    parts = [(bucket, seconds[bucket] / wall_s) for bucket in BUCKETS]
    shown = [(bucket, share) for bucket, share in parts if share >= SHARE_SHOWN_MIN]
    told = ", ".join(f"{bucket_label(bucket)} {share:.1%}" for bucket, share in shown)
    segments = "".join(
        f'<i class="b-{bucket}" style="flex-grow:{share:.5f}"></i>' for bucket, share in shown
    )
    return f'<div class="buckets" role="img" aria-label="{told}">{segments}</div>'


def _table(time: RunTime) -> str:
    devices = time.device_seconds
    rows = [
        f'<tr><td><i class="swatch b-{bucket}"></i></td><td>{bucket_label(bucket)}</td>'
        f'<td class="number">{span(time.seconds[bucket])}</td>'
        f'<td class="number">{time.seconds[bucket] / time.wall_s:.1%}</td>'
        f'<td class="number">{devices[bucket]:.1f}</td>'
        f'<td class="words soft">{BUCKET_WORDS[bucket]}</td></tr>'
        for bucket in BUCKETS
        if time.seconds[bucket] > 0 or devices[bucket] > 0
    ]
    total = (
        f'<tr class="total"><td></td><td>in all</td><td class="number">{span(time.wall_s)}</td>'
        f'<td class="number">100.0%</td><td class="number">{sum(devices.values()):.1f}</td>'
        "<td></td></tr>"
    )
    head = (
        '<thead><tr><th></th><th>what for</th><th class="number">time</th><th class="number">share</th>'
        '<th class="number">device s</th><th>meaning</th></tr></thead>'
    )
    body = "\n".join([*rows, total])
    return f'<div class="wide"><table>{head}<tbody>\n{body}\n</tbody></table></div>'
