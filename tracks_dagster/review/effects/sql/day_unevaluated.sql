-- The promotions of one day that hold their alias still, and whose eval is not there, did not complete,
-- or looked at other bytes.
select p.run_id, p.step, p.alias, p.eval_id, count(*) over () as total
from promotions p
join (
  select alias, max(decided_at) as decided_at from promotions where promoted group by alias
) newest on newest.alias = p.alias and newest.decided_at = p.decided_at
left join evals e on e.run_id = p.run_id and e.eval_id = p.eval_id and e.number = p.eval_number
  and e.manifest_sha256 = p.manifest_sha256 and e.reason = 'completed'
where p.promoted and p.decided_at >= :begin and p.decided_at < :end and e.run_id is null
order by p.run_id, p.seq
limit :rows_max
