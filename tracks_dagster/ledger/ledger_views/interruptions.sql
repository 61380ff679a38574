-- Every end of an attempt that was not meant. is_planned: a drain of its node, which MTBI leaves out.
-- repair_s: from the end of its ranks to the next restore of its run; null while there is none.
-- detect_s: from the last step of a hang or a lost node, else from the end of the ranks, to the record of the end.
select
    run_id,
    attempt_id,
    reason,
    reason_family,
    closed_us,
    is_planned,
    detection_s as detect_s,
    repair_s
from attempt_time
where is_interruption + is_planned = 1
