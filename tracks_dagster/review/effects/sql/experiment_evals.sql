-- What evals measured of these runs: of each suite those of the newest checkpoint that has one and was not
-- quarantined, the later of two last.
select run_id, suite, suite_version, snapshot_id, seed, step, environment_sha256, metrics_json
from (
    select
        e.*,
        dense_rank() over (partition by e.run_id, e.suite order by e.attempt_id desc, e.step desc) as place
    from evals e
    join checkpoints k on k.run_id = e.run_id and k.manifest_sha256 = e.manifest_sha256
    where e.reason = 'completed' and k.quarantined_at is null and e.run_id in ({run_ids})
) newest
where place = 1
order by run_id, suite, ended_at, number
