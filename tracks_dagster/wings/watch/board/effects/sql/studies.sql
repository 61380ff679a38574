-- The studies, the newest first.
select
    study, state, cause, model_family, metric, direction, best_value, best_trial, best_run_id,
    trial_count, max_trials, device_hours, off_peak, declared_at
from studies
order by declared_at desc, study
limit :studies_max
