"""How much of its data a kitchen sink read: whole passes in the order of samples, counted by hand."""

from __future__ import annotations

import pytest

from tests.bodies import TRAIN
from tests.histories import History
from tracks_dagster.attempts.data_read import judge_data

CONFIG = {"max_iters": 40, "global_batch": 24}
ROLES = {"steps": "max_iters"}
OF = f"snapshot {TRAIN.snapshot_id[:12]} of aws-docs"


def run(step: int = 40, *, begun: int = 0, skip: object = None, **commit: object) -> History:
    """Return a run of 24 samples a step that finished at that step."""
    config = CONFIG if skip is None else {**CONFIG, "skip_windows": skip}
    history = History().declare(stage="kitchen_sink", config=config, roles=ROLES).open()
    history.place().restore(cursor=begun)
    history.commit(step, trigger="final", **{"pass_samples": 400, **commit})
    return history.end(last_step=step).finish()


@pytest.mark.parametrize(
    ("history", "is_whole", "words"),
    [
        # 40 × 24 = 960 samples are two passes of 400 and 160 more
        (run(), True, f"it read 960 samples of {OF}, where a pass has 400"),
        (run(pass_samples=960), True, "where a pass has 960"),
        # 961 / 24 = 40.04
        (
            run(pass_samples=961),
            False,
            "a pass has 961; max_iters = 41 from step 0 on would read all",
        ),
        # from 24 on: 400 to 800 is whole; of passes of 500 only 500 to 960 was read
        (run(begun=24), True, "it read 936 samples"),
        (run(begun=24, pass_samples=500), False, "max_iters = 21 from step 0 on"),
        # block 11, samples 240 to 264, of the first pass; the second is whole
        (run(skip=[[11, 11]]), True, "a pass has 400; 240 to 264 of the order were left out"),
        (run(skip=[[11, 11]], pass_samples=900), False, "240 to 264 of the order were left out"),
        # the loader's own order: a pass is known once the next one has begun
        (run(cursor=None, epoch=1, pass_samples=None), True, f"went through {OF} 1 time"),
        (run(cursor=None, epoch=0, pass_samples=None), False, "0 times; one step of the next pass"),
        (
            run(cursor=None, epoch=None, pass_samples=None),
            False,
            f"how much of {OF} it read is unknown",
        ),
        (run(pass_samples=None), False, "unknown: an older version recorded no length"),
    ],
)
def test_all_data_was_read_where_one_whole_pass_was(
    history: History, is_whole: bool, words: str
) -> None:
    read = judge_data(history.state)
    assert words in read.why
    assert read.is_whole is is_whole


def test_what_another_attempt_left_out_was_left_out() -> None:
    history = History().declare(stage="kitchen_sink", config=CONFIG).open().place().restore()
    history.commit(10).end("nan_loss", last_step=12)
    history.open(config={**CONFIG, "skip_windows": [[11, 13]]}).place().restore()
    history.commit(40, cursor=24 * 43, pass_samples=1000).end(last_step=40).finish()
    read = judge_data(history.state)
    assert not read.is_whole
    assert "240 to 312 of the order were left out (skip_windows)" in read.why


def test_a_run_without_a_checkpoint_says_nothing_of_its_data() -> None:
    history = History().declare(snapshot=None).open().place().restore().end(last_step=5).finish()
    read = judge_data(history.state)
    assert (read.is_whole, read.why) == (
        False,
        "how much of the data it read is unknown: it has no final checkpoint",
    )
