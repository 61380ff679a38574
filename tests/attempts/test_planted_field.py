"""A field of a declaration is one row and one field of the body: planted, it is offered everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = """DECLARED = (
    Field("ticket", Kind.TEXT, "The ticket that asked for it.", key="ticket", example="ML-7",
          inherits=True, required="NAME", column=Column("the ticket that asked for it",
          "no_ticket", "nobody asked in one", since=10)),
"""
BODY = """    baseline: str | None = None
    ticket: str | None = None
"""
ASK = """
import json
from pathlib import Path
from click.testing import CliRunner
from tests.asked import asked
from tests.reference import with_fields
from tracks_dagster.cli.start.run import run_command, smoke_command
from tracks_dagster.projects.effects.project_file import parse_project
from tracks_dagster.projects.project_text import render_project
from tracks_dagster.defs.assets.declarations import LAUNCHPAD
from tracks_dagster.ledger.facts.tables import FACTS
from tracks_dagster.retry.submission import FIELDS
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.declared_fields import WORDS, inherited
from tracks_dagster.track.effects.settings_file import parse_settings

text = "name: mine\\nentry: ./train.sh\\nticket: {}\\n"
file = parse_settings(text.format("ML-9"), "The file")
wrong = parse_settings(text.format("[1]"), "The file")
project = parse_project(file, Path("."))
parse_project(wrong, Path("."))
request = asked(run_id="r-1", intent="Try.", owner="ann", project=project)
body = request.but(ticket="ML-8").prepared().body
[fact] = [each for each in FACTS["training_runs"] if each.name == "ticket"]
[line] = [each for each in with_fields("").splitlines() if "`ticket`" in each]
print(json.dumps({
    "options": ["--ticket" in CliRunner().invoke(each, ["--help"]).output
                for each in (run_command, smoke_command)],
    "given": to_json(body)["ticket"],
    "by project": request.prepared().body.ticket,
    "inherited": inherited(body, body.compute)["ticket"],
    "problems": [f"line {each.line}: {each.words}" for each in wrong.problems if each.line == 3],
    "manual": "# The ticket that asked for it.\\n# ticket: ML-7\\n" in render_project({}),
    "launchpad": LAUNCHPAD["ticket"].description,
    "column": [fact.column, fact.type.value, fact.meaning, fact.absent[0].name],
    "required": FIELDS["ticket"].advice,
    "is cleaned": "ticket" in WORDS,
    "docs": line,
}))
"""


def planted(package: Path, module: str, old: str, new: str) -> None:
    path = package / module
    text = path.read_text("utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), "utf-8")


def test_a_field_is_one_row_and_one_field_of_the_body(tmp_path: Path) -> None:
    package = tmp_path / "tracks_dagster"
    shutil.copytree(ROOT / "tracks_dagster", package)
    planted(package, "track/declared_fields.py", "DECLARED = (\n", ROW)
    planted(package, "track/bodies.py", "    baseline: str | None = None\n", BODY)
    script = tmp_path / "ask.py"
    script.write_text(ASK)
    asked = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout) == {
        "options": [True, True],
        "given": "ML-8",
        "by project": "ML-9",
        "inherited": "ML-8",
        "problems": [
            "line 3: ticket: [1] is not a name; write a word, in quotes if it looks like a number."
        ],
        "manual": True,
        "launchpad": "The ticket that asked for it.",
        "column": ["ticket", "text", "the ticket that asked for it", "no_ticket"],
        "required": "--ticket NAME, or ticket: in its tracks.yaml",
        "is cleaned": True,
        "docs": "| `ticket` | `--ticket` | `ticket` |  | The ticket that asked for it. |",
    }
