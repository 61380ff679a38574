-- The aliases whose checkpoint is in quarantine, or the attempt that did its steps, that one's node, code
-- or snapshot, or the snapshot of the eval: where the checkpoint was promoted, or that source put in
-- quarantine, on one day. What lies farther back is `tracks blast`'s to tell.
with holders as (
  select p.run_id, p.alias, p.step, p.manifest_sha256, p.decided_at, c.status, c.quarantined_at,
         a.attempt_id, a.partition_key, a.environment_sha256, a.git_commit, a.package_version,
         a.code_sha256, a.dataset, a.snapshot_id, p.dataset as eval_dataset,
         p.snapshot_id as eval_snapshot_id
  from (
    select alias, max(decided_at) as decided_at from promotions where promoted group by alias
  ) newest
  join promotions p on p.alias = newest.alias and p.decided_at = newest.decided_at and p.promoted
  join checkpoints c on c.run_id = p.run_id and c.manifest_sha256 = p.manifest_sha256
  left join training_attempts a on a.run_id = c.run_id and a.attempt_id = c.attempt_id
    and c.step > coalesce(a.resumed_from_step, 0)
),
quarantined_sources as (
  select source, called, quarantined_at from source_quarantines where released_at is null
),
found as (
  select run_id, alias, step, decided_at, cast(null as text) as called, quarantined_at as held_at
  from holders where status = 'quarantined'
  union
  select o.run_id, o.alias, o.step, o.decided_at, null, h.quarantined_at
  from holders o join quarantined_sources h on h.source = 'checkpoint:' || o.manifest_sha256
  union
  select o.run_id, o.alias, o.step, o.decided_at, h.called, h.quarantined_at
  from holders o join quarantined_sources h on h.source = 'attempt:' || o.partition_key
  union
  select o.run_id, o.alias, o.step, o.decided_at, h.called, h.quarantined_at
  from holders o
  join attempt_nodes n on n.run_id = o.run_id and n.attempt_id = o.attempt_id
  join quarantined_sources h on h.source = 'node:' || n.node
  union
  select o.run_id, o.alias, o.step, o.decided_at, h.called, h.quarantined_at
  from holders o
  join quarantined_sources h on h.source in (
    'code:' || o.git_commit, 'code:' || o.package_version, 'code:' || o.environment_sha256,
    'code:' || o.code_sha256
  )
  union
  select o.run_id, o.alias, o.step, o.decided_at,
         'snapshot:' || s.dataset || '@' || substr(s.snapshot_id, 1, 12), s.quarantined_at
  from holders o
  join snapshots s on s.status = 'quarantined' and (
    (s.dataset = o.dataset and s.snapshot_id = o.snapshot_id)
    or (s.dataset = o.eval_dataset and s.snapshot_id = o.eval_snapshot_id)
  )
)
select run_id, step, alias, min(called) as called,
       max(case when called is null then 1 else 0 end) as is_itself, count(*) over () as total
from found
where (decided_at >= :begin and decided_at < :end) or (held_at >= :begin and held_at < :end)
group by run_id, step, alias
order by run_id, alias, step
limit :rows_max
