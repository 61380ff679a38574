-- The attempts of one day that ended for one reason, the dearest first.
select a.partition_key, a.termination_reason, a.confidence, a.root_message, a.gpu_seconds,
       a.lost_steps, a.owner, r.state as run_state, count(*) over () as total
from training_attempts a
join training_runs r on r.run_id = a.run_id
where a.closed_at >= :begin and a.closed_at < :end and a.termination_reason = :reason
order by a.gpu_seconds desc, a.partition_key
limit :rows_max
