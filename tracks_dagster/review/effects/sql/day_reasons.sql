-- What ended on one day (the end was recorded on it), by reason: how often, and what it took.
select termination_reason, reason_family,
       count(*) as attempt_count,
       count(distinct run_id) as run_count,
       coalesce(sum(gpu_seconds), 0) as device_s,
       sum(kept_steps) as kept_steps,
       sum(lost_steps) as lost_steps
from training_attempts
where closed_at >= :begin and closed_at < :end
group by termination_reason, reason_family
