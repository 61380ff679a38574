"""Rows of causes: devices, nodes, networks or storage failed."""

from __future__ import annotations

from tracks_dagster.reasons.rules.cause import LEANING, LIKELY, Cause, Tier, cause
from tracks_dagster.track.reasons import TerminationReason

_R = TerminationReason

MACHINES: tuple[Cause, ...] = (
    cause(
        _R.GPU_HARDWARE,
        "device_fault",
        r"uncorrectable (NVLink|ECC|SRAM|memory|parity)|ECC_UNCORRECTABLE|ECCUncorrectable",
        r"(double[- ]bit|row[- ]remapp\w+).{0,40}(error|fail|pending)|hardware stack error",
        r"fallen off the bus|GPU is lost|GPU .{0,60}(is|was) lost|GPU (was )?lost from|GPU_IS_LOST"
        r"|RmInitAdapter failed",
        r"Unable to determine the device handle|nvidia-smi.{0,60}(GPU is lost"
        r"|No devices were found)",
        r"NVRM: .{0,60}\b(RmInit|GPU has|Xid.{0,40}: (48|63|64|74|79|94|95|119|120),)",
        r"amdgpu: .{0,60}(ring|GPU) .{0,30}(timeout|reset)|HW Exception by GPU"
        r"|ras.{0,20}uncorrectable",
        r"NVSwitch.{0,60}(fatal|fail)|fatal NVSwitch|SXid.{0,40}Fatal"
        r"|nvlink.{0,40}(inactive|down|fatal|fail)",
        r"DCGM.{0,80}(fail|unhealthy)|GPU .{0,20}(marked )?(unhealthy|bad|faulty)",
        r"thermal (shutdown|violation|trip)|GPU.{0,40}overheat",
        r"\b(GPU|amdgpu|nvidia|NVRM)\b.{0,80}(device inaccessible|marked for reset|reset required"
        r"|GPU reset begin|(needs|requires) (a )?reset)",
        r"PCIe Bus Error: severity=Uncorrect|\b(TPU|NPU|HPU|accelerator|chip)\b.{0,40}(unhealthy"
        r"|device (lost|fault)|heartbeat lost|hardware (error|fault))",
        r"\bdevice\S* lost heartbeat|Device_Absent/Abnormal",
        unless=r"[:=]\s?(0|no|none|n/a|ok)\s*$|reset (is )?disabled",  # a healthy device's report
    ),
    cause(
        _R.SILENT_CORRUPTION,
        "wrong_numbers",
        r"silent (data )?corruption|\bSDC\b.{0,40}(detect|suspect)",
        r"(parameters?|weights?|gradients?|replicas?) .{0,60}(differ|mismatch|diverge|disagree)\w*"
        r" .{0,40}(across|between) (ranks|replicas|devices|data[- ]parallel)",
        r"(persistent|transient) (error|fault).{0,60}(rerun|result validation)"
        r"|recomput\w+ .{0,40}differ",
    ),
    cause(
        _R.NODE_FAILURE,
        "node_lost",
        r"DUE TO NODE FAILURE|\bNode failure on\b|\bNODE_FAIL\b|NodeDiedError|NodeNotReady",
        r"(?<!because its )\b(node|host|machine|instance|vm|server) .{0,60}\b(has |have )?(died|crashed"
        r"|rebooted"
        r"|went down"
        r"|became (unreachable|unresponsive)|is (down|dead|unreachable|unresponsive))\b",
        r"\b(node|host|machine|agent)\S* .{0,40}\b(not responding|stopped responding|became unusable)\b"
        r"|\bagent (has )?(failed|disconnected|died|was lost)\b",
        r"(?<!its )\bnode .{0,80}marked dead|stopped posting node status",
        r"Kernel panic|soft lockup|watchdog: BUG|BUG: unable to handle|\[Hardware Error\]"
        r"|\bmce: .{0,60}(error|check)",
        r"Machine check|instances?\.hostError|host error|system is (going down|rebooting)"
        r"|EC2 .{0,40}"
        r"(status check|system) .{0,20}fail",
        r"lost (contact|connection) (with|to) (the )?(node|host|machine)|released on a \*?lost\*? node",
        tier=Tier.ROOT,
    ),
    cause(  # Ray names why its node died on another line, where it knows
        _R.NODE_FAILURE,
        "node_died",
        r"because its node has died",
        tier=Tier.SYMPTOM,
    ),
    cause(
        _R.NETWORK_FABRIC,
        "infiniband",
        r"NET/IB ?: .{0,80}(completion|Got).{0,80}(error|status=) ?(?!5\b)\d+",
        r"NET/IB ?: .{0,80}(status=12|async|fatal|port (error|down))|IBV_WC_RETRY_EXC",
        r"retry (counter|count) exceeded|\bibv_\w+.{0,60}(failed|error)|Failed to (modify"
        r"|create) (QP|qp)",
        r"NET/OFI .{0,80}(error|fail|couldn't|Creating new endpoint)|\b(efa|libfabric"
        r"|fi_\w+)\b.{0,80}"
        r"(fail|error|timed? ?out|empty)",
        r"mlx[45]_\w+.{0,80}(error|fail|down|fatal|timeout)|infiniband.{0,60}(fail|down|error)",
        r"ALLOC_PD|local (protection|QP operation|length) error|transport retry|vendor err 129",
        r"ssh: connect to host .{0,80}(refused|timed out|No route|unreachable)",
        r"(NIC|HCA|link|port) (is |went |has gone )?(down|flapp\w+|lost)|Link is Down|lost carrier",
        r"\b(cxi\w{0,9}|cassini)\b.{0,60}(error|fail)",
        r"UCX? .{0,10}(ERROR|WARN).{0,120}(unreachable|timed? ?out|endpoint|reset)"
        r"|RDMA .{0,60}(fail|error)",
    ),
    cause(
        _R.NETWORK_FABRIC,
        "no_route",
        r"No route to host|Network is (unreachable|down)|Host is (down|unreachable)|EHOSTUNREACH"
        r"|ENETUNREACH",
        r"Temporary failure in name resolution|Name or service not known|Could not resolve host"
        r"|nodename nor servname|getaddrinfo.{0,40}fail|NameResolutionError|no such host",
        tier=Tier.GENERAL,
        unless=r"retry|s3://|gs://|amazonaws|googleapis|huggingface|wandb|registry",
    ),
    cause(
        _R.STORAGE_IO,
        "object_store",
        r"\b(HTTP )?(response|status)( code)?:? ?(is |=)?5\d\d\b|\b5\d\d (Server|Service|Internal"
        r"|Bad|Gateway)",
        r"\b(500|502|503|504)\b.{0,60}(s3[:/. ]|gcs|gs:/|blob|bucket|huggingface|hub|upload"
        r"|download)",
        r"Service ?Unavailable|\bSlowDown\b|reduce your request rate|InternalError.{0,80}(S3"
        r"|We encountered)",
        r"\b429\b.{0,60}(Client Error|Too Many|rate)|Too Many Requests|rate limit(ed| exceeded)",
        r"EndpointConnectionError|(Could not|Unable to) connect to (the )?endpoint"
        r"|ConnectTimeoutError|ReadTimeoutError",
        r"StoreUnavailable|FSTimeoutError|ServerTimeoutError|ClientPayloadError|IncompleteRead",
        r"(HfHubHTTPError|HTTPError|StorageException|ServiceResponseError"
        r"|AzureError).{0,60}\b5\d\d\b",
        r"(Server|Remote end).{0,10}(Disconnected|closed connection)|ServerDisconnectedError",
        r"Couldn'?t (reach|connect to) .{0,60}(http|hub|huggingface|server)|OfflineModeIsEnabled",
        r"Consistency check failed: file should be|(download|transfer)\w* .{0,40}(incomplete"
        r"|cut short|size mismatch)",
        # A client of the web that was cut off, whatever the last thing was that it heard.
        r"^(requests|urllib3|aiohttp|httpx|httpcore|botocore|aiobotocore|s3fs|gcsfs|huggingface_hub"
        r"|google\.(api_core|cloud|resumable_media)|azure)\.[\w.]*(Connect|Timeout|Protocol|Read"
        r"|ClientOS|Payload|Disconnected|SSL|Chunked|Transport|Retry|GatewayT)\w*: "
        r"|^curl: \((7|18|28|35|52|55|56|92)\)|^rsync error: .{0,80}(protocol|timeout|socket)",
        r"We couldn't connect to 'https?://|Max retries exceeded with url|RequestTimeout\b",
        r"Read timed out|ChunkedEncodingError|Connection broken: |LocalEntryNotFoundError",
        r"(upload|download|put|get|copy|read|write)\w*.{0,60}(gs|s3|hdfs|abfss?|oss)://.{0,120}"
        r"(fail|timed? ?out|unavailable)",
        unless=r"image|registry|manifest",
        confidence=LIKELY + 0.05,
    ),
    cause(
        _R.STORAGE_IO,
        "file_system",
        r"Input/output error|Errno 5\b|\bEIO\b|Remote I/O error|Errno 121\b|I/O error, dev "
        r"|blk_update",
        r"Stale (NFS )?file handle|Errno 116\b|\bESTALE\b|Transport endpoint is not connected"
        r"|Errno 107\b",
        r"Read-only file system|Errno 30\b|\bEROFS\b|transport endpoint shutdown|Errno 108\b"
        r"|Errno 70\b",
        r"\b(EXT4-fs|XFS|BTRFS|NFS|Lustre|GPFS|beegfs|ceph|weka|juicefs|\w{0,9}fuse).{0,60}"
        r"(error(?!s?=)|not responding|deadline exceeded|evicted|shut|corrupt|timed? ?out|lost)",
        r"(OSError|IOError).{0,30}(Can'?t|Unable to|could not) (write|read|open).{0,40}errno = 5\b",
        r"(Unable to|failed to) (attach or )?mount|FailedMount|FailedAttachVolume"
        r"|mount.{0,30}timed out",
        r"No locks available|Errno 37\b|Structure needs cleaning|Errno 117\b|Errno 74\b"
        r"|disk I/O error|\.nfs[0-9a-f]{12,}",
        tier=Tier.GENERAL,
        unless=r"(secret|configmap)\b.{0,60}not found|scheduling|0/\d+ nodes",
        confidence=LIKELY + 0.05,
    ),
    cause(
        _R.STORAGE_IO,
        "archive_write",
        r"PytorchStreamWriter failed|file write failed|hdf5.{0,60}(unable to|can't) (write|flush)",
        tier=Tier.GENERAL,
        confidence=LEANING,
    ),
    cause(
        _R.DATA_LOADER_STALL,
        "loader_waits",
        r"DataLoader timed out after|stuck (on|in|at): ?.{0,40}(data_queue|_try_get_data"
        r"|data ?loader)",
        r"DataLoader worker .{0,40}(hung|not respond|stuck)|data ?loader .{0,30}(hang|hung|stall"
        r"|stuck)\w*",
        r"(waiting|waited) (for )?(more than |over )?\d+ ?(s|sec|seconds|min\w*) .{0,30}(batch"
        r"|data ?loader)",
    ),
    cause(
        _R.DATA_LOADER_STALL,
        "loader_stack",
        r"\b(_try_get_data|data_queue\.get|_next_data)\b",
        beside=r"most recent call first|py-spy|Thread 0x|stack (dump|trace of)|faulthandler",
        tier=Tier.GENERAL,
    ),
    cause(
        _R.HANG,
        "no_progress",
        r"no (progress|step|heartbeat|output) .{0,30}(for|in|since) (the last )?\d+|hang detected",
        r"(training|job|run|process) (has )?stalled\b",
        r"(training|job|process|rank) .{0,40}(appears|seems|is) (to be )?(stuck|hung|hanging"
        r"|deadlocked)",
        r"deadlock( detected|ed)\b|liveness probe failed|failed liveness probe",
        tier=Tier.GENERAL,
        confidence=LIKELY,
    ),
    cause(
        _R.HANG,
        "collective_timeout",
        r"Watchdog caught collective operation timeout|watchdog .{0,60}(timed? ?out|timeout)",
        r"Timeout at NCCL work|collective .{0,60}(timed? ?out|timeout)"
        r"|heartbeat ?monitor.{0,60}(timed? ?out|timeout|terminat|stuck)|watchdog got stuck",
        r"\b(WorkNCCL|WorkHCCL|WorkGloo)\(.{0,200}timed? ?out",
        r"Timed out waiting \d+ms for (send|recv)|monitoredBarrier.{0,80}(fail|timed? ?out"
        r"|did not)|failed to pass monitoredBarrier|\b(hccl|rccl|xccl|oneccl)\b.{0,40}timed? ?out",
        tier=Tier.SYMPTOM,
        unless=r"\b(config\w*|enabled|interval)\b",
    ),
    cause(
        _R.NETWORK_FABRIC,
        "connection",
        r"(NET/Socket|socket|connect\w*) .{0,80}(failed|error).{0,60}(timed out|timeout|refused"
        r"|unreach)",
        r"Connection timed out|Errno 110\b|ETIMEDOUT|connect\(\) .{0,40}timed out",
        r"client socket has failed to connect|DistNetworkError|ncclSystemError"
        r"|unhandled system error",
        tier=Tier.SYMPTOM,
    ),
)
