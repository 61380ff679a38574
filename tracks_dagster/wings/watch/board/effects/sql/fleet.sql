-- The fleet: runs that are open, were refused lately, or finished lately, newest declaration first, with
-- what is shown of one whose journal is not read: its newest step on record, the alias it was given.
select
    r.run_id, r.model_family, r.workload_class, r.owner, r.ranks, r.state, r.state_why, r.declared_at,
    r.finished_at, r.max_steps, r.attempt_count,
    r.step as recorded_step,
    (
        select p.alias from promotions p
        where p.run_id = r.run_id and p.promoted order by p.seq desc limit 1
    ) as promoted_to
from training_runs r
left join training_attempts a on a.run_id = r.run_id and a.attempt_id = r.attempt_count
where r.state in (:running, :waiting)
    or (r.state = :refused and a.closed_at >= :since)
    or r.finished_at >= :since
order by case when r.finished_at is null then 0 else 1 end, r.declared_at desc, r.run_id
limit :runs_max
