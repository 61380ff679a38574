-- The device time of each team since :since_us: a row for each attempt that held its devices for an hour or
-- longer, and one for all shorter ones that ended in the same hour.
select
    team,
    min(begin_us) as begin_us,
    max(end_us) as end_us,
    sum(cast(devices as double precision) * (end_us - begin_us)) as device_us
from (
    select
        t.team, a.devices, a.run_id, a.attempt_id,
        coalesce(a.queue_to_us, a.placed_us) as begin_us,
        coalesce(a.held_to_us, :now_us) as end_us
    from attempt_facts a
    join training_runs t on t.run_id = a.run_id
    where coalesce(a.queue_to_us, a.placed_us) is not null
        and t.state <> 'imported'
        and (a.held_to_us is null or a.held_to_us >= :since_us)
) held
group by
    team,
    case
        when end_us - begin_us >= 3600000000 then run_id || ' ' || cast(attempt_id as text)
        else cast(end_us / 3600000000 as text)
    end
