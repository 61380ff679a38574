-- Who goes on, or was promoted, on a source that is in quarantine: attempts whose end was recorded on
-- one day, or that are open still, and what each used of its own: the snapshot that it read, the
-- checkpoint and the attempt that it resumed from, the node that it ran on, its code.
-- What it descends from farther back is `tracks blast`'s to tell.
with used as (
  select a.run_id, a.attempt_id, a.partition_key, a.dataset, a.snapshot_id, a.environment_sha256,
         a.git_commit, a.package_version, a.code_sha256
  from training_attempts a
  join training_runs r on r.run_id = a.run_id
  where a.opened_at < :end
    and (a.closed_at is null or (a.closed_at >= :begin and a.closed_at < :end))
    and (r.state = 'running'
         or exists (select 1 from promotions p where p.run_id = a.run_id and p.promoted))
),
quarantined_sources as (
  select source, called, why from source_quarantines where released_at is null
),
found as (
  select u.run_id, 'snapshot:' || s.dataset || '@' || s.snapshot_id as source,
         'snapshot:' || s.dataset || '@' || substr(s.snapshot_id, 1, 12) as called,
         s.quarantined_why as why
  from used u
  join snapshots s on s.dataset = u.dataset and s.snapshot_id = u.snapshot_id
  where s.status = 'quarantined'
  union
  select u.run_id, h.source, h.called, h.why
  from used u
  join attempt_nodes n on n.run_id = u.run_id and n.attempt_id = u.attempt_id
  join quarantined_sources h on h.source = 'node:' || n.node
  union
  select u.run_id, h.source, h.called, h.why
  from used u
  join attempt_resumes s on s.run_id = u.run_id and s.attempt_id = u.attempt_id
  join quarantined_sources h on h.source = 'checkpoint:' || s.source_manifest_sha256
  union
  select u.run_id, h.source, h.called, h.why
  from used u
  join attempt_resumes s on s.run_id = u.run_id and s.attempt_id = u.attempt_id
  join training_attempts o on o.run_id = s.source_run_id and o.attempt_id = s.source_attempt_id
  join quarantined_sources h on h.source = 'attempt:' || o.partition_key
  union
  select u.run_id, h.source, h.called, h.why
  from used u
  join quarantined_sources h on h.source = 'attempt:' || u.partition_key
  union
  select u.run_id, h.source, h.called, h.why
  from used u
  join quarantined_sources h on h.source in (
    'code:' || u.git_commit, 'code:' || u.package_version, 'code:' || u.environment_sha256,
    'code:' || u.code_sha256
  )
)
select run_id, source, called, why, count(*) over () as total
from found
order by run_id, source
limit :rows_max
