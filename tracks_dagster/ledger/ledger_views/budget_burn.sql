-- What retries took from their budgets, by the reason that paid.
select debit_reason as reason, count(*) as debits, sum(debit_amount) as amount
from attempt_facts
where debit_reason is not null and opened_us <= :as_of_us
group by debit_reason
