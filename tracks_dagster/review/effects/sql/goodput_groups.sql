-- Where the time went of the attempts that ended since :since_us, or are open, one row a group; the
-- group stands in place of {key}, the price table in place of {prices}.
select
    {key} as name,
    count(*) as attempts,
    sum(kept_steps) as kept_steps,
    sum(lost_steps) as lost_steps,
    sum(idle_s) as idle_s,
    sum(queue_s) as queue_s,
    sum(startup_s) as startup_s,
    sum(restore_s) as restore_s,
    sum(step_kept_s) as step_kept_s,
    sum(step_lost_s) as step_lost_s,
    sum(checkpoint_blocking_s) as checkpoint_blocking_s,
    sum(data_wait_s) as data_wait_s,
    sum(inline_eval_s) as inline_eval_s,
    sum(detection_s) as detection_s,
    sum(unknown_s) as unknown_s,
    sum(held_s) as held_s,
    sum(startup_device_s) as startup_device_s,
    sum(restore_device_s) as restore_device_s,
    sum(step_kept_device_s) as step_kept_device_s,
    sum(step_lost_device_s) as step_lost_device_s,
    sum(checkpoint_blocking_device_s) as checkpoint_blocking_device_s,
    sum(data_wait_device_s) as data_wait_device_s,
    sum(inline_eval_device_s) as inline_eval_device_s,
    sum(detection_device_s) as detection_device_s,
    sum(unknown_device_s) as unknown_device_s,
    sum(device_s) as device_s,
    sum(device_s * price / 3600) as cost,
    sum((device_s - step_kept_device_s) * price / 3600) as wasted_cost,
    sum(case when price is null then device_s else 0 end) as unpriced_device_s,
    sum(is_dead_retry) as dead_retries,
    sum(is_dead_retry * device_s) as dead_device_s,
    sum(is_dead_retry * is_same_failure) as same_failure_retries,
    sum(is_dead_retry * is_same_failure * device_s) as same_failure_device_s,
    sum(case when cause = 'manual_retry' then 1 else 0 end) as manual_restarts,
    sum(case when cause = 'retry' then 1 else 0 end) as automatic_restarts,
    sum(cycled_node_count) as hosts_cycled,
    sum(is_planned) as planned_interruptions,
    sum(is_interruption) as interruptions,
    sum(is_interruption * detection_s) as detect_s,
    sum(is_interruption * repair_s) as repair_s,
    sum(case when repair_s is not null then is_interruption else 0 end) as repaired
from (
    select t.*, coalesce(pa.per_hour, pc.per_hour, a.per_hour, c.per_hour) as price
    from attempt_time t
    left join ({prices}) pa on pa.pool = t.pool and pa.name = t.accelerator
    left join ({prices}) pc on pc.pool = t.pool and pc.name = t.device_class
    left join ({prices}) a on a.pool = '' and a.name = t.accelerator
    left join ({prices}) c on c.pool = '' and c.name = t.device_class
    where (t.closed_us is null or t.closed_us >= :since_us)
        and (:family is null or t.model_family = :family)
) as priced
group by {key}
order by sum(device_s - step_kept_device_s) desc, {key}
limit :groups_max
