-- How many runs have attempts that ended since :since_us, or are open.
select count(distinct a.run_id) as runs
from attempt_facts a
join run_facts r on r.run_id = a.run_id
where a.opened_us <= :as_of_us
    and (a.closed_us is null or a.closed_us > :as_of_us or a.closed_us >= :since_us)
    and (:family is null or r.model_family = :family)
