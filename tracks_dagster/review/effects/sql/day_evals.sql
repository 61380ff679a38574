-- The evals whose newest try failed on one day, of runs that wait for them.
select e.run_id, e.eval_id, e.suite, e.step, e.number, e.reason, e.message, count(*) over () as total
from evals e
join training_runs r on r.run_id = e.run_id
where e.ended_at >= :begin and e.ended_at < :end
  and e.reason <> 'completed'
  and r.finished_at is null
  and not exists (
    select 1 from evals later
    where later.run_id = e.run_id and later.eval_id = e.eval_id and later.number > e.number
  )
order by e.run_id, e.eval_id
limit :rows_max
