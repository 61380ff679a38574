-- Runs whose id, family, owner or intent holds a text, newest first.
select run_id, model_family, state, intent
from training_runs
where lower(run_id) like :pattern escape '!' or lower(model_family) like :pattern escape '!'
    or lower(owner) like :pattern escape '!' or lower(intent) like :pattern escape '!'
order by declared_at desc, run_id
limit :runs_max
