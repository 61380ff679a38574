"""A body of another shape than this version's is refused where it is read, not where it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tests.histories import History
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import RecordNewer, TrackBroken
from tracks_dagster.track.records import Draft, Json, Kind, parse, seal
from tracks_dagster.track.states.run_fold import apply


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One field of every kind."""

    step: int
    loss: float
    name: str | None
    sizes: tuple[int, ...]
    counts: Mapping[str, int]
    value: Json


FITS: dict[str, Json] = {
    "step": 3,
    "loss": 2,  # a whole number is a float too
    "name": None,
    "sizes": [1, 2],
    "counts": {"a": 1},
    "value": [1],
}


UNFIT: dict[str, list[Json]] = {
    "step": ["3", [3], {"of": 3}],
    "loss": ["2", [], {}],
    "name": [5, [], {}, True],
    "sizes": ["12", {"1": 2}, 3],
    "counts": ["a", [1], 1],
    "value": [float("inf"), [float("nan")], {"seed": float("-inf")}],  # no JSON, and in no database
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, bad) for name, values in UNFIT.items() for bad in values]
)
def test_a_value_of_another_kind_is_named(name: str, value: Json) -> None:
    assert from_json(Body, FITS).sizes == (1, 2)
    assert name == "value" or from_json(Body, {**FITS, "value": value}).value == value
    with pytest.raises(TrackBroken, match=f"A body is not Body: its {name} is "):
        from_json(Body, {**FITS, name: value})


def test_a_record_whose_chain_holds_and_whose_body_has_another_shape_is_of_a_newer_version() -> (
    None
):
    history = History().declare().open().place()
    body = {**History().declare().open().place().restore().records[-1].body, "step": {"of": 3}}
    draft = Draft(uid="f" * 32, kind=Kind.ATTEMPT_RESTORED, body=body, attempt_id=1)
    last = history.records[-1]
    data = seal(draft, seq=last.seq + 1, at=last.at, prev_sha256=last.sha256)
    with pytest.raises(
        RecordNewer, match=r"Record 3 \(attempt_restored\) cannot be read.*its step"
    ):
        apply(history.state, parse(data, seq=last.seq + 1))
