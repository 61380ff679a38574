"""Checks for the tests of a model: they find wiring mistakes before a long run pays for them.

    from tracks_dagster.testing import check_every_parameter_learns, check_positions

    def test_the_model_is_wired() -> None:
        model, tokens = Gpt(config), torch.randint(256, (3, 8))
        check_positions(model, tokens)
        check_every_parameter_learns(model, tokens)

Each takes a model, or any function, and its inputs: a tensor, a tuple of arguments, or a dict of
keyword arguments. A model is run in the mode that it is in and left as it was: weights, buffers,
gradients and random numbers. What is wrong raises Finding (an AssertionError), what cannot be
judged CannotCheck. They need the base packages alone; docs/testing.md shows each, and what `pytest
--tracks` does.
"""

from tracks_dagster.testing.finding import CannotCheck, Finding
from tracks_dagster.testing.learning import (
    check_every_parameter_learns,
    check_loss_hears_the_output,
    check_overfits_one_batch,
    check_tied,
)
from tracks_dagster.testing.mixing import check_positions, check_samples_do_not_mix
from tracks_dagster.testing.outputs import (
    check_dtypes,
    check_finite,
    check_on_device,
    check_shapes,
)
from tracks_dagster.testing.sameness import check_deterministic, check_same

__all__ = [
    "CannotCheck",
    "Finding",
    "check_deterministic",
    "check_dtypes",
    "check_every_parameter_learns",
    "check_finite",
    "check_loss_hears_the_output",
    "check_on_device",
    "check_overfits_one_batch",
    "check_positions",
    "check_same",
    "check_samples_do_not_mix",
    "check_shapes",
    "check_tied",
]
