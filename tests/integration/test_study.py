"""A small study with real gangs: its command and daemon are killed, and nothing is trained twice."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.examples import EXAMPLES
from tests.integration.homes import Home, embedded, finished, wait_for
from tracks_dagster.studies.deciding import epochs_of
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.wiring import open_dagster_home

STUDY = """
name: lr
metric: loss
space: {lr: [0.01, 0.003, 0.001, 0.0003]}
search: grid
scheduler: {kind: halving, budgets: [4, 12], eta: 2}
slots: 2
config: {hidden: 16}
"""


def test_four_trials_on_two_slots_survive_kills_and_two_go_on_from_their_commits(
    tmp_path: Path,
) -> None:
    home = Home({**embedded(tmp_path).variables, "TRACKS_DEVICES": "2"})
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    words = ("tune", str(path), "--project", str(EXAMPLES / "tabular"), "--json")
    first = home.start(*words)
    wait_for(lambda: bool(judged_of(home)))
    first.kill()
    first.communicate()
    daemon = open_dagster_home(home.settings).find_daemon()
    if daemon is not None:
        os.kill(daemon.pid, signal.SIGKILL)
    done = finished(home.start(*words))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    study = home.app.tracks.study("lr")
    assert (result["cause"], result["best"]) == ("complete", study.best.number)
    assert sorted(len(t.rungs) for t in study.trials) == [1, 1, 2, 2]
    assert epochs_of(study) == 4 * 4 + 2 * (12 - 4)
    for trial in study.trials:
        for rung in trial.rungs:
            run = home.app.tracks.run(rung.proposed.run_id)
            assert run.finished.final.step == rung.proposed.steps
            assert run.declared.branched_from == rung.proposed.source
    assert most_at_once(study) == 2
    assert "2 stopped, 2 done" in home.call("studies", "lr").stdout
    assert home.call("fsck").returncode == 0
    assert finished(home.start(*words)).returncode == 0  # finished: nothing more is trained
    assert home.app.tracks.study("lr").head == study.head


def judged_of(home: Home) -> list[int]:
    """Return the trials that are judged so far; none before there is a study."""
    study = home.app.tracks.find_study("lr")
    trials = () if study is None else study.trials
    return [t.number for t in trials if t.rungs[0].judged is not None]


def most_at_once(study: StudyState) -> int:
    """Return how many runs were open together, by their records."""
    rungs = [rung for trial in study.trials for rung in trial.rungs]
    moments = [(rung.at, 1) for rung in rungs] + [(rung.judged_at, -1) for rung in rungs]
    open_count = most = 0
    for _, change in sorted(moments):
        open_count += change
        most = max(most, open_count)
    return most
