"""Rows of causes: the place was taken away, or never given, as far as words in a log tell.

Only a control plane knows of a preemption, a time limit, a drain. A log is full of such words that are
about other jobs, about what would be done, or what a handler makes of a signal. So a row here needs a
name that a platform publishes for an end, or words about *this* job. It stands below the typed last
word and below any exception (`Tier.SYMPTOM`), and never counts once a step went on.
"""

from __future__ import annotations

from tracks_dagster.reasons.rules.cause import LIKELY, Cause, Tier, cause
from tracks_dagster.track.reasons import TerminationReason

_R = TerminationReason

# Talk: about others, about what would be, what a program makes of a signal or does about it.
_TALK = (
    r"\b(other|another|peer|sibling|neighbou?r|previous(ly)?|earlier|last (run|attempt|job))\b"
    r"|\b(ago|before)\b"
    r"|^(?!.*\b(your|this|our)\b).*(?<!by )\b(job|node|vm|instance|pod|worker|host)s? \S*\d"
    r"|\b(if|in case|unless|whether|whenever|when|once|until|upon|may|might|could|would|should|will)\b"
    r"|\b(perhaps|possibly|probably|likely|assum\w+|looks like|so far|times|twice)\b|\?"
    r"|\b(soon|about to|imminent|near|watch|wait|poll|listen|check|look)\w*\b"
    r"|\b(signal|SIG[A-Z]{3,5}\d?|handler|callback|listener|caught|received|detected)\b"
    r"|\b(sav|flush|writ|checkpoint|snapshot|exit|requeue|stopp)(e|es|ing)?\b|\bemergency\b"
    r"|\b(re(plac|launch|creat|start|schedul|cover)\w*|substitut\w*|shrink\w*|scal(e|ing)|continu\w+)\b"
    r"|\b(or|no|not|never|disabled|enabled|supported)\b|\b(partition|queue|policy|MOTD|note|tip|docs?)\b"
    r"|\b(trial|item|fold|eval\w*|request|query|sequence|fitting|skipp\w+)\b"
    r"|^\s*(#|//|\*\s|-{1,2}[a-z])|PreemptionMode|KV[ _-]?cache|preempt(ible|ions?)\s?[=:]"
)
# This job, in words: "the spot VM", "this job", "our allocation", or the sentence begins with it.
_OURS = (
    r"(\b(the|this|our|my|your|actor's)\s+([\w-]+\s+){0,2}|^)"
    r"(job|task|step|run|pod|node|instance|vm|cluster|slice|container|machine|worker|executor|tpu|host"
    r"|allocation|workload|server)s?"
)

CAPACITY: tuple[Cause, ...] = (
    cause(
        _R.PREEMPTED,
        "published_preemption",
        r"JOB_STATE_KILLED: Preempted|\bTERM_PREEMPT\b|INTERRUPTED_BY_NO_CAPACITY",
        r"compute\.instances\.preempted|Server\.SpotInstance(Termination|Shutdown)",
        r"AUTOSCALER_DRAIN_PREEMPTED|\bthe actor's node was preempted\b|\bcluster is preempted\b",
        r"CANCELLED.{0,120}DUE TO PREEMPTION|\bEC2 Spot Instance interruption notice\b",
        r"\b(state|status|SecondaryStatus)\W{1,3}(PREEMPTED|Interrupted)\b"
        r"|EventType\"?\s?[:=]\s?\"?Preempt",
        r"\b(Nodes?|Spot|Instance|Worker)?Pre-?empt(ion|ed)(Error|Exception): ",
        r"instance-action\W.{0,40}\bterminate\b",
        tier=Tier.SYMPTOM,
        confidence=LIKELY,
        unless=r"\b(peer|sibling|neighbou?r|if|or|no|not)\b|PreemptionMode",
    ),
    cause(
        _R.PREEMPTED,
        "preemption",
        rf"{_OURS} (was|were|been|has been|have been|got|is|are) (pre-?empted|reclaimed|interrupted by"
        r" (the )?(spot|provider|capacity))\b",
        rf"{_OURS} (was|has been|got) (evicted|deallocated|terminated) (by|due to|because of)"
        r" (spot|preempt\w*|capacity|reclaim\w*)",
        r"\b(the|this) spot (vm|instance|node) (was|has been) (evicted|deallocated)\b",
        rf"{_OURS} .{{0,30}}\bpre-?empted (by|to)\b|\binterrupted due to spot\b",
        tier=Tier.SYMPTOM,
        unless=_TALK,
    ),
    cause(
        _R.WALLTIME_TIMEOUT,
        "published_time_limit",
        r"\bTERM_(RUNLIMIT|CPULIMIT|DEADLINE|WINDOW)\b|\bMAX_DURATION_EXCEEDED\b|\bJOB_STATE_EXPIRED\b",
        r"\bMax(Runtime|WaitTime)Exceeded\b|Job attempt duration exceeded timeout",
        r"active (on the node )?longer than (the )?specified( deadline)?",
        r"^timeout: sending signal \w+ to command|CANCELLED.{0,120}DUE TO (TIME LIMIT|JOB TIME)"
        r"|^Time limit reached\. Elapsed time is \d",  # of Lightning's Timer
        tier=Tier.SYMPTOM,
        confidence=LIKELY,
    ),
    cause(
        _R.WALLTIME_TIMEOUT,
        "time_limit",
        rf"{_OURS}\b.{{0,40}}\b(exceeded|reached|hit|over|past|expired|killed due to)\b.{{0,30}}(\b|_)"
        r"(wall[ _]?(clock|time)|run ?time|time|duration|execution time)( limit)?\b",
        rf"{_OURS} (is|was|has) timed[- ]out\b",
        r"\bwall ?(clock |time )(limit )?(was |has been |is )?(exceeded|reached|expired)\b",
        r"\b(exceeded|reached|reaching|hit) (its |the |LSF |maximum |max ){0,3}"
        r"(wall ?(clock|time)|run ?time|max(imum)?[ _]run[ _]?(time|duration))( limit)?\b",
        tier=Tier.SYMPTOM,
        unless=_TALK,
    ),
    cause(
        _R.NODE_DRAINED,
        "published_drain",
        r"AUTOSCALER_DRAIN_IDLE|removed by cluster autoscaler|\bdeprovisioning via (\w+ )?\w+"
        r"|\bEviction API\b|\bscheduled retirement\b|imminent node shutdown",
        tier=Tier.SYMPTOM,
        confidence=LIKELY,
        unless=r"\b(if|may|will|peer|other|another)\b",
    ),
    cause(
        _R.NODE_DRAINED,
        "drain",
        rf"{_OURS} (is|was|has been|is being) (drained|cordoned|shut(ting)? down|terminated)"
        r"( (for|by|due to|during) .{0,30}(maintenance|operator|admin\w*|shutdown))?",
        r"terminat\w+ .{0,40}\bmaintenance\b|\bmaintenance( event)?\b.{0,40}(terminat|stop|evict|shut)",
        tier=Tier.SYMPTOM,
        unless=_TALK,
    ),
    cause(
        _R.SCHEDULING_TIMEOUT,
        "no_place",
        r"ZONE_RESOURCE_POOL_EXHAUSTED|Insufficient(Instance)?Capacity|INSUFFICIENT_INSTANCE_CAPACITY"
        r"|\bCapacityError\b|(un|not )able to provision (the )?requested|\bSTOCKOUT\b",
        r"FAILED_TO_START_DUE_TO_NO_CAPACITY|WAITING_INSTANCE_LIMIT_EXCEEDED|\bJOB_STATE_UNSCHEDULABLE\b"
        r"|\bFAILED_NO_RESOURCE\b|No available node types can fulfill",
        r"Unable to allocate resources: Requested nodes are busy|cannot be scheduled"
        r"|0/\d+ nodes are available",
        r"(timed? ?out|timeout) .{0,40}(waiting|creat\w+) .{0,40}(placement group|resources|pods"
        r"|capacity)",
        r"\b(QuotaExceeded|QUOTA_EXCEEDED|VcpuLimitExceeded|ResourceLimitExceeded"
        r"|MaxSpotInstanceCountExceeded|Quota exceeded for .{0,80}(gpu|tpu|cpu|instance)"
        r"|OperationNotAllowed\b.{0,80}quota)|in gang unschedulable",
        r"queued and waiting for resources|Placement group creation timed out|PENDING \((Resources"
        r"|Priority|QOS\w*|Assoc\w*)\)",
        confidence=LIKELY,
        unless=r"\b(if|in case|unless|whenever|may|might|could|would|should)\b",
    ),
)
