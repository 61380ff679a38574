-- How many attempts failed in the time from since to until; meant are the reasons that are not a failure.
select count(*) as failed_count
from training_attempts
where closed_at > :since and closed_at <= :until and termination_reason not in (:meant)
