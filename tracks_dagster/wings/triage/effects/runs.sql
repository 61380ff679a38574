-- These runs with the newest attempts of each, and how far the ledger has taken in their tracks.
select
    r.run_id,
    r.model_family,
    r.state,
    r.state_why,
    r.max_steps,
    r.config_json,
    r.roles_json,
    r.launcher,
    r.ranks,
    r.device_class,
    r.workload_class,
    r.team,
    r.owner,
    r.estimated_device_s,
    r.declared_at,
    r.final_step,
    r.branched_from_step,
    r.git_commit,
    r.git_branch,
    r.git_dirty,
    r.package_version,
    a.attempt_id,
    a.launch_id,
    a.accelerator,
    a.termination_reason,
    a.last_step,
    a.resumed_from_step,
    a.config_json as attempt_config_json,
    c.seq as head_seq,
    c.sha256 as head_sha256
from training_runs r
left join training_attempts a
    on a.run_id = r.run_id and a.attempt_id > r.attempt_count - :attempts_max
left join track_cursors c on c.track = 'runs/' || r.run_id
where r.run_id in ({run_ids})
order by r.declared_at, r.run_id, a.attempt_id
