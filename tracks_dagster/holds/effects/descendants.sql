-- Everything downstream of one source as of a time: how many of each kind, the newest by name, and what
-- of the same runs is clean. One statement, so that the walk is done once.
--
-- The kind says what the source is, and which other parameters name it. after_step: of an attempt's
-- checkpoints those of a later step descend from the source; -1 where all do, because the attempt began
-- from one that does. Attempts are walked, not checkpoints: an edge is a resume.
with recursive
seeds (run_id, attempt_id, after_step, since_at) as (
    select a.run_id, a.attempt_id, coalesce(a.resumed_from_step, 0), a.opened_at
    from training_attempts a
    where :kind = 'snapshot' and a.dataset = :dataset and a.snapshot_id = :snapshot_id
        and a.opened_at <= :as_of
        and case
            when a.closed_at <= :as_of
            then a.last_step is not null or coalesce(a.cursor_to, 0) > coalesce(a.cursor_from, 0)
            else exists (
                select 1 from checkpoints c
                where c.run_id = a.run_id and c.attempt_id = a.attempt_id
                    and c.step > coalesce(a.resumed_from_step, 0) and c.committed_at <= :as_of
            )
        end
    union all
    select a.run_id, a.attempt_id, coalesce(a.resumed_from_step, 0), a.opened_at
    from attempt_nodes n
    join training_attempts a on a.run_id = n.run_id and a.attempt_id = n.attempt_id
    where :kind = 'node' and n.node = :node and n.placed_at <= :as_of
    union all
    select a.run_id, a.attempt_id, coalesce(a.resumed_from_step, 0), a.opened_at
    from training_attempts a
    where :kind = 'code' and a.git_commit = :code and a.placed_at <= :as_of
    union all
    select a.run_id, a.attempt_id, coalesce(a.resumed_from_step, 0), a.opened_at
    from training_attempts a
    where :kind = 'code' and a.package_version = :code and a.placed_at <= :as_of
    union all
    select a.run_id, a.attempt_id, coalesce(a.resumed_from_step, 0), a.opened_at
    from training_attempts a
    where :kind = 'code' and a.code_sha256 = :code and a.placed_at <= :as_of
    union all
    select a.run_id, a.attempt_id, coalesce(a.resumed_from_step, 0), a.opened_at
    from training_attempts a
    where :kind = 'code' and a.environment_sha256 = :code and a.placed_at <= :as_of
    union all
    select a.run_id, a.attempt_id, coalesce(a.resumed_from_step, 0), a.opened_at
    from training_attempts a
    where a.run_id = :run_id and a.opened_at <= :as_of
        and (:kind = 'run' or (:kind = 'attempt' and a.attempt_id = :attempt_id))
    union all
    select r.run_id, r.attempt_id, -1, r.since_at
    from attempt_resumes r
    where :kind = 'checkpoint' and r.source_run_id = :run_id
        and r.source_attempt_id = :attempt_id and r.source_manifest_sha256 = :manifest_sha256
        and r.since_at <= :as_of and (r.until_at is null or r.until_at > :as_of)
),
walk (run_id, attempt_id, after_step, since_at) as (
    select run_id, attempt_id, after_step, since_at from seeds
    union
    select r.run_id, r.attempt_id, cast(-1 as bigint), r.since_at
    from walk w
    join attempt_resumes r on r.source_run_id = w.run_id
        and r.source_attempt_id = w.attempt_id and r.source_step > w.after_step
    where r.since_at <= :as_of and (r.until_at is null or r.until_at > :as_of)
        -- Always true; from it Postgres expects few rows in a round, and looks edges up in the index
        -- instead of hashing all that there are.
        and coalesce(w.run_id, '') = w.run_id
),
reached as materialized (
    select run_id, attempt_id, min(after_step) as after_step, max(since_at) as since_at
    from walk group by run_id, attempt_id
),
attempts as materialized (
    select run_id, attempt_id, since_at from reached
    where not (:kind = 'attempt' and run_id = :run_id and attempt_id = :attempt_id)
),
saved as materialized (
    select c.run_id, c.manifest_sha256, c.attempt_id, c.step, c.committed_at,
        case
            when c.deleted_at <= :as_of then 'deleted'
            when c.quarantined_at <= :as_of then 'quarantined'
            when c.superseded_at <= :as_of then 'superseded'
            else 'committed'
        end as status
    from reached t
    join checkpoints c on c.run_id = t.run_id and c.attempt_id = t.attempt_id
    where c.step > t.after_step and c.committed_at <= :as_of
),
basis as (
    select run_id, manifest_sha256 from saved
    union all
    select cast(:run_id as text), cast(:manifest_sha256 as text) where :kind = 'checkpoint'
),
measured as materialized (
    select e.run_id, e.eval_id, e.number, e.step, e.opened_at
    from basis b
    join evals e on e.run_id = b.run_id and e.manifest_sha256 = b.manifest_sha256
    where e.opened_at <= :as_of
    union
    select e.run_id, e.eval_id, e.number, e.step, e.opened_at
    from evals e
    where :kind = 'snapshot' and e.dataset = :dataset and e.snapshot_id = :snapshot_id
        and e.opened_at <= :as_of
),
measures as (
    select run_id, eval_id, number from measured
    union all
    select cast(:run_id as text), cast(:eval_id as text), cast(:number as bigint)
    where :kind = 'eval'
),
given as (
    select p.run_id, p.seq, p.alias, p.attempt_id, p.step, p.decided_at
    from basis b
    join promotions p on p.run_id = b.run_id and p.manifest_sha256 = b.manifest_sha256
    where p.promoted and p.decided_at <= :as_of
    union
    select p.run_id, p.seq, p.alias, p.attempt_id, p.step, p.decided_at
    from measures e
    join promotions p on p.run_id = e.run_id and p.eval_id = e.eval_id and p.eval_number = e.number
    where p.promoted and p.decided_at <= :as_of
),
promoted as materialized (
    select p.*,
        case when exists (
            select 1 from promotions q
            where q.alias = p.alias and q.promoted and q.decided_at <= :as_of
                and q.decided_at >= p.decided_at
                and (
                    q.decided_at > p.decided_at or q.run_id < p.run_id
                    or (q.run_id = p.run_id and q.seq > p.seq)
                )
        ) then 'replaced since' else 'in use' end as status
    from given p
),
opened as materialized (
    select a.run_id, a.attempt_id, a.opened_at
    from training_attempts a
    where :kind = 'snapshot' and a.dataset = :dataset and a.snapshot_id = :snapshot_id
        and a.opened_at <= :as_of
),
idle as materialized (
    select run_id, attempt_id, max(opened_at) as opened_at
    from (
        select run_id, attempt_id, opened_at, 0 as is_reached from opened
        union all
        select run_id, attempt_id, since_at, 1 from reached
    ) known
    group by run_id, attempt_id having max(is_reached) = 0
),
touched as materialized (
    select run_id, max(at) as at
    from (
        select run_id, since_at as at from reached
        union all
        select run_id, opened_at from opened
    ) used
    group by run_id
),
sizes as materialized (
    select r.run_id,
        (
            select count(*) from training_attempts a
            where a.run_id = r.run_id and a.opened_at <= :as_of
        ) as attempts,
        (
            select count(*) from checkpoints c
            where c.run_id = r.run_id and c.committed_at <= :as_of
                and not (:kind = 'checkpoint' and c.manifest_sha256 = :manifest_sha256)
        ) as checkpoints
    from touched r
),
newest_runs as materialized (
    select run_id from touched order by at desc, run_id limit :runs_max
)
select 'run' as what, 'all' as status, count(distinct run_id) as n, cast(null as text) as run_id,
    cast(null as bigint) as attempt_id, cast(null as bigint) as step, cast(null as text) as name,
    cast(null as bigint) as number, max(since_at) as opened_at
from attempts
union all
select 'attempt', 'all', count(*), null, null, null, null, null, max(since_at) from attempts
union all
select 'checkpoint', status, count(*), null, null, null, null, null, max(committed_at)
from saved group by status
union all
select 'eval', 'all', count(*), null, null, null, null, null, max(opened_at) from measured
union all
select 'promotion', status, count(*), null, null, null, null, null, max(decided_at)
from promoted group by status
union all
select 'clean attempt', 'idle', count(*), null, null, null, null, null, max(opened_at) from idle
union all
select 'clean attempt', 'apart',
    coalesce(sum(attempts), 0) - (select count(*) from reached) - (select count(*) from idle),
    null, null, null, null, null, null
from sizes
union all
select 'clean checkpoint', 'all', coalesce(sum(checkpoints), 0) - (select count(*) from saved),
    null, null, null, null, null, null
from sizes
union all
select * from (
    select 'attempt', 'named', 1, run_id, attempt_id, cast(null as bigint), cast(null as text),
        cast(null as bigint), since_at
    from attempts order by since_at desc, run_id, attempt_id desc limit :named_max
) newest_attempts
union all
select * from (
    select 'checkpoint', 'named', 1, run_id, attempt_id, step, status,
        cast(null as bigint), committed_at
    from saved order by committed_at desc, run_id, attempt_id desc, step desc limit :named_max
) newest_checkpoints
union all
select * from (
    select 'eval', 'named', 1, run_id, cast(null as bigint), step, eval_id, number, opened_at
    from measured order by opened_at desc, run_id, eval_id, number desc limit :named_max
) newest_evals
union all
select * from (
    select 'promotion', 'named ' || status, 1, run_id, attempt_id, step, alias, seq, decided_at
    from promoted order by status, decided_at desc, run_id, seq desc limit :named_max
) newest_promotions
union all
select * from (
    select 'clean attempt', 'named idle', 1, run_id, attempt_id, cast(null as bigint),
        cast(null as text), cast(null as bigint), opened_at
    from idle order by opened_at desc, run_id, attempt_id desc limit :named_max
) newest_idle
union all
select * from (
    select 'clean attempt', 'named apart', 1, a.run_id, a.attempt_id, cast(null as bigint),
        cast(null as text), cast(null as bigint), a.opened_at
    from newest_runs r
    cross join training_attempts a
    left join reached t on t.run_id = a.run_id and t.attempt_id = a.attempt_id
    where a.run_id = r.run_id and t.run_id is null and a.opened_at <= :as_of
        and case when a.dataset = :dataset and a.snapshot_id = :snapshot_id then 1 else 0 end = 0
    order by a.opened_at desc, a.run_id, a.attempt_id desc limit :named_max
) newest_apart
union all
select * from (
    select 'clean checkpoint', 'named', 1, c.run_id, c.attempt_id, c.step, cast(null as text),
        cast(null as bigint), c.committed_at
    from newest_runs r
    cross join checkpoints c
    left join reached t on t.run_id = c.run_id and t.attempt_id = c.attempt_id
    where c.run_id = r.run_id and c.committed_at <= :as_of
        and (t.run_id is null or c.step <= t.after_step)
        and not (:kind = 'checkpoint' and c.manifest_sha256 = :manifest_sha256)
    order by c.committed_at desc, c.run_id, c.attempt_id desc, c.step desc limit :named_max
) newest_spared
