-- The runs that were declared on one day without something that their stage needs.
select run_id, skipped_gates_json, skipped_by, skipped_why, count(*) over () as total
from training_runs
where skipped_by is not null and declared_at >= :begin and declared_at < :end
order by declared_at, run_id
limit :rows_max
