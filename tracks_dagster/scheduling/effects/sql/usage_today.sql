-- Every attempt and every eval that held devices since a time.
select
    t.team, t.owner, t.workload_class, 0 as is_eval,
    a.devices, a.accelerator, a.device_class, a.pool,
    coalesce(a.queue_to_us, a.placed_us) as begin_us,
    coalesce(a.held_to_us, :now_us) as end_us
from attempt_facts a
join training_runs t on t.run_id = a.run_id
where coalesce(a.queue_to_us, a.placed_us) is not null
    and t.state <> 'imported'
    and (a.held_to_us is null or a.held_to_us >= :since_us)
union all
select
    t.team, t.owner, t.workload_class, 1 as is_eval,
    1 as devices, t.device_class as accelerator, t.device_class,
    'local/' || t.device_class as pool, -- evals run on this machine: as that of an attempt here
    e.started_us as begin_us,
    e.ended_us as end_us
from evals e
join training_runs t on t.run_id = e.run_id
where e.ended_us >= :since_us
