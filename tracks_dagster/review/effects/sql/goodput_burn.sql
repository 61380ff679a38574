-- What retries took from their budgets since :since_us, by the reason that paid, most first.
select a.debit_reason as reason, count(*) as debits, sum(a.debit_amount) as amount
from attempt_facts a
join run_facts r on r.run_id = a.run_id
where a.debit_reason is not null
    and a.opened_us <= :as_of_us
    and a.opened_us >= :since_us
    and (:family is null or r.model_family = :family)
group by a.debit_reason
order by sum(a.debit_amount) desc, a.debit_reason
