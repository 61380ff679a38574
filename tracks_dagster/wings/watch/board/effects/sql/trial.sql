-- The study of a run, and which trial of it the run is.
select study, trial from trials where run_id = :run_id limit 1
