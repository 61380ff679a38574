-- How long the newest runs of a task held each of their devices, the newest first: those that succeeded,
-- of one team and project, with as many ranks and steps, from the same step on.
select device_seconds / ranks as held_s
from training_runs
where state = 'succeeded'
    and team = :team
    and model_family = :project
    and ranks = :ranks
    and max_steps = :steps
    and coalesce(branched_from_step, 0) = :begins_at
    and device_seconds > 0
order by finished_at desc, run_id
limit :newest
