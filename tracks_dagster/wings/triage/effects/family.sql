-- The newest runs of one model family, those that are over too.
select run_id
from training_runs
where model_family = :family
order by declared_at desc, run_id
limit :runs_max
