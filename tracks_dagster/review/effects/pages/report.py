"""A run as one HTML file that opens anywhere: no network, light and dark, on a phone and on paper.

For people who were not there: state and attempts first, the time line, the curve, where the seconds
went, then each attempt's explanation, with its evidence folded away. Everything in it comes from the
track, the journals and the evidence. It stays readable for a run of 300 attempts: what ended alike
stands together, and what is left out is said.

`report.html` is the page, with every value escaped; this module computes what goes into it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path

from tracks_dagster.curves.curve import GROUP_WORDS, Curve, Curves
from tracks_dagster.curves.effects.reading import read_curves
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.time_buckets import BUCKETS, RunTime
from tracks_dagster.review.effects.explain.run import (
    NO_CONTEXT,
    ExplainContext,
    LoadedRun,
    explain_loaded,
    load_run,
)
from tracks_dagster.review.effects.explain.stretches import STRETCHES_MAX, members
from tracks_dagster.review.effects.pages.charts import HEIGHT, WIDTH, colour, curve_panel
from tracks_dagster.review.effects.pages.lineage_picture import lineage_picture
from tracks_dagster.review.effects.pages.time_strip import lanes, name_of
from tracks_dagster.review.effects.watching import watching
from tracks_dagster.review.explain.explanation import Break, RunExplanation
from tracks_dagster.review.explain.glossary import BUCKET_WORDS, bucket_label, used_words
from tracks_dagster.review.explain.sections import (
    Section,
    format_money,
    open_word,
    sections,
    span,
)
from tracks_dagster.review.explain.text import broken_lines, end_word
from tracks_dagster.review.lights import Lights
from tracks_dagster.review.narrate import sentence
from tracks_dagster.review.progress import X_LABEL, progress_and_burn
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.errors import InvalidInput, ObjectLost
from tracks_dagster.track.journal_lines import LOSS
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.run_state import RunState, stored_code_sha256
from tracks_dagster.track.text.private_files import file_mode
from tracks_dagster.track.text.safe_text import visible
from tracks_dagster.track.text.units import counted

TEMPLATE = "report.html"
EXPLAINED_MAX = 40  # attempts, the newest; the others are in the tables
LIGHTS_MAX = 8  # attempts, the newest: each costs a look at the end of its journal
EVIDENCE_CHARACTERS_MAX = 200_000  # of one attempt; logs of many ranks would drown the page
EVIDENCE_CHARACTERS_ALL = 2_000_000  # of the page
RECORDS_MAX = 1000  # the newest
PANELS_MAX = 24  # curves; `tracks curves` has the others
PANEL_WIDTH, PANEL_HEIGHT = 300, 150  # of all but the loss
SHARE_SEEN_MIN = 0.0005  # of the bar; what is narrower is in the table only
_CODE = re.compile(r"`([^`]+)`")
_ADDRESS = re.compile(r"https?://[^\s<>\"']+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A report that was written. link: a file URL, of the attempt's place in it if one was named."""

    path: Path
    link: str
    broken: Break | None


def write_report(
    tracks: Tracks,
    run_id: str,
    file: Path,
    context: ExplainContext = NO_CONTEXT,
    *,
    attempt_id: int | None = None,
) -> Written:
    """Write the report of a run as it is now, that of `attempt_id` unfolded.

    The file is replaced as a whole. Safe from two processes: the last one's file stays. Raises as
    `load_run`, and InvalidInput where the file cannot be written.
    """
    loaded = load_run(tracks, run_id, context)
    html = render_loaded(tracks, loaded, context, attempt_id=attempt_id)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        with open(unfinished, "w", encoding="utf-8", opener=_create) as out:
            out.write(html)
        unfinished.replace(file)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(
            f"Cannot write the report {file}: {why}. Name another file: `tracks report {run_id} "
            "--out FILE`."
        ) from error
    anchor = "" if attempt_id is None else f"#{report_anchor(attempt_id)}"
    return Written(path=file, link=f"{file.absolute().as_uri()}{anchor}", broken=loaded.read.broken)


def _create(path: str, flags: int) -> int:
    folder = Path(path).absolute().parent
    return os.open(path, flags, file_mode(f.stat().st_mode for f in (folder, *folder.parents)))


def report_anchor(attempt_id: int) -> str:
    """Return the name of an attempt's place in the page."""
    return f"a{attempt_id:02d}"


def render_loaded(
    tracks: Tracks, loaded: LoadedRun, context: ExplainContext, *, attempt_id: int | None = None
) -> str:
    """Return the report of a run that was read before, the explanation of `attempt_id` unfolded."""
    import jinja2  # the code location loads this module, and most ticks write no report

    run, state = loaded.run, loaded.run.state
    explained = explain_loaded(tracks, loaded, context, attempts_max=EXPLAINED_MAX, also=attempt_id)
    ids = [each.attempt_id for each in explained.attempts]
    judged = [each for each in ids if each in ids[-LIGHTS_MAX:] or each == attempt_id]
    lights = watching().look_back(tracks.store, loaded.read.records, judged, tracks.now())
    attempts = list(_attempts(tracks.store, explained, attempt_id, lights))
    lines = [line for each in attempts for part in each.sections for line in part.lines]
    curves = read_curves(tracks, state, cache=None)
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (rich, clock, span, format_money, sentence)
    pages.filters |= {each.__name__: each for each in filters}
    page = pages.get_template(TEMPLATE).render(
        run_id=state.run_id,
        status=run.status,
        why=" ".join(filter(None, (run.status.why, explained.waits_for))),
        broken=broken_lines(loaded.read.broken),
        intent=state.declared.intent,
        facts=_facts(state),
        as_of=f"{tracks.now():%Y-%m-%d %H:%M} UTC",
        live=f"{context.board_url}/runs/{state.run_id}" if context.board_url else "",
        explained=explained,
        attempt_count=len(run.receipts),
        shown_max=STRETCHES_MAX,
        rows=list(_rows(loaded)),
        lanes=lanes(
            run, loaded.history, until=loaded.until, open_word=open_word(loaded.read.broken)
        ),
        declared_at=state.declared_at,
        until=loaded.until,
        panels=list(_panels(curves)),
        progress=list(_progress(state, loaded.until)),
        lost=curves.lost,
        panels_left_out=max(0, len(curves.curves) - PANELS_MAX) + curves.names_left_out,
        time=loaded.time,
        buckets=list(_buckets(loaded.time)),
        picture=lineage_picture(run, loaded.history, open_word=open_word(loaded.read.broken)),
        attempts=attempts,
        records=loaded.read.records,
        records_max=RECORDS_MAX,
        words=list(used_words("\n".join(lines))),
    )
    return visible(page)  # nothing of ours has a control character in it


def rich(line: str) -> str:
    """Return a line as HTML, escaped: commands as code, pages of the UI as links."""
    coded = _CODE.sub(r"<code>\1</code>", escape(line))
    return _ADDRESS.sub(lambda m: f'<a href="{m[0]}" rel="noreferrer">{m[0]}</a>', coded)


def clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _facts(state: RunState) -> str:
    declared = state.declared
    stored = stored_code_sha256(declared.trainer)
    code = declared.code.git_commit or stored or declared.code.package_version
    source = declared.branched_from
    branch = f"; a branch of {checkpoint_at(source)}" if source is not None else ""
    named = "" if declared.workload_class is None else f", class {declared.workload_class}"
    ranks = counted(declared.compute.ranks, "rank")
    return (
        f"{declared.model_family}, stage {declared.stage}{named}, {ranks} of "
        f"{declared.compute.device_class}; declared {clock(state.declared_at)} by "
        f"{declared.owner} ({declared.team}); {_data(declared.snapshot)}; code {code[:12]}{branch}"
    )


def _data(snapshot: SnapshotRef | None) -> str:
    if snapshot is None:
        return "no snapshot was named"
    return f"data {snapshot.dataset} {snapshot.snapshot_id[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One stretch of attempts. colour: the class of its line in the curve, of a single attempt."""

    colour: str
    name: str
    end: str
    numbers: tuple[int | str, ...]
    continuity: str


def _rows(loaded: LoadedRun) -> Iterator[_Row]:
    for stretch in loaded.history:
        group = members(stretch, loaded.run.receipts)
        ended = [r.attempt.ended.device_seconds for r in group if r.attempt.ended]
        only = group[0] if stretch.count == 1 else None
        yield _Row(
            colour="" if only is None else colour(stretch.first),
            name=name_of(stretch),
            end=stretch.reason or open_word(loaded.read.broken),
            numbers=(
                stretch.from_step,
                stretch.to_step,
                stretch.kept_steps,
                stretch.lost_steps,
                f"{sum(ended):.1f}" if ended else "–",
            ),
            continuity=only.continuity.sentence if only and only.continuity else "–",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """The picture of a metric. kind: what it is of; newest: its last value, in words."""

    name: str
    kind: str
    newest: str
    svg: str


def _progress(state: RunState, until: datetime) -> Iterator[_Panel]:
    """Yield what the run kept, and beside it what it took, by time."""
    for curve in progress_and_burn(state, until):
        svg = curve_panel(curve, x_label=X_LABEL, width=PANEL_WIDTH, height=PANEL_HEIGHT)
        newest = f"{curve.series[0].points[-1].value:.6g} {curve.unit}"
        yield _Panel(name=curve.name, kind="", newest=newest, svg=svg)


def _panels(curves: Curves) -> Iterator[_Panel]:
    """Yield the loss, in large, and the others; the axis of all is the same."""
    for curve in curves.curves[:PANELS_MAX]:
        width, height = (WIDTH, HEIGHT) if curve.name == LOSS else (PANEL_WIDTH, PANEL_HEIGHT)
        svg = curve_panel(
            curve,
            curves.marks,
            x_label=curves.x_label,
            x_range=curves.x_range,
            width=width,
            height=height,
        )
        if svg:
            kind = GROUP_WORDS.get(curve.group, "")
            yield _Panel(name=curve.name, kind=kind, newest=newest_words(curve), svg=svg)


def newest_words(curve: Curve) -> str:
    """Return the newest kept value of a curve and its step, in words."""
    last = curve.last
    if last is None:
        return "nothing kept"
    value = f"{last.value:.4g}"
    if 1e4 <= abs(last.value) < 1e6:
        value = f"{last.value:,.0f}".replace(",", "\u202f")  # thousands apart, as on the board
    return f"{value} {curve.unit}".rstrip() + f" after step {last.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    """What the run spent in one bucket of time. share: of all of its seconds."""

    name: str
    label: str
    meaning: str
    seconds: float
    device_seconds: float
    share: float

    @property
    def is_seen(self) -> bool:
        """Whether it is broad enough to be seen in the bar."""
        return self.share >= SHARE_SEEN_MIN


def _buckets(time: RunTime) -> Iterator[_Bucket]:
    seconds, device_seconds = time.seconds, time.device_seconds
    for name in BUCKETS:
        yield _Bucket(
            name=name,
            label=bucket_label(name),
            meaning=BUCKET_WORDS[name],
            seconds=seconds[name],
            device_seconds=device_seconds[name],
            share=seconds[name] / time.wall_s if time.wall_s > 0 else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One attempt's explanation. lights: as of its end, or now while it is open, None where it was not
    judged; advice: of an open one; evidence: as stored, None where there is none."""

    attempt_id: int
    anchor: str
    end: str
    is_unfolded: bool
    sections: tuple[Section, ...]
    lights: Lights | None
    advice: str
    evidence: str | None


def _attempts(
    store: ObjectStore,
    explained: RunExplanation,
    unfolded: int | None,
    lights: Mapping[int, Lights],
) -> Iterator[_Attempt]:
    """Yield each attempt's explanation; evidence until the page has had enough of it."""
    evidence = _evidence(store, explained)
    for each in explained.attempts:
        judged = lights.get(each.attempt_id)
        advice = judged.advice if judged is not None and each.ended is None else None
        yield _Attempt(
            attempt_id=each.attempt_id,
            anchor=report_anchor(each.attempt_id),
            end=end_word(each),
            is_unfolded=each.attempt_id == unfolded,
            sections=tuple(part for part in sections(each) if part.label != "history"),
            lights=judged,
            advice="" if advice is None else advice.sentence,
            evidence=evidence.get(each.attempt_id),
        )


def _evidence(store: ObjectStore, explained: RunExplanation) -> dict[int, str]:
    """Return the evidence of the attempts, the newest first: they are asked about most."""
    texts: dict[int, str] = {}
    left = EVIDENCE_CHARACTERS_ALL
    for each in reversed(explained.attempts):
        if each.ended is None:
            continue
        try:
            data = read_addressed(store, each.ended.evidence_key)
        except ObjectLost:  # its explanation names what is wrong with it
            continue
        text, room = data.decode("utf-8", errors="replace"), min(left, EVIDENCE_CHARACTERS_MAX)
        if len(text) > room:
            text = f"{text[:room]}\n… the rest: tracks explain {each.key} --evidence"
        texts[each.attempt_id] = text
        left -= min(left, len(text))
    return texts
