"""A cap in money, from the command to the checkpoint: the real daemon, the real gang."""

from __future__ import annotations

import pytest

from tests.integration.homes import COMMAND_S_MAX, Home, embedded, outcome, wait_for
from tests.integration.paced import SCRIPT

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]

PRICES = "currency: USD\nper_device_hour: {cpu: 3600}\n"  # a device second costs 1 USD
PACED = ("--ranks", "2", "--steps", "4000", "--set", "pace_s=0.2", "--set", "global_batch=24")
CAP = "80"  # USD, 40 s of both ranks: a busy machine trains its first steps in them too
SAVES = ("--checkpoint-every", "1000", "--seed", "7", "--intent", "A run of the tests.")


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Everything in one folder, for a daemon of its own."""
    return embedded(tmp_path_factory.mktemp("capped"))


def test_a_run_saves_and_ends_at_its_price_and_goes_on_with_more(home: Home) -> None:
    with home.daemon():
        home.settings.home.joinpath("prices.yaml").write_text(PRICES)
        command = ("run", "--run-id", "capped", *PACED, *SAVES, *SCRIPT, "--max-cost", CAP)
        found = outcome(home.start(*command), exit_code=1)
        [only] = found["attempts"]
        assert (found["state"], only["termination_reason"]) == ("refused", "budget_exhausted")
        state = home.app.tracks.run("capped")
        assert only["lost_steps"] == 0 < only["kept_steps"]
        [commit] = state.checkpoints
        assert (commit.body.trigger, commit.ref.step) == ("sigterm", only["last_step"])
        assert state.refusal is not None
        assert f"of at most {CAP}.00 USD spent" in state.refusal.body.decision
        assert home.call("retry", "capped", "--why", "More.").returncode == 2
        more = home.call("retry", "capped", "--why", "It is worth it.", "--max-cost", "1000000")
        assert more.returncode == 0, more.stderr

        def goes_on() -> bool:
            attempt = home.app.tracks.run("capped").attempts[-1]
            return attempt.restored is not None and attempt.restored.step == commit.ref.step

        wait_for(goes_on)
        assert home.call("stop", "capped", "--why", "Enough.").returncode == 0
        wait_for(lambda: home.app.tracks.run("capped").finished is not None)
