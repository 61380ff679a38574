-- The attempt that stands after so many skipped ones among those that failed in that time.
select run_id, attempt_id
from training_attempts
where closed_at > :since and closed_at <= :until and termination_reason not in (:meant)
order by closed_at, run_id, attempt_id
limit 1 offset :skipped
