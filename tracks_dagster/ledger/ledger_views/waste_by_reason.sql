-- What attempts cost by why they ended; lost: device hours of steps that had to be run again.
-- wasted: all device hours that are not of kept steps. What is open still has no reason.
select
    reason,
    reason_family,
    count(*) as attempts,
    sum(device_s) / 3600 as device_hours,
    sum(device_s - step_kept_device_s) / 3600 as wasted_device_hours,
    sum(step_lost_device_s) / 3600 as lost_device_hours,
    sum(lost_steps) as lost_steps
from attempt_time
where reason is not null
group by reason, reason_family
