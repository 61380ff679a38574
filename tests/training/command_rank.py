"""A rank whose trainer is the shell's: `plan.json` beside the store has the command's arguments."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tracks_dagster.track import names
from tracks_dagster.training.projects import command

if __name__ == "__main__":
    plan = json.loads((Path(os.environ[names.ENV_STORE]).parent / "plan.json").read_text())
    own = [] if plan[0].endswith(".sh") else [str(Path(__file__).with_name("command_trainer.sh"))]
    folder = Path(os.environ[names.ENV_WORK]) / "code"
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    sys.exit(command.main(["sh", *own, *plan]))
