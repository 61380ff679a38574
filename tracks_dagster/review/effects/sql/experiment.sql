-- The newest runs of an experiment, or of a model family where no experiment has that name, and the runs
-- that they name as baseline; with what measured each last.
with chosen as (
    select run_id, baseline, declared_at from training_runs
    where experiment = :name or (model_family = :name and not exists (
        select 1 from training_runs e where e.experiment = :name
    ))
    order by declared_at desc, run_id
    limit :runs_max
)
select
    r.run_id, r.owner, r.state, r.device_seconds, r.trainer, r.environment_json,
    coalesce(a.config_json, r.config_json) as config_json, coalesce(a.ranks, r.ranks) as ranks,
    coalesce(a.snapshot_id, r.snapshot_id) as snapshot_id, a.code_sha256,
    r.experiment, r.baseline, r.branched_from_run_id, r.branched_from_step,
    coalesce(r.final_step, a.last_step, a.resumed_from_step) as recorded_step,
    p.metric, p.value, p.direction, p.promoted, p.alias, p.suite as promoted_suite,
    p.suite_version as promoted_version, p.snapshot_id as promoted_snapshot, p.seed as promoted_seed,
    e.metrics_json, e.suite, e.suite_version, e.snapshot_id as eval_snapshot, e.seed
from training_runs r
left join training_attempts a on a.run_id = r.run_id and a.attempt_id = r.attempt_count
left join promotions p on p.run_id = r.run_id and p.seq = (
    select max(q.seq) from promotions q where q.run_id = r.run_id
)
left join evals e on e.run_id = r.run_id and e.reason = 'completed' and (e.ended_at, e.eval_id, e.number) = (
    select f.ended_at, f.eval_id, f.number from evals f
    where f.run_id = r.run_id and f.reason = 'completed'
    order by f.ended_at desc, f.eval_id, f.number limit 1
)
where r.run_id in (select run_id from chosen) or r.run_id in (select baseline from chosen)
order by r.declared_at, r.run_id
