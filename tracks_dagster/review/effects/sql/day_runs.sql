-- The runs that stand in one state since their newest attempt ended on one day.
select r.run_id, r.state_why, count(*) over () as total
from training_runs r
join training_attempts a on a.run_id = r.run_id and a.attempt_id = r.attempt_count
where r.state = :state and a.closed_at >= :begin and a.closed_at < :end
order by a.closed_at, r.run_id
limit :rows_max
