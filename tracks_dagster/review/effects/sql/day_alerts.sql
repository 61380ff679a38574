-- The alerts of one day: of each run and rule how many, and the newest one's words.
select n.run_id, n.author, n.text, g.alert_count, g.total
from notes n
join (
  select run_id, author, max(seq) as seq, count(*) as alert_count, count(*) over () as total
  from notes
  where kind = 'alert' and noted_at >= :begin and noted_at < :end
  group by run_id, author
) g on g.run_id = n.run_id and g.seq = n.seq
order by n.author, n.run_id
limit :rows_max
