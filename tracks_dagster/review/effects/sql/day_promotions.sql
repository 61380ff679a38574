-- How many checkpoints were promoted on one day.
select count(*) as total
from promotions
where promoted and decided_at >= :begin and decided_at < :end
