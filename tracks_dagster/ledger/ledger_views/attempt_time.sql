-- Every second of every attempt in one bucket, and the device seconds of each: ledger.time_buckets in SQL.
-- A branch of a case on a moment that is null is not taken: "not yet, or never" needs no words.
with newest_reading as (
    select run_id, attempt_id, max(seq) as seq
    from attempt_readings
    where told_us <= :as_of_us
    group by run_id, attempt_id
),
-- what was known then: records that came later are as if they were not there
known as (
    select
        a.*,
        r.model_family,
        r.team,
        r.declared_us,
        case when a.closed_us <= :as_of_us then 0 else 1 end as is_open,
        case when a.placed_us <= :as_of_us then a.placed_us end as placed_by_us,
        case when a.restored_us <= :as_of_us then a.restored_us end as restored_by_us,
        case when a.restored_us <= :as_of_us then a.restored_step else a.asked_step end
            as resume_step,
        case when a.restored_us <= :as_of_us then a.restored_attempt_id else a.asked_attempt_id end
            as source_attempt_id,
        case when a.restored_us <= :as_of_us then a.restored_steps_s else a.asked_steps_s end
            as source_steps_s,
        case when r.finished_us <= :as_of_us then r.finished_us else :as_of_us end as run_until_us
    from run_facts r
    join attempt_facts a on a.run_id = r.run_id
    where a.opened_us <= :as_of_us
        and (r.told_us >= :since_us or r.finished_us is null)
),
-- of an attempt that was open, only what its newest commit reported
open_commits as (
    select
        k.run_id,
        k.attempt_id,
        c.step,
        c.spent_steps_s,
        c.spent_data_s,
        c.spent_saving_s,
        c.spent_eval_s,
        row_number() over (
            partition by k.run_id, k.attempt_id
            order by c.step desc, coalesce(c.spent_steps_s, 0) desc
        ) as place
    from known k
    cross join checkpoints c
    where k.is_open = 1
        and c.run_id = k.run_id
        and c.attempt_id = k.attempt_id
        and c.committed_us <= :as_of_us
),
-- where the step seconds of an attempt divide: at the commit that a later one resumed from
divides as (
    select run_id, source_attempt_id, resume_step, max(source_steps_s) as steps_s
    from known
    where source_steps_s is not null
    group by run_id, source_attempt_id, resume_step
),
reported as (
    select
        k.run_id,
        k.attempt_id,
        k.model_family,
        k.team,
        k.cause,
        k.devices,
        k.device_class,
        k.pool,
        k.accelerator,
        k.cycled_node_count,
        k.declared_us,
        k.run_until_us,
        k.opened_us,
        k.is_open,
        k.restored_by_us,
        k.resume_step,
        case when k.is_open = 0 then k.closed_us end as closed_us,
        case when k.is_open = 0 then k.closed_us else k.run_until_us end as until_us,
        case when k.is_open = 0 then k.queue_to_us else coalesce(k.placed_by_us, k.run_until_us) end
            as queue_to_us,
        case
            when k.is_open = 0 then k.startup_to_us else coalesce(k.placed_by_us, k.run_until_us)
        end as startup_to_us,
        case
            when k.is_open = 0 then k.restore_to_us else coalesce(k.restored_by_us, k.run_until_us)
        end as restore_to_us,
        case when k.is_open = 0 then k.held_to_us else k.run_until_us end as held_to_us,
        case
            when k.is_open = 1 then k.run_until_us
            when coalesce(l.reason, k.reason) in ('hang', 'data_loader_stall', 'node_failure')
            then k.steps_to_us
            else k.held_to_us
        end as steps_to_us,
        case when k.is_open = 0 then coalesce(l.reason, k.reason) end as reason,
        case when k.is_open = 0 then coalesce(l.reason_family, k.reason_family) end
            as reason_family,
        case when k.is_open = 0 then coalesce(l.fingerprint, k.fingerprint) end as fingerprint,
        case
            when k.is_open = 0 then k.last_step
            when c.step > k.resume_step then c.step
            else k.resume_step
        end as last_step,
        coalesce(case when k.is_open = 1 then c.spent_steps_s else k.spent_steps_s end, 0) as steps_s,
        coalesce(case when k.is_open = 1 then c.spent_data_s else k.spent_data_s end, 0) as data_s,
        coalesce(case when k.is_open = 1 then c.spent_saving_s else k.spent_saving_s end, 0)
            as saving_s,
        coalesce(case when k.is_open = 1 then c.spent_eval_s else k.spent_eval_s end, 0) as eval_s
    from known k
    left join newest_reading n on n.run_id = k.run_id and n.attempt_id = k.attempt_id
    left join attempt_readings l on l.run_id = n.run_id and l.seq = n.seq
    left join open_commits c
        on c.run_id = k.run_id and c.attempt_id = k.attempt_id and c.place = 1
),
-- its place among the attempts of its run, the newest first: of a frame that only grows, a database takes
-- the minimum in one pass, of one that shrinks Postgres computes it again at every row. Window functions keep
-- a database from copying what is above into every column that is below
ordered as (
    select
        t.*,
        min(t.resume_step) over later as later_resume,
        min(t.restored_by_us) over later as later_restored_us,
        lead(t.until_us) over later as before_us,
        lead(t.fingerprint) over later as before_fingerprint
    from reported t
    window later as (
        partition by t.run_id order by t.attempt_id desc
        rows between unbounded preceding and 1 preceding
    )
),
-- of a newest attempt that has ended, what no checkpoint of it holds that may be used is lost
saved as (
    select
        o.run_id,
        c.step,
        c.spent_steps_s,
        row_number() over (
            partition by o.run_id order by c.step desc, coalesce(c.spent_steps_s, 0) desc
        ) as place
    from ordered o
    cross join checkpoints c
    where o.later_resume is null
        and o.is_open = 0
        and c.run_id = o.run_id
        and c.attempt_id = o.attempt_id
        and c.committed_us <= :as_of_us
        and (c.withdrawn_us is null or c.withdrawn_us > :as_of_us)
),
steps as (
    select
        o.*,
        case
            when o.later_resume < o.last_step then o.later_resume
            when o.later_resume is not null or o.is_open = 1 then o.last_step
            when s.step >= o.last_step then o.last_step
            when s.step > o.resume_step then s.step
            else o.resume_step
        end as end_step,
        case when o.later_resume is null then s.spent_steps_s end as saved_steps_s,
        case
            when o.steps_s + o.data_s + o.saving_s + o.eval_s <= 0 then 0
            when cast(o.steps_to_us - o.restore_to_us as double precision) / 1000000
                < o.steps_s + o.data_s + o.saving_s + o.eval_s
            then cast(o.steps_to_us - o.restore_to_us as double precision) / 1000000
                / (o.steps_s + o.data_s + o.saving_s + o.eval_s)
            else 1
        end as scale
    from ordered o
    left join saved s on s.run_id = o.run_id and s.place = 1 and o.later_resume is null
),
shared as (
    select
        s.*,
        case when s.end_step > s.resume_step then s.end_step - s.resume_step else 0 end as kept_steps,
        case
            when s.end_step <= s.resume_step then 0
            when s.end_step >= s.last_step then 1
            when coalesce(s.saved_steps_s, d.steps_s) is not null and s.steps_s > 0
            then case
                when coalesce(s.saved_steps_s, d.steps_s) < s.steps_s
                then coalesce(s.saved_steps_s, d.steps_s) / s.steps_s
                else 1
            end
            else cast(s.end_step - s.resume_step as double precision) / (s.last_step - s.resume_step)
        end as kept_share
    from steps s
    left join divides d
        on d.run_id = s.run_id
        and d.source_attempt_id = s.attempt_id
        and d.resume_step = s.end_step
),
seconds as (
    select
        h.*,
        h.last_step - h.resume_step - h.kept_steps as lost_steps,
        case when h.closed_us is not null and h.reason_family <> 'ended as meant' then 1 else 0 end
            as is_unmeant,
        cast(h.queue_to_us - h.opened_us as double precision) / 1000000 as queue_s,
        cast(h.startup_to_us - h.queue_to_us as double precision) / 1000000 as startup_s,
        cast(h.restore_to_us - h.startup_to_us as double precision) / 1000000 as restore_s,
        cast(h.steps_to_us - h.restore_to_us as double precision) / 1000000
            - (h.steps_s + h.data_s + h.saving_s + h.eval_s) * h.scale as left_s,
        cast(h.held_to_us - h.steps_to_us as double precision) / 1000000 as hang_s,
        cast(h.until_us - h.held_to_us as double precision) / 1000000 as closing_s
    from shared h
)
select
    run_id,
    attempt_id,
    model_family,
    team,
    cause,
    reason,
    reason_family,
    fingerprint,
    devices,
    device_class,
    pool,
    accelerator,
    cycled_node_count,
    opened_us,
    closed_us,
    kept_steps,
    lost_steps,
    is_unmeant * case when reason = 'node_drained' then 0 else 1 end as is_interruption,
    is_unmeant * case when reason = 'node_drained' then 1 else 0 end as is_planned,
    is_unmeant * case when cause <> 'first' and kept_steps = 0 then 1 else 0 end as is_dead_retry,
    case when fingerprint = before_fingerprint then 1 else 0 end as is_same_failure,
    case
        when closed_us is not null
        then cast(later_restored_us - held_to_us as double precision) / 1000000
    end as repair_s,
    cast(
        opened_us - coalesce(before_us, declared_us)
        + case when later_resume is null then run_until_us - until_us else 0 end
        as double precision
    ) / 1000000 as idle_s,
    queue_s,
    startup_s,
    restore_s,
    steps_s * scale * kept_share as step_kept_s,
    steps_s * scale * (1 - kept_share) as step_lost_s,
    saving_s * scale as checkpoint_blocking_s,
    data_s * scale as data_wait_s,
    eval_s * scale as inline_eval_s,
    hang_s + closing_s as detection_s,
    case when left_s > 0 then left_s else 0 end as unknown_s,
    cast(held_to_us - queue_to_us as double precision) / 1000000 as held_s,
    devices * startup_s as startup_device_s,
    devices * restore_s as restore_device_s,
    devices * steps_s * scale * kept_share as step_kept_device_s,
    devices * steps_s * scale * (1 - kept_share) as step_lost_device_s,
    devices * saving_s * scale as checkpoint_blocking_device_s,
    devices * data_s * scale as data_wait_device_s,
    devices * eval_s * scale as inline_eval_device_s,
    devices * hang_s as detection_device_s,
    devices * case when left_s > 0 then left_s else 0 end as unknown_device_s,
    devices * cast(held_to_us - queue_to_us as double precision) / 1000000 as device_s
from seconds
