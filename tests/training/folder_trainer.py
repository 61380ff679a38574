"""A trainer that writes its own folders: run as a script by real ranks.

What it trains is a chain of digests, of each rank and step. Beside the store lies `plan.json`:
{"apart": true} gives each rank a folder of its own, {"clash": true} one name to files that differ.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from tracks_dagster.track import names
from tracks_dagster.training import attempt
from tracks_dagster.training.attempt import Attempt

BIG = 6 * 1024 * 1024


def main() -> None:
    """Train to the config's last step."""
    plan = json.loads((Path(os.environ[names.ENV_STORE]).parent / "plan.json").read_text())
    with attempt.join() as a:
        found = a.folder()
        state = json.loads((found / f"rank-{a.rank}.json").read_text()) if found else [0, ""]
        for step in range(state[0] + 1, a.config["steps"] + 1):
            digest = hashlib.sha256(f"{state[1]} {step} {a.rank}".encode()).hexdigest()
            state = [step, digest]
            ends = a.ends(step, last=step == a.config["steps"])
            a.report(step, loss=int(digest[:4], 16) / 2**16)
            if ends.save:
                a.commit_folder(step, write(a, plan, state))
            if ends.stop:
                return


def write(a: Attempt, plan: dict[str, bool], state: list[object]) -> Path:
    """Write this rank's files of a step."""
    folder = Path(os.environ[names.ENV_WORK]) / "out" / f"step-{state[0]}"
    if plan.get("apart"):
        folder = folder.with_name(f"{folder.name}-of-{a.rank}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank-{a.rank}.json").write_text(json.dumps(state))
    if a.rank == 0 or plan.get("apart"):
        (folder / "big.bin").write_bytes(f"{state[0]:032d}".encode() * (BIG // 32))
    if plan.get("clash"):
        (folder / "own.json").write_text(str(a.rank))
    return folder


if __name__ == "__main__":
    main()
