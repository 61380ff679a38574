-- The newest runs that are not archived, with what `status` shows of each: its state, its newest attempt and launch, the alias
-- that its newest promotion gave, its open alerts, and how far its track was taken in.
select
    r.run_id, r.state, r.state_why, r.model_family, r.declared_at, r.max_steps, r.attempt_count,
    r.workload_class,
    r.branched_from_run_id, r.branched_from_step,
    a.termination_reason, a.dagster_run_id, a.launch_id,
    r.step as recorded_step,
    c.seq as head_seq, c.sha256 as head_sha256,
    (
        select p.alias from promotions p
        where p.run_id = r.run_id and p.promoted order by p.seq desc limit 1
    ) as promoted_to,
    (
        select count(*) from notes n
        where n.run_id = r.run_id and n.kind = 'alert' and n.cleared_at is null
    ) as open_alerts
from (
    select * from training_runs
    where archived_at is null order by declared_at desc, run_id limit :runs_max
) r
left join track_cursors c on c.track = 'runs/' || r.run_id
left join training_attempts a on a.run_id = r.run_id and a.attempt_id = r.attempt_count
order by r.declared_at desc, r.run_id
