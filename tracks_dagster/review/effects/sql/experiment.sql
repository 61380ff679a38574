-- The newest runs of an experiment, or of a model family where no experiment has that name, and the runs
-- that they name as baseline; with the losses of each one's newest commit.
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
    r.step, r.final_step, r.promotion_json, k.metrics_json, k.step as trained_step,
    (
        select p.alias from promotions p
        where p.run_id = r.run_id and p.promoted order by p.seq desc limit 1
    ) as alias
from training_runs r
left join training_attempts a on a.run_id = r.run_id and a.attempt_id = r.attempt_count
left join checkpoints k on k.run_id = r.run_id and k.manifest_sha256 = (
    select c.manifest_sha256 from checkpoints c
    where c.run_id = r.run_id and c.quarantined_at is null
    order by c.attempt_id desc, c.step desc limit 1
)
where r.run_id in (select run_id from chosen) or r.run_id in (select baseline from chosen)
order by r.declared_at, r.run_id
