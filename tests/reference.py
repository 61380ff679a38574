"""Write again the columns in docs/ledger.md, the rules in docs/health.md, docs/glossary.md, the
findings in docs/conform.md and the fields in docs/runs.md: `.venv/bin/python -m tests.reference`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracks_dagster.attempts.run_config import choices_of
from tracks_dagster.ledger.facts.fact import Fact
from tracks_dagster.ledger.facts.tables import FACTS
from tracks_dagster.review.explain.glossary import GLOSSARY
from tracks_dagster.track.declared_fields import CADENCE, CLUSTER, FIELDS, RETENTION, Field
from tracks_dagster.wings.lab.conformance.defects import DEFECTS
from tracks_dagster.wings.watch.health.rules import RULES

PAGE = Path(__file__).parents[1] / "docs" / "ledger.md"
# Which tables `tracks explain RUN --json` has, and where in it.
EXPLAINED: Mapping[str, str] = {
    "training_runs": "",
    "training_attempts": ", in `attempts`",
    "checkpoints": ", in `checkpoints` of an attempt",
    "evals": ", in `evals` of an attempt",
}


BEGIN = "<!-- columns: written from ledger/facts by `python -m tests.reference` -->"
END = "<!-- end of columns -->"


def with_reference(page: str) -> str:
    """Return the page with the reference of today between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = (part for table, facts in FACTS.items() for part in _table(table, facts))
    return "\n".join([before + BEGIN, *parts, END + after])


RULES_PAGE = Path(__file__).parents[1] / "docs" / "health.md"
RULES_BEGIN = (
    "<!-- rules: written from wings/watch/health/rules.py by `python -m tests.reference` -->"
)
RULES_END = "<!-- end of rules -->"


def with_rules(page: str) -> str:
    """Return the page with the rules of today between its two marks."""
    before, _, rest = page.partition(RULES_BEGIN)
    _, _, after = rest.partition(RULES_END)
    heads = "| rule | colour | holds when | how long | first command |\n|---|---|---|---|---|"
    rows = (
        f"| [{rule.name}]({rule.runbook.removeprefix('docs/')}) | {rule.severity} "
        f"| {rule.threshold} | {rule.holds} | `{rule.command.format(run='RUN')}` |"
        for rule in RULES.values()
    )
    return "\n".join([before + RULES_BEGIN, heads, *rows, RULES_END + after])


GLOSSARY_PAGE = Path(__file__).parents[1] / "docs" / "glossary.md"
GLOSSARY_HEAD = """# The words

This page answers what a word means where a command, a page or a message uses it. `tracks explain
--words` prints the same; an explanation and a report end with the words that they use. Written from
`review/explain/glossary.py` by `python -m tests.reference`.

| word | meaning |
|---|---|
"""


def glossary_page() -> str:
    """Return the page with the words of today."""
    words = sorted(GLOSSARY.items(), key=lambda each: each[0].lower())
    return GLOSSARY_HEAD + "".join(f"| {word} | {meaning} |\n" for word, meaning in words)


DEFECTS_PAGE = Path(__file__).parents[1] / "docs" / "conform.md"
DEFECTS_BEGIN = (
    "<!-- defects: written from review/conformance/defects.py by `python -m tests.reference` -->"
)
DEFECTS_END = "<!-- end of defects -->"


def with_defects(page: str) -> str:
    """Return the page with the findings of today between its two marks."""
    before, _, rest = page.partition(DEFECTS_BEGIN)
    _, _, after = rest.partition(DEFECTS_END)
    heads = "| finding | the trainer | cure |\n|---|---|---|"
    rows = (f"| `{name}` | {each.what} | {each.cure} |" for name, each in DEFECTS.items())
    return "\n".join([before + DEFECTS_BEGIN, heads, *rows, DEFECTS_END + after])


FIELDS_PAGE = Path(__file__).parents[1] / "docs" / "runs.md"
FIELDS_BEGIN = (
    "<!-- fields: written from track/declared_fields.py by `python -m tests.reference` -->"
)
FIELDS_END = "<!-- end of fields -->"


def with_fields(page: str) -> str:
    """Return the page with the fields of a declaration between its two marks."""
    before, _, rest = page.partition(FIELDS_BEGIN)
    _, _, after = rest.partition(FIELDS_END)
    heads = "| field | option | key of tracks.yaml | default | what it is |\n|---|---|---|---|---|"
    return "\n".join([before + FIELDS_BEGIN, heads, *map(_field, FIELDS), FIELDS_END + after])


def _field(row: Field) -> str:
    name = {RETENTION: "retention.", CLUSTER: "cluster."}.get(_group(row), "") + row.name
    key = {RETENTION: "retention.", CADENCE: "checkpoint."}.get(_group(row), "") + row.key
    shown = "" if row.default in (None, (), {}) else f"{row.default}"
    valid = choices_of(row)
    choices = f" One of {', '.join(valid)}." if valid else ""
    cells = (_code(name), _code(row.option), _code(key), shown, row.words + choices)
    return f"| {' | '.join(cells)} |"


def _group(row: Field) -> tuple[Field, ...]:
    return next((rows for rows in (RETENTION, CLUSTER, CADENCE) if row in rows), ())


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(table: str, facts: Sequence[Fact[Any]]) -> Iterator[str]:
    explained, is_in_ui = EXPLAINED.get(table), any(each.ui for each in facts)
    is_compared = any(each.diff for each in facts)
    heads = ["column", "type", "what it is", "unknown"]
    heads += [f"`explain --json`{explained}"] if explained is not None else []
    heads += ["in Dagster's UI"] if is_in_ui else []
    heads += ["`diff`"] if is_compared else []
    heads += ["since"]
    yield f"\n### {table}\n"
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for each in facts:
        key = " (key)" if each.is_key else ""
        column = f"`{each.column}`{key}" if each.has_column else ""
        cells = [column, each.type.value, each.meaning, _unknown(each)]
        cells += [f"`{each.json_path}`"] if explained is not None else []
        cells += [f"`{each.ui}`" if each.ui else ""] if is_in_ui else []
        cells += [f"`{each.diff}`" if each.diff else ""] if is_compared else []
        cells += [str(each.since)]
        yield f"| {' | '.join(cells)} |"
    why = {absence.name: absence.sentence for each in facts for absence in each.absent}
    if why:
        yield f"\nUnknown: {'; '.join(f'{name}: {words}' for name, words in why.items())}.\n"


def _unknown(fact: Fact[Any]) -> str:
    why = ", ".join(each.name for each in fact.absent)
    return f"{why} ({fact.instead} then)" if fact.instead else why


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text()))
    RULES_PAGE.write_text(with_rules(RULES_PAGE.read_text()))
    GLOSSARY_PAGE.write_text(glossary_page())
    DEFECTS_PAGE.write_text(with_defects(DEFECTS_PAGE.read_text()))
    FIELDS_PAGE.write_text(with_fields(FIELDS_PAGE.read_text()))
