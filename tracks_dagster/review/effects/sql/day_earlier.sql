-- How many runs have needed a person since before one day.
select count(*) as total
from training_runs r
join training_attempts a on a.run_id = r.run_id and a.attempt_id = r.attempt_count
where r.state in ('refused', 'waiting') and a.closed_at < :begin
