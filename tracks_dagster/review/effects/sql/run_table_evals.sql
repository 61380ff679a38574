-- What was measured of the same part of all runs, the newest last.
select e.run_id, e.suite, e.metrics_json
from evals e
join (
    select run_id from training_runs
    order by declared_at desc, run_id limit :runs_max offset :from_run
) r on r.run_id = e.run_id
where e.reason = 'completed'
order by e.ended_us, e.eval_id, e.number
