"""Does what a form of a page asks for, by the functions that the commands call.

One act at a time. The same form sent twice, by a double click or a reload, is done once: its key is
made of all that it says, and of the newest record that its page showed.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from urllib.parse import parse_qsl

from starlette.requests import Request

from tracks_dagster.attempts.effects.labels import given_and_taken, label
from tracks_dagster.attempts.effects.manual_retry import ManualRetry, retry_by_person
from tracks_dagster.attempts.effects.notes import note
from tracks_dagster.evals.effects.promoting import promote
from tracks_dagster.holds.effects.quarantines import quarantine_source
from tracks_dagster.holds.effects.stops import Mode, request_stop
from tracks_dagster.holds.effects.things import find_thing
from tracks_dagster.review.effects.saved_views import remove_view, save_view
from tracks_dagster.settings import Settings, person
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import parse_attempt_key
from tracks_dagster.track.records import Record, canonical_json, sha256_hex
from tracks_dagster.track.states.run_state import find_at
from tracks_dagster.track.text import units
from tracks_dagster.track.text.redact import redact
from tracks_dagster.track.text.safe_text import check_words, one_line, valid_text
from tracks_dagster.wings.watch.board.acts import FOR, VIEW, WHOLE_RUN, WHY, sources_of
from tracks_dagster.wings.watch.board.all_runs import view_of
from tracks_dagster.wings.watch.health.effects.muting import mute
from tracks_dagster.wiring import App, build, gang_check

FORM_BYTES_MAX = 64 * 1024
FORM_S_MAX = 10.0  # for a form to come whole
FORM = "application/x-www-form-urlencoded"
DONE_MAX = 200  # answers that a reload finds again
KEY_DIGITS = 32
NAME_CHARACTERS_MAX = 200  # of who acts
STEP_DIGITS_MAX = 18
FIELDS_MAX = 20

Given = Mapping[str, str]
Does = Callable[[str, Given, str], str]  # of a run, with what is given, by whom: what came of it


class Acting:
    """Acts in the name of who asks. Safe in threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._done: OrderedDict[str, tuple[str, str]] = OrderedDict()  # key → run, words
        self._acts: dict[str, Does] = {
            "retry": self._retry,
            "drain": partial(self._stop, "drain"),
            "stop": partial(self._stop, "stop"),
            "note": self._note,
            "tag": self._tag,
            "rename": self._rename,
            "archive": partial(self._archive, True),
            "unarchive": partial(self._archive, False),
            "mute": self._mute,
            "promote": self._promote,
            "quarantine": self._quarantine,
        }
        self._acts_of_views: dict[str, Does] = {
            "save": self._save_view,
            "remove": self._remove_view,
        }

    @cached_property
    def _app(self) -> App:
        return build(self._settings)

    def act(self, name: str, run_id: str, given: Given, by: str) -> str:
        """Do it, and return the key under which `answer` has what came of it for that run.

        run_id: "" for what is done to saved views. by: whose name is recorded; "" for the owner of this
        process. Raises InvalidInput and whatever the command of that name raises, with nothing written.
        """
        offered = self._acts if run_id else self._acts_of_views
        chosen = offered.get(name)
        if chosen is None:
            raise InvalidInput(f"{name!r} is nothing to do; a page has {', '.join(offered)}.")
        by = one_line(by)[:NAME_CHARACTERS_MAX] or person()
        facts = {"name": name, "run_id": run_id, "by": by, "given": dict(given)}
        key = sha256_hex(canonical_json(facts))[:KEY_DIGITS]
        clean = {field: self._clean(text) for field, text in given.items()}
        with self._lock:
            if key not in self._done:
                self._done[key] = (run_id, chosen(run_id, clean, by))
                while len(self._done) > DONE_MAX:
                    self._done.popitem(last=False)
        return key

    def answer(self, key: str, run_id: str) -> str:
        """Return what came of an act on that run, in words."""
        of, words = self._done.get(key, (None, ""))
        return words if of == run_id else "What came of it is not known here: the record has it."

    def _clean(self, text: str) -> str:
        """Return a text as the command line takes it: valid, and without a password."""
        return redact(valid_text(text), secrets=self._settings.secrets).strip()

    def _retry(self, run_id: str, given: Given, by: str) -> str:
        why = _words(given, WHY)
        wanted = ManualRetry(
            name=by,
            why=why,
            is_forced=given.get("force") == "yes",
            check_gang=gang_check(self._settings),
        )
        record = retry_by_person(self._app.world(self._app.policy), run_id, wanted)
        return f"Opened attempt {record.attempt_id} (record {record.seq}); the daemon launches it."

    def _stop(self, mode: Mode, run_id: str, given: Given, by: str) -> str:
        why = _words(given, WHY)
        record = request_stop(self._app.tracks, run_id, mode=mode, by=by, why=why)
        then = "the run is finished as cancelled" if mode == "stop" else "the run waits for a retry"
        return f"Asked for ({_recorded(record)}): the gang saves and ends, and {then}."

    def _note(self, run_id: str, given: Given, by: str) -> str:
        text, of = _words(given, "text"), given.get("attempt", WHOLE_RUN)
        attempt_id = None if of == WHOLE_RUN else parse_attempt_key(f"{run_id}/{of}")[1]
        record = note(self._app.tracks, run_id, attempt_id=attempt_id, by=by, text=text)
        return f"Noted as record {record.seq}."

    def _tag(self, run_id: str, given: Given, by: str) -> str:
        added, removed = given_and_taken(_words(given, "tags").split())
        record = label(self._app.tracks, run_id, by=by, added=added, removed=removed)
        tags = self._app.tracks.run(run_id).labels.tags
        return f"Its tags: {', '.join(tags) or 'none'} ({_recorded(record)})."

    def _rename(self, run_id: str, given: Given, by: str) -> str:
        called = given.get("name", "").strip()
        record = label(self._app.tracks, run_id, by=by, called=called)
        return f"Called {called or 'by its id'} ({_recorded(record)})."

    def _archive(self, is_archived: bool, run_id: str, given: Given, by: str) -> str:
        why, tracks = _words(given, WHY), self._app.tracks
        record = label(tracks, run_id, by=by, why=why, is_archived=is_archived)
        where = "left out of tables" if is_archived else "in tables again"
        return f"It is {where} ({_recorded(record)})."

    def _mute(self, run_id: str, given: Given, by: str) -> str:
        why, rule = _words(given, WHY), given.get("rule", "")
        try:
            for_s = units.duration_s(given.get(FOR, ""))
        except ValueError as error:
            raise InvalidInput(f"for: {error}") from error
        mute(self._app.tracks, rule, run_id=run_id, for_s=for_s, by=by, why=why)
        return f"Alerts of {rule} of this run are sent to nobody for {units.duration(for_s)}."

    def _promote(self, run_id: str, given: Given, by: str) -> str:
        why, alias, step = _words(given, WHY), _words(given, "alias"), given.get("step", "")
        if not (step.isascii() and step.isdigit() and len(step) <= STEP_DIGITS_MAX):
            raise InvalidInput(f"step {step[:40]!r} is not a number of a step.")
        ref = find_at(self._app.tracks.run(run_id), int(step)).ref
        decided = promote(self._app, ref, alias=alias, by=by, why=why)
        return f"Promoted step {ref.step} to {alias}: {decided.why}"

    def _quarantine(self, run_id: str, given: Given, by: str) -> str:
        why, source, app = _words(given, WHY), _words(given, "source"), self._app
        if source not in (offered := sources_of(app.tracks.run(run_id))):
            raise InvalidInput(f"{source!r} is not of {run_id}; choose of {', '.join(offered)}.")
        thing = find_thing(app.tracks, app.ledger, source)
        decided = quarantine_source(app.tracks, app.ledger, thing, by=by, why=why)
        return (
            f"{decided.source.called} is in quarantine ({_recorded(decided.record)}); `tracks release "
            f'{decided.source.called} --why "…"` ends it.'
        )

    def _save_view(self, _: str, given: Given, by: str) -> str:
        view = view_of(given, by)
        record = save_view(self._app.tracks, view)
        return f"The view {view.name} is saved ({_recorded(record)}), for everybody on this store."

    def _remove_view(self, _: str, given: Given, by: str) -> str:
        why, name = _words(given, WHY), given.get(VIEW, "")
        record = remove_view(self._app.tracks, name, by=by, why=why)
        return f"The view {name} is offered no more ({_recorded(record)}); its records stay."


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; raises InvalidInput for one that is too large, too slow, or none."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        raise InvalidInput(f"An act is asked for as a form ({FORM}), not as {kind or 'nothing'}.")
    data = b""
    try:
        async with asyncio.timeout(FORM_S_MAX):
            async for part in request.stream():
                data += part
                if len(data) > FORM_BYTES_MAX:
                    raise InvalidInput(f"The form has more than {FORM_BYTES_MAX} bytes.")
    except TimeoutError as error:
        raise InvalidInput(f"The form did not come within {FORM_S_MAX:g} s.") from error
    text = data.decode("utf-8", errors="replace")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise InvalidInput(f"The form cannot be read: {error}.") from error
    return dict(pairs)


def _words(given: Given, name: str) -> str:
    """Return a text that has to say something; raises InvalidInput."""
    text = given.get(name, "")
    check_words({name: text})
    return text


def _recorded(record: Record | None) -> str:
    return "as it was already" if record is None else f"record {record.seq}"
