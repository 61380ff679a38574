-- How long evals ended after their checkpoints' commits, of those that were completed since :since_us.
select count(*) as evals, sum(e.lag_s) as lag_s, max(e.lag_s) as lag_s_max
from eval_lag e
join run_facts r on r.run_id = e.run_id
where e.ended_us >= :since_us and (:family is null or r.model_family = :family)
