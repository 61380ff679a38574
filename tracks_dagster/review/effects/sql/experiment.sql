-- The newest runs of an experiment, or of a model family where no experiment has that name, and the runs
-- that they name as baseline: these are shown. Beside them what may be the baseline of all its runs: the
-- ones that are named, the baseline that was named last with the run that names it, the newest that was
-- promoted, the oldest. With the losses of each one's newest commit.
with members as (
    select run_id, baseline, declared_at from training_runs
    where experiment = :name or (model_family = :name and not exists (
        select 1 from training_runs e where e.experiment = :name
    ))
), newest as (
    select run_id, baseline from members order by declared_at desc, run_id desc limit :runs_max
), shown as (
    select run_id from newest union select baseline from newest where baseline is not null
), naming as (
    select run_id, baseline from members
    where baseline in (select t.run_id from training_runs t)
    order by declared_at desc, run_id desc limit 1
), promoted as (
    select run_id from members
    where run_id in (select p.run_id from promotions p where p.promoted)
    order by declared_at desc, run_id desc limit 1
), oldest as (
    select run_id from members order by declared_at, run_id limit 1
)
select
    (select count(*) from members) as run_count,
    case when r.run_id in (select run_id from shown) then 1 else 0 end as is_shown,
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
where r.run_id in (select run_id from shown)
    or r.run_id in (select run_id from naming) or r.run_id in (select baseline from naming)
    or r.run_id in (select run_id from promoted) or r.run_id in (select run_id from oldest)
    or (r.run_id in ({named}) and (
        r.run_id in (select run_id from members) or r.run_id in (select baseline from members)
    ))
order by r.declared_at, r.run_id
