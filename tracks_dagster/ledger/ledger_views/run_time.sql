-- Every run's account: its seconds by bucket sum to wall_s, idle included.
-- ettr_wall: kept step seconds by all seconds; ettr: by those in which an attempt held devices.
-- gpu_goodput: device seconds of kept steps by all that were held.
with sums as (
    select
        run_id,
        count(*) as attempts,
        sum(kept_steps) as kept_steps,
        sum(lost_steps) as lost_steps,
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
        sum(step_kept_device_s) as step_kept_device_s,
        sum(step_lost_device_s) as step_lost_device_s,
        sum(device_s) as device_s
    from attempt_time
    group by run_id
),
walls as (
    select
        run_id,
        model_family,
        team,
        cast(
            case when finished_us <= :as_of_us then finished_us else :as_of_us end - declared_us
            as double precision
        ) / 1000000 as wall_s
    from run_facts
    where declared_us <= :as_of_us and (told_us >= :since_us or finished_us is null)
)
select
    w.run_id,
    w.model_family,
    w.team,
    coalesce(s.attempts, 0) as attempts,
    coalesce(s.kept_steps, 0) as kept_steps,
    coalesce(s.lost_steps, 0) as lost_steps,
    w.wall_s,
    coalesce(s.queue_s, 0) as queue_s,
    coalesce(s.startup_s, 0) as startup_s,
    coalesce(s.restore_s, 0) as restore_s,
    coalesce(s.step_kept_s, 0) as step_kept_s,
    coalesce(s.step_lost_s, 0) as step_lost_s,
    coalesce(s.checkpoint_blocking_s, 0) as checkpoint_blocking_s,
    coalesce(s.data_wait_s, 0) as data_wait_s,
    coalesce(s.inline_eval_s, 0) as inline_eval_s,
    coalesce(s.detection_s, 0) as detection_s,
    w.wall_s - coalesce(
        s.queue_s + s.startup_s + s.restore_s + s.step_kept_s + s.step_lost_s
        + s.checkpoint_blocking_s + s.data_wait_s + s.inline_eval_s + s.detection_s + s.unknown_s, 0
    ) as idle_s,
    coalesce(s.unknown_s, 0) as unknown_s,
    coalesce(s.held_s, 0) as held_s,
    coalesce(s.step_kept_device_s, 0) as step_kept_device_s,
    coalesce(s.step_lost_device_s, 0) as step_lost_device_s,
    coalesce(s.device_s, 0) as device_s,
    case when w.wall_s > 0 then coalesce(s.step_kept_s, 0) / w.wall_s end as ettr_wall,
    case when s.held_s > 0 then s.step_kept_s / s.held_s end as ettr,
    case when s.device_s > 0 then s.step_kept_device_s / s.device_s end as gpu_goodput
from walls w
left join sums s on s.run_id = w.run_id
