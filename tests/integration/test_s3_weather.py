"""Bad weather between every process and S3 while a run of two ranks trains to its end.

A proxy in front of moto's server delays, loses, resets in mid-body, truncates and repeats requests,
answers 503 in bursts, and refuses all of them for a while because of a skewed clock. A reader that
shares no code with the product reads the bucket behind it, and the weights are compared with those of
an undisturbed run.

TRACKS_WEATHER_SEED=n repeats one weather.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import cast

import pytest

from tests.integration.homes import (
    COMMAND_S_MAX,
    Home,
    embedded,
    finished,
    on_servers,
    outcome,
    wait_for,
)
from tests.integration.paced import paced, step_of
from tests.real.raw_store import RawBucket, RawFolder, violations, weights_digest
from tests.s3_double import s3_double
from tests.s3_weather import BURSTS, SINGLE, WeatherDouble

STEPS = 400
PACE_S = 0.25
CLEAR_STEP = 340  # the last save of a run has no later one: bad weather for ever would fail it
RUN = "weather"

pytestmark = [pytest.mark.full, pytest.mark.timeout(3 * COMMAND_S_MAX)]


def test_a_run_trains_to_its_end_through_bad_weather(
    tmp_path: Path, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("TRACKS_WEATHER_SEED") or random.SystemRandom().randrange(2**32))
    print(f"\nTRACKS_WEATHER_SEED={seed}")
    plain = embedded(tmp_path / "plain")
    direct = on_servers(tmp_path / "direct", postgres_url="", s3_endpoint=s3_endpoint)
    for name, value in direct.variables.items():
        monkeypatch.setenv(name, value)  # this process looks past the weather
    raw = RawBucket(direct.variables["TRACKS_STORE"], direct.variables)
    with (
        paced(plain, RUN, steps=STEPS, pace_s=0.0) as calm,
        s3_double(s3_endpoint, lambda endpoint: WeatherDouble(endpoint, seed=seed)) as double,
    ):
        weather = cast(WeatherDouble, double)
        places = {"TRACKS_HOME": str(tmp_path / "home"), "AWS_ENDPOINT_URL_S3": double.endpoint}
        home = Home({**direct.variables, **places})
        with paced(home, RUN, steps=STEPS, pace_s=PACE_S) as command:
            wait_for(lambda: command.poll() is not None or step_of(direct, RUN) > 0)
            weather.begin()
            wait_for(lambda: command.poll() is not None or step_of(direct, RUN) >= CLEAR_STEP)
            weather.end()
            assert command.poll() is None, finished(command).stderr
            ended = finished(command)
        assert outcome(calm)["state"] == "succeeded"
    print(f"played: {dict(weather.played)}")
    result = [line for line in ended.stderr.splitlines() if "answer" in line or "clock" in line]
    print("\n".join(result))
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert set(weather.played) == {*SINGLE, *BURSTS}, "not every kind of weather was played"
    assert violations(raw) == []
    undisturbed = RawFolder(tmp_path / "plain" / "home" / "store")
    assert weights_digest(raw, RUN) == weights_digest(undisturbed, RUN)
