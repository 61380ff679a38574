-- Runs whose id, name, tags, experiment, family, owner, team, intent or config holds a text: first the one
-- with that id, then those that are called so, then the newest.
select run_id, model_family, state, intent
from training_runs
where lower(run_id) like :pattern escape '!' or lower(model_family) like :pattern escape '!'
    or lower(owner) like :pattern escape '!' or lower(intent) like :pattern escape '!'
    or lower(team) like :pattern escape '!' or lower(coalesce(experiment, '')) like :pattern escape '!'
    or lower(coalesce(called, '')) like :pattern escape '!' or lower(tags_json) like :pattern escape '!'
    or lower(config_json) like :pattern escape '!'
order by
    case when lower(run_id) = :exact then -1
        when lower(run_id) like :pattern escape '!' then 0
        when lower(coalesce(called, '')) like :pattern escape '!' then 0
        when lower(coalesce(experiment, '')) like :pattern escape '!' then 1
        when lower(model_family) like :pattern escape '!' then 2 else 3 end,
    declared_at desc, run_id
limit :runs_max
