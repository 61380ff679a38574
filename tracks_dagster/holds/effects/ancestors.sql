-- What an attempt rests on, as of a time: the attempts whose checkpoints it resumed from, one after the
-- other, the nearest first. up_to_step: the step of the checkpoint that was taken from the attempt.
with recursive up (depth, run_id, attempt_id, up_to_step, manifest_sha256) as (
    select 0, cast(:run_id as text), cast(:attempt_id as bigint), cast(:step as bigint),
        cast(:manifest_sha256 as text)
    union all
    select u.depth + 1, r.source_run_id, r.source_attempt_id, r.source_step,
        r.source_manifest_sha256
    from up u
    join attempt_resumes r on r.run_id = u.run_id and r.attempt_id = u.attempt_id
    where r.since_at <= :as_of and (r.until_at is null or r.until_at > :as_of)
        and u.depth < :links_max
)
select u.depth, u.run_id, u.attempt_id, u.up_to_step, u.manifest_sha256,
    a.dataset, a.snapshot_id, a.config_json, r.roles_json, a.cursor_from, a.cursor_to, a.closed_at, a.last_step,
    a.nodes_json, a.environment_sha256, a.placed_at, a.opened_at,
    coalesce(e.source_step, 0) as resumed_step, a.git_commit, a.package_version, a.code_sha256,
    c.cursor as saved_cursor, c.committed_at,
    (
        select max(k.cursor) from checkpoints k
        where k.run_id = u.run_id and k.attempt_id = u.attempt_id and k.committed_at <= :as_of
    ) as newest_cursor,
    (
        select max(k.step) from checkpoints k
        where k.run_id = u.run_id and k.attempt_id = u.attempt_id and k.committed_at <= :as_of
    ) as newest_step,
    coalesce(
        (
            select t.reason from attempt_readings t
            where t.run_id = u.run_id and t.attempt_id = u.attempt_id and t.told_us <= :as_of_us
            order by t.seq desc limit 1
        ),
        f.reason
    ) as reason
from up u
left join training_attempts a on a.run_id = u.run_id and a.attempt_id = u.attempt_id
left join attempt_facts f on f.run_id = u.run_id and f.attempt_id = u.attempt_id
left join attempt_resumes e on e.run_id = u.run_id and e.attempt_id = u.attempt_id
    and e.since_at <= :as_of and (e.until_at is null or e.until_at > :as_of)
left join training_runs r on r.run_id = u.run_id
left join checkpoints c on c.run_id = u.run_id and c.manifest_sha256 = u.manifest_sha256
order by u.depth
