-- The newest checkpoints of these runs that can be resumed from, newest first.
select run_id, attempt_id, step, epoch, committed_at, metrics_json, manifest_sha256
from (
    select
        k.*,
        row_number() over (partition by run_id order by attempt_id desc, step desc) as place
    from checkpoints k
    where run_id in ({run_ids}) and status in ('committed', 'superseded')
) newest
where place <= :commits_max
order by run_id, place
