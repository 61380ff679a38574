-- The run of a family that was declared before another: of the same experiment, where it has one.
select run_id
from training_runs
where model_family = :family
  and run_id <> :run_id
  and declared_at < :declared_at
order by
    case when experiment = :experiment then 0 else 1 end,
    declared_at desc,
    run_id
limit 1
