-- What the work of each class waited for and how long, of what was over since :since_us: one row a class
-- and kind of wait. {objectives} stands for (workload_class, wait, objective_s), a row for each class that
-- there is; a run of no class, or of one that is gone, is of :default_class.
-- {evaluated} stands for the runs with an eval that was open since then.
-- What is not over counts once it is longer than the objective: nobody knows yet how long it will be.
select
    workload_class,
    wait,
    count(*) as waits,
    sum(is_open) as still,
    sum(case when seconds > objective_s then 1 else 0 end) as late,
    max(case when place = (total * 50 + 99) / 100 then seconds end) as p50_s,
    max(case when place = (total * 95 + 99) / 100 then seconds end) as p95_s,
    max(seconds) as longest_s,
    max(case when place = total then run_id end) as longest_run_id
from (
    select
        w.*,
        o.objective_s,
        count(*) over (partition by w.workload_class, w.wait) as total,
        row_number() over (
            partition by w.workload_class, w.wait order by w.seconds, w.run_id
        ) as place
    from (
        -- attempts: from the decision to the first rank; what never started waited to its end
        select
            coalesce(k.workload_class, :default_class) as workload_class,
            'queue' as wait,
            t.run_id,
            t.opened_us + cast(t.queue_s * 1000000 as bigint) as over_us,
            t.queue_s as seconds,
            case
                when t.closed_us is null and (a.placed_us is null or a.placed_us > :as_of_us) then 1
                else 0
            end as is_open
        from attempt_time t
        join attempt_facts a on a.run_id = t.run_id and a.attempt_id = t.attempt_id
        join run_facts f on f.run_id = t.run_id
        left join ({objectives}) k on k.workload_class = f.workload_class and k.wait = 'queue'
        where a.pool not like 'imported/%'
        union all
        -- what nobody meant, and drains: from the end of the ranks to the run's next restore
        select
            coalesce(k.workload_class, :default_class) as workload_class,
            'recovery' as wait,
            t.run_id,
            case when t.repair_s is null then :as_of_us else t.closed_us end as over_us,
            coalesce(
                t.repair_s, cast(:as_of_us - t.closed_us as double precision) / 1000000
            ) as seconds,
            case when t.repair_s is null then 1 else 0 end as is_open
        from attempt_time t
        join training_runs r on r.run_id = t.run_id
        left join ({objectives}) k on k.workload_class = r.workload_class and k.wait = 'recovery'
        where t.is_interruption + t.is_planned = 1
            and (t.repair_s is not null or r.state = 'running')
            and r.state <> 'imported'
        union all
        -- runs that succeeded, and those that run
        select
            coalesce(k.workload_class, :default_class) as workload_class,
            'completion' as wait,
            f.run_id,
            case when f.finished_us <= :as_of_us then f.finished_us else :as_of_us end as over_us,
            cast(
                case when f.finished_us <= :as_of_us then f.finished_us else :as_of_us end
                - f.declared_us as double precision
            ) / 1000000 as seconds,
            case when f.finished_us <= :as_of_us then 0 else 1 end as is_open
        from run_facts f
        join training_runs r on r.run_id = f.run_id
        left join ({objectives}) k on k.workload_class = f.workload_class and k.wait = 'completion'
        where f.declared_us <= :as_of_us
            and (f.finished_us is null or f.finished_us >= :since_us)
            and r.state in ('running', 'succeeded')
        union all
        -- evals: how long one that has not ended waited is not recorded
        select
            'eval' as workload_class,
            'queue' as wait,
            e.run_id,
            e.started_us as over_us,
            cast(e.started_us - e.opened_us as double precision) / 1000000 as seconds,
            0 as is_open
        from evals e
        where e.ended_us >= :since_us and e.ended_us <= :as_of_us
        union all
        select
            'eval' as workload_class,
            'completion' as wait,
            e.run_id,
            case when e.ended_us <= :as_of_us then e.ended_us else :as_of_us end as over_us,
            cast(
                case when e.ended_us <= :as_of_us then e.ended_us else :as_of_us end - e.first_us
                as double precision
            ) / 1000000 as seconds,
            case when e.ended_us <= :as_of_us then 0 else 1 end as is_open
        from (
            select
                run_id, ended_us, reason, opened_us,
                min(opened_us) over (partition by run_id, eval_id) as first_us
            from evals
            where run_id in ({evaluated})
        ) e
        where e.opened_us <= :as_of_us
            and (e.ended_us is null or e.ended_us > :as_of_us or e.reason = 'completed')
        union all
        select
            'eval' as workload_class,
            'recovery' as wait,
            e.run_id,
            e.next_us as over_us,
            cast(e.next_us - e.ended_us as double precision) / 1000000 as seconds,
            0 as is_open
        from (
            select
                run_id, ended_us, reason,
                lead(started_us) over (partition by run_id, eval_id order by number) as next_us
            from evals
            where run_id in ({evaluated})
        ) e
        where e.reason <> 'completed' and e.next_us >= e.ended_us and e.next_us <= :as_of_us
    ) w
    join ({objectives}) o on o.workload_class = w.workload_class and o.wait = w.wait
    where w.over_us >= :since_us
        and (w.is_open = 0 or w.seconds > o.objective_s)
) ranked
group by workload_class, wait
order by workload_class, wait
