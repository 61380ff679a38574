-- Which devices the attempts that ended on one day took, by reason: what their price depends on.
select a.termination_reason, a.accelerator, r.device_class, a.pool,
       coalesce(sum(a.gpu_seconds), 0) as device_s
from training_attempts a
join training_runs r on r.run_id = a.run_id
where a.closed_at >= :begin and a.closed_at < :end
group by a.termination_reason, a.accelerator, r.device_class, a.pool
order by a.termination_reason, a.accelerator, r.device_class, a.pool
