-- The experiments that runs were declared with, the one with the newest run first.
select experiment
from training_runs
where experiment is not null
group by experiment
order by max(declared_at) desc, experiment
limit :experiments_max
