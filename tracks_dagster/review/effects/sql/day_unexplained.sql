-- The attempts of one day that have no verdict: nothing as meant, and nobody knows what it was.
-- matter_total: how many of them are why their run needs a person, and are counted with it.
select a.partition_key, a.termination_reason, a.confidence, a.root_message, a.gpu_seconds,
       a.lost_steps, a.owner, r.state as run_state, count(*) over () as total,
       sum(case when r.state in ('refused', 'waiting') and r.attempt_count = a.attempt_id
                then 1 else 0 end) over () as matter_total
from training_attempts a
join training_runs r on r.run_id = a.run_id
where a.closed_at >= :begin and a.closed_at < :end
  and a.reason_family <> :as_meant
  and r.state <> 'imported' -- nobody can give those a verdict here
  and (a.termination_reason = :unknown or coalesce(a.confidence, 0) <= 0)
order by a.gpu_seconds desc, a.partition_key
limit :rows_max
