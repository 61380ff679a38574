-- The runs that are not over, oldest declaration first: few, beside however many that are over.
select run_id
from training_runs
where state in (:running, :waiting)
order by declared_at, run_id
limit :runs_max
