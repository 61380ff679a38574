"""The narrow tables that time is accounted from; `ledger_views` are views over them.

A scan of them reads a tenth of what one of `training_attempts` does. Columns that end in `_us` are
moments in whole microseconds since 1970, so that the views compute alike on every database; those of
records never go back from one record to the next.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Double, Table, Text

from tracks_dagster.ledger.effects.database.columns import key, may, metadata, must

run_facts = Table(
    "run_facts",
    metadata,
    key("run_id", Text),
    must("model_family", Text),
    must("team", Text),
    must("declared_us", BigInteger),
    may("finished_us", BigInteger),
    must("told_us", BigInteger),  # its newest moment
)

attempt_facts = Table(
    "attempt_facts",
    metadata,
    key("run_id", Text),
    key("attempt_id", BigInteger),
    must("opened_us", BigInteger),
    may("placed_us", BigInteger),
    may("restored_us", BigInteger),
    # what it was opened to resume from; attempt and seconds are null of another run, or afresh
    must("asked_step", BigInteger),
    may("asked_attempt_id", BigInteger),
    may("asked_steps_s", Double),  # that attempt's step seconds up to the commit
    # what it restored, null before it has
    may("restored_step", BigInteger),
    may("restored_attempt_id", BigInteger),
    may("restored_steps_s", Double),
    # what its end tells, null while it is open: when each phase ended, one after the other
    may("queue_to_us", BigInteger),  # the first rank started
    may("startup_to_us", BigInteger),  # it was placed
    may("restore_to_us", BigInteger),  # it had restored
    may("steps_to_us", BigInteger),  # its last step was done
    may("held_to_us", BigInteger),  # the last rank ended
    may("closed_us", BigInteger),  # the end was recorded
    may("reason", Text),  # as it was closed; later ones are in attempt_readings
    may("reason_family", Text),
    may("fingerprint", Text),
    may("last_step", BigInteger),
    may("spent_steps_s", Double),  # measured by rank 0
    may("spent_data_s", Double),
    may("spent_saving_s", Double),
    may("spent_eval_s", Double),
    must("devices", BigInteger),
    must("device_class", Text),
    must("accelerator", Text),
    must("cause", Text),
    may("debit_reason", Text),
    may("debit_amount", Double),
    must("cycled_node_count", BigInteger),  # excluded nodes that the attempt before did not exclude
)

attempt_readings = Table(  # later readings of why attempts ended
    "attempt_readings",
    metadata,
    key("run_id", Text),
    key("seq", BigInteger),
    must("attempt_id", BigInteger),
    must("told_us", BigInteger),
    must("reason", Text),
    must("reason_family", Text),
    must("fingerprint", Text),
)
