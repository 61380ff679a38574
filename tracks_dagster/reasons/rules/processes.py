"""Rows of causes: memory or disk ran out, a process crashed, could not save or was interrupted."""

from __future__ import annotations

from tracks_dagster.reasons.rules.cause import LEANING, LIKELY, Cause, Tier, cause
from tracks_dagster.track.reasons import TerminationReason

_R = TerminationReason

MEMORY: tuple[Cause, ...] = (
    cause(
        _R.HOST_OOM,
        "ray_memory_monitor",
        r"OutOfMemoryError: Task was killed|node (was )?running low on memory",
        r"killed .{0,80}\bdue to (the )?(node|memory) .{0,40}(low on memory|pressure)",
    ),
    cause(
        _R.HOST_OOM,
        "oom_daemon",
        r"\b(systemd-oomd|oomd|earlyoom|nohang)\b.{0,120}\b(kill|SIGTERM|SIGKILL)",
    ),
    cause(
        _R.HOST_OOM,
        "jvm_heap",
        r"java\.lang\.OutOfMemoryError|GC overhead limit exceeded",
    ),
    cause(
        _R.HOST_OOM,
        "host_tensor_allocation",
        r"OOM when allocating tensor.{0,300}device:CPU",
        r"DefaultCPUAllocator|alloc_cpu\.cpp.{0,120}memory",
    ),
    cause(
        _R.GPU_OOM,
        "device_allocation",
        r"\b(CUDA|HIP|XPU|NPU|MPS|HPU|ROCm|GPU|device)\b.{0,30}\bout of memory\b",
        r"\b(torch\.(cuda\.)?|cupy\.cuda\.memory\.|^)OutOfMemoryError\b",
        r"cuda runtime error.{0,30}out of memory|cuda run time error.{0,30}out of memory",
        r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|cudaMalloc.{0,60}failed.{0,60}memory",
        r"hipErrorOutOfMemory|CU(BLAS|DNN|SOLVER|SPARSE|FFT)_STATUS_ALLOC_FAILED"
        r"|CUFFT_ALLOC_FAILED",
        r"RESOURCE_EXHAUSTED: .{0,60}(out of memory|allocat|OOM)|OOM when allocating tensor",
        r"ResourceExhaustedError|Failed to allocate request for .{0,60}on (GPU|device)",
        r"Cuda failure.{0,10}'?out of memory|Not enough memory on (the )?device",
        r"XlaRuntimeError: RESOURCE_EXHAUSTED|Ran out of memory in memory space hbm",
        r"No available memory for the cache blocks|Not enough (GPU |video )?memory.{0,40}(KV|VRAM)",
        r"(would exceed|exceeds) .{0,40}\b(HBM|VRAM|GPU memory)\b",
        unless=r"No space left|Disk quota|more than 1EB",  # a size that no program means
    ),
    cause(
        _R.SHM_EXHAUSTED,
        "shared_memory",
        r"insufficient shared memory|out of shared memory(?!.{0,40}(required|limit))",
        r"(No space left|failed|unable|cannot|error).{0,120}/dev/shm",
        r"/dev/shm.{0,160}(No space left|exhausted|is full|too small|failed|Cannot allocate)",
        r"unable to (write to file|open shared memory object|allocate shared memory|mmap \d+ bytes"
        r" from file|resize file) ?<?/?(torch_|filename|\.?/dev/shm)?.{0,200}",
        r"Unexpected bus error encountered in worker|worker .{0,40}killed by signal: Bus error",
        r"(creat|attach|alloc|open|extend)\w* .{0,40}shared[- ]memory.{0,200}(fail|No space|error)",
        r"(error|fail\w*) .{0,40}(creat|attach|alloc|open)\w* .{0,20}shared[- ]memory",
        r"shm_open.{0,80}(fail|error|No space)|ObjectStoreFullError"
        r"|object store memory .{0,20}full",
        r"could not (resize|create) shared memory segment|THAllocator",
        r"EmptyDir volume \"?(d?shm|shared-?mem\w*)\"? exceeds",
        unless=r"out of resource: shared memory|shared memory per block|PostgreSQL",
    ),
    cause(
        _R.SHM_EXHAUSTED,
        "no_space_beside_shm",
        r"No space left on device|ENOSPC|Errno 28\b",
        beside=r"/dev/shm|/torch_\d+|torch_shm_manager|shared[-_ ]memory|shmem",
        unless=r"inotify",
    ),
    cause(
        _R.HOST_OOM,
        "oom_killer",
        r"Out of memory: Kill(ed)?|Killed process \d+ \(|invoked oom-killer|oom-kill:|oom_reaper"
        r"|OOMKill(ed|ing)"
        r"|OOM-killed",
        r"Detected \d+ oom[-_ ]?kill|oom[-_]kill event|some of (your"
        r"|the) .{0,40}killed by the .{0,20}oom",
        r"(slurmstepd|srun|sbatch).{0,120}(oom[-_ ]?kill|Out Of Memory)|\bOUT_OF_ME(MORY)?\b",
        r"(exceeded|over) (its |the )?(job|step|container|cgroup|pod)? ?memory (limit|request)",
        r"memory (limit|usage).{0,60}exceed|beyond (the )?'?(physical|virtual)'? memory limit",
        r"TERM_MEMLIMIT|PBS: job killed: .{0,20}mem|Container killed .{0,60}exceeding memory",
        r"low on resource: memory|\bMemoryPressure\b|Memory cgroup out of memory",
        r"killed.{0,20}\b(out of|due to|insufficient) (host |system )?(memory|RAM)\b",
        r"exceeded \d+% memory budget",
        unless=r"\b(other|another|peer|sibling|sidecar|neighbou?r)\b"
        r"|\bpods? [a-z0-9][\w.-]* (was|were|is|got) OOM|\band restarted\b",
    ),
    cause(
        _R.HOST_OOM,
        "host_allocation",
        r"\bMemoryError\b|std::bad_alloc|Cannot allocate memory|Errno 12\b|\bENOMEM\b",
        r"Unable to allocate [\d.]+ [KMGTP]i?B|(not|in)(sufficient| enough) (host |system "
        r"|CPU )?(RAM|memory) ",
        r"(malloc|realloc|mmap|fork)\w*\b.{0,40}(of failed|failed|error).{0,40}memory",
        r"(ran|run|running) out[- ]of[- ](host |system |CPU |main )?(memory|RAM)\b",
        r"\bout[- ]of[- ]memory\b.{0,40}\b137\b|\b137\b.{0,40}\b(OOM|out[- ]of[- ]memory)\b"
        r"|(instance|machine|node)( type)? with more memory",
        r"cudaHostAlloc|cudaErrorHostMemory|pin(ned)? memory.{0,60}(fail|out of memory)",
        r"failed to allocate .{0,40}(host|pinned|system) memory",
        unless=r"\bGPU\b|\bHBM\b|\bVRAM\b|CUDA out of memory|GPU_\d+_bfc",
    ),
    cause(
        _R.HOST_OOM,
        "worker_killed",
        r"DataLoader worker .{0,40}killed by signal: Killed",
        r"BrokenProcessPool|A (worker )?process .{0,60}terminated abruptly",
        tier=Tier.GENERAL,
        confidence=LEANING,
    ),
    cause(
        _R.GPU_OOM,
        "allocator_warning",
        r"Allocator \(GPU_\d+_bfc\) ran out of memory",
        tier=Tier.GENERAL,
    ),
    cause(
        _R.DISK_FULL,
        "no_space",
        r"No space left on device|Errno 28\b|\bENOSPC\b|Disk quota exceeded|Errno 122\b|\bEDQUOT\b",
        r"low on resource: (ephemeral-storage|inodes|nodefs|imagefs)|\bDiskPressure\b",
        r"database or disk is full|not enough (free )?(disk )?space"
        r"|insufficient (free )?disk space",
        r"(disk|volume|file ?system|device|scratch) (is |was )?(full|out of space)"
        r"|out of (disk )?space",
        r"(exceeds|exceeded) .{0,60}(ephemeral|local|emptyDir|disk).{0,20}(storage|limit|quota"
        r"|usage)|ephemeral .{0,20}storage usage exceeds",
        r"quota exceeded.{0,60}(disk|storage|file|inode|block)"
        r"|(disk|file|inode) quota .{0,20}(exceed|reach|full|limit)",
        r"(disk|storage|volume|file ?system) .{0,60}(reach|exceed|over)\w* .{0,20}quota|\bDiskFull",
        unless=r"inotify",  # its watches are a limit of the kernel, reported by the same number
    ),
    cause(
        _R.DISK_FULL,
        "archive_cut_short",
        r"inline_container\.cc.{0,20}unexpected pos \d+ vs",
        tier=Tier.GENERAL,
        confidence=LIKELY,
    ),
)


CRASHES: tuple[Cause, ...] = (
    cause(
        _R.NATIVE_CRASH,
        "crash",
        r"Segmentation fault|\bSIGSEGV\b(?!.{0,40}\b(or|other)\b)|double free or corr"
        r"|stack smashing",
        r"(munmap_chunk|free|realloc|malloc)\(\): (invalid|corrupt|double|mis)|corrupted (size"
        r"|double|unsorted)",
        r"Fatal Python error: (Segmentation|Aborted|Illegal|Bus|PyThread|\w+_)|heap corruption",
        r"Illegal instruction|\bSIGILL\b|\bSIGFPE\b|Floating point exception|core dumped"
        r"|Access violation",
        r"Memory access fault by GPU|pure virtual method called|segfault at [0-9a-f]+|malloc\.c:\d+: ",
        unless=r"other unexpected errors",
    ),
    cause(
        _R.NATIVE_CRASH,
        "device_access",
        r"illegal memory access|unspecified launch failure|misaligned address"
        r"|an illegal instruction was",
        r"terminate called (after throwing|without)|\bSIGABRT\b",
        r"CU(DNN|BLAS)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)|launch timed out and was terminated",
        r"\b(cuda|hip)Error(IllegalAddress|LaunchFailure|MisalignedAddress)\b"
        r"|\bCUDA_ERROR_(ILLEGAL_ADDRESS|LAUNCH_FAILED|ILLEGAL_INSTRUCTION)\b",
        r"\bHSA_STATUS_ERROR_(EXCEPTION|MEMORY_FAULT|MEMORY_APERTURE_VIOLATION|ILLEGAL_INSTRUCTION)\b",
        tier=Tier.SYMPTOM,
    ),
    cause(
        _R.NATIVE_CRASH,
        # Signals 4, 6, 8 and 11 as a shell, a parent and Windows report them; 9 and 15 tell nothing.
        "told_exit_code",
        r"\b(exit|return)(ed|s)?[ _-]?(with )?(non-?zero )?(code|status)( of)?\s{0,3}[:=]?\s{0,3}"
        r"(13[2469]|-(4|6|8|11)|-1073741(819|795))\b|\(0xC0000(005|01D)\)",
        tier=Tier.SYMPTOM,
    ),
    cause(
        _R.CHECKPOINT_WRITE_FAILED,
        "last_save",
        r"CheckpointWriteFailed|(fail\w*|error|could not|unable)\b.{0,30}(sav|writ|commit"
        r"|upload)\w* .{0,40}"
        r"(checkpoint|state[_ ]dict)",
        r"(checkpoint|model) (save|saving|write|upload).{0,30}(fail|error|abort|timed out)",
        tier=Tier.GENERAL,
    ),
    cause(
        _R.CHECKPOINT_WRITE_FAILED,
        "save_given_up",
        r"\bsav(e|ing) failed\b|failed to save\b",
        beside=r"checkpoint|ckpt|state[_ ]dict",
        tier=Tier.GENERAL,
    ),
    cause(
        _R.USER_CANCELLED,
        "interrupted",
        r"\bKeyboardInterrupt\b|Received SIGINT|Process got signal: 2\b",
        r"(interrupted|cancel+ed|killed|stopped|aborted|terminated) by (the )?user|scancel"
        r"|user (requested|cancel)|\bTERM_(FORCE_)?(OWNER|ADMIN)\b"
        r"|(delet|cancel|kill|stopp?)\w* (at (the )?request of|by (the )?(owner|admin\w*|operator))\b"
        r"|Client\.(User|Instance)InitiatedShutdown",
        tier=Tier.SYMPTOM,
        confidence=LIKELY,
    ),
)
