-- The newest runs of one model family, with the newest decision on a promotion of each.
select
    r.run_id, r.owner, r.state, r.config_json, r.device_seconds, r.max_steps, r.declared_at,
    r.branched_from_run_id, r.branched_from_step,
    coalesce(r.final_step, a.last_step, a.resumed_from_step) as recorded_step,
    p.metric, p.value, p.direction, p.promoted, p.alias
from training_runs r
left join training_attempts a on a.run_id = r.run_id and a.attempt_id = r.attempt_count
left join promotions p on p.run_id = r.run_id and p.seq = (
    select max(q.seq) from promotions q where q.run_id = r.run_id
)
where r.model_family = :family
order by r.declared_at desc, r.run_id
limit :runs_max
