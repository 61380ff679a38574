"""The table of facts: each is known or says why not, and the docs' reference is written from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.random_histories import random_dataset, random_run
from tests.reference import PAGE, with_reference
from tracks_dagster.ledger import track_states
from tracks_dagster.ledger.effects.database.schema import PROJECTION
from tracks_dagster.ledger.facts.fact import COUNTED_FROM, Fact
from tracks_dagster.ledger.facts.tables import FACTS

FACTS_OF_THE_FIRST = 331  # with what is older


@given(seed=st.integers(min_value=0, max_value=2**32))
def test_a_fact_is_unknown_only_where_one_of_its_absences_holds(seed: int) -> None:
    subjects: list[tuple[Sequence[Fact[Any]], Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(track_states, "row", lambda facts, subject: subjects.append((facts, subject)))
        track_states.run_rows(random_run(Random(seed)).state)
        track_states.dataset_rows(random_dataset(Random(seed)).state)
    unexplained = [
        fact.name
        for facts, subject in subjects
        for fact in facts
        if fact.of(subject) is None and not (fact.is_nullable and fact.absence(subject))
    ]
    assert unexplained == []


def test_no_two_facts_share_a_column_a_key_or_a_name_in_the_ui() -> None:
    for facts in FACTS.values():
        for names in (
            [each.column for each in facts if each.has_column],
            [each.json_path for each in facts],
            [each.ui for each in facts if each.ui],
            [each.label for each in facts if each.label],
        ):
            assert [name for name, count in Counter(names).items() if count > 1] == []


def test_a_fact_says_since_which_projection_it_is_there() -> None:
    since = Counter(each.since for facts in FACTS.values() for each in facts)
    # A new fact names the PROJECTION of its release; it is not among those as old as counting.
    assert since[COUNTED_FROM] == FACTS_OF_THE_FIRST
    assert COUNTED_FROM <= min(since) <= max(since) <= PROJECTION


def test_the_reference_of_columns_is_that_of_the_facts() -> None:
    page = PAGE.read_text()
    assert page == with_reference(page), "run `.venv/bin/python -m tests.reference`"
