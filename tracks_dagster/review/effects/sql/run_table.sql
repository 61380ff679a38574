-- All runs, the newest first: a part of them, with what the table of runs shows.
select
    r.run_id, r.state, r.model_family, r.owner, r.team, r.workload_class, r.experiment, r.stage,
    r.intent, r.declared_at, r.finished_at, r.step, r.max_steps, r.attempt_count, r.ranks,
    r.state_why, r.device_seconds, r.dataset, r.git_commit, r.config_json,
    a.termination_reason,
    (
        select p.alias from promotions p
        where p.run_id = r.run_id and p.promoted order by p.seq desc limit 1
    ) as alias,
    (
        select c.metrics_json from checkpoints c
        where c.run_id = r.run_id order by c.committed_us desc limit 1
    ) as metrics_json
from (
    select run_id from training_runs
    order by declared_at desc, run_id limit :runs_max offset :from_run
) part
join training_runs r on r.run_id = part.run_id
left join training_attempts a on a.run_id = r.run_id and a.attempt_id = r.attempt_count
order by r.declared_at desc, r.run_id
