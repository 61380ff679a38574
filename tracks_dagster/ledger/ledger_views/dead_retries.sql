-- Retries that ended, not as meant, without a step that the run kept.
-- is_same_failure: it failed as the attempt before it did.
select
    run_id,
    attempt_id,
    cause,
    reason,
    reason_family,
    fingerprint,
    closed_us,
    device_s / 3600 as device_hours,
    is_same_failure
from attempt_time
where is_dead_retry = 1
