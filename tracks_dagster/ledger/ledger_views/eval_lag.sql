-- How long after its checkpoint's commit each eval ended, of those that were completed.
select run_id, eval_id, number, suite, ended_us, lag_s
from evals
where ended_us <= :as_of_us and reason = 'completed' and lag_s is not null
