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
    script = Path(__file__).with_name("command_trainer.sh")
    sys.exit(command.main(["sh", str(script), *plan]))
