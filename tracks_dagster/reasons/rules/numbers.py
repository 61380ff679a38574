"""Rows of causes by number and published name: they mean the same in every version and language.

Sources: CUDA's `cudaError_t` and `CUresult`, HIP's `hipError_t`, Linux's errno(3) and glibc's
translations of it, absl's and gRPC's status codes, and the ends that platforms publish for a job.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracks_dagster.reasons.rules.cause import LEANING, Cause, Tier, cause
from tracks_dagster.track.reasons import TerminationReason

_R = TerminationReason

# Errors of the CUDA runtime; HIP has the same numbers for these.
CUDA: Mapping[TerminationReason, tuple[int, ...]] = {
    _R.GPU_OOM: (2,),
    _R.DEPENDENCY_MISMATCH: (
        35,
        36,
        98,
        200,
        209,
        218,
        221,
        222,
        223,
        301,
        302,
        303,
        802,
        803,
        804,
    ),
    _R.CONFIG_ERROR: (100, 101),
    _R.GPU_HARDWARE: (214, 220, 226, 714),
    _R.NATIVE_CRASH: (700, 702, 715, 716, 717, 718, 719),
}
# Their names, for those that the tables of words do not have.
_CUDA_NAMES: Mapping[TerminationReason, tuple[str, ...]] = {
    _R.GPU_HARDWARE: ("ECCUncorrectable", "NvlinkUncorrectable", "HardwareStackError", "Contained"),
    _R.DEPENDENCY_MISMATCH: (
        *("InsufficientDriver", "NoKernelImageForDevice", "NoBinaryForGpu", "InvalidKernelImage"),
        *(
            "InvalidPtx",
            "UnsupportedPtxVersion",
            "JitCompilerNotFound",
            "CompatNotSupportedOnDevice",
        ),
        *("SystemDriverMismatch", "SystemNotReady", "SharedObjectInitFailed"),
    ),
    _R.CONFIG_ERROR: ("NoDevice", "InvalidDevice"),
}
# errno(3) of Linux, and what glibc says for it in other languages.
ERRNO: Mapping[TerminationReason, tuple[int, ...]] = {
    _R.PERMISSION_DENIED: (1, 13),
    _R.HOST_OOM: (12,),
    _R.STORAGE_IO: (5, 30, 74, 107, 108, 116, 117, 121),
    _R.DISK_FULL: (28, 122),
    _R.CONFIG_ERROR: (24, 98, 99),
    _R.NETWORK_FABRIC: (100, 101, 112, 113),
}
STRERROR: Mapping[TerminationReason, tuple[str, ...]] = {
    _R.DISK_FULL: (
        *("kein Speicherplatz mehr verfügbar", "Plattenplatz \\(Quota\\) ist überschritten"),
        *("Aucun espace disponible", "Plus d'espace disponible", "quota d'espace disque"),
        *("No queda espacio", "excedido la cuota de disco", "Não há espaço disponível"),
        *("Spazio esaurito", "не осталось свободного места", "Brak miejsca na urządzeniu"),
        *(
            "设备上没有空间",
            "超出磁盘限额",
            "デバイスに空き領域がありません",
            "장치에 남은 공간이 없",
        ),
    ),
    _R.PERMISSION_DENIED: (
        *("Keine Berechtigung", "Permission non accordée", "Permiso denegado", "Permissão negada"),
        *("Permesso negato", "Отказано в доступе", "Brak dostępu", "权限不够", "拒绝访问"),
        *("許可がありません", "허가 거부"),
    ),
    _R.STORAGE_IO: (
        *("Eingabe-/Ausgabefehler", "Erreur d'entrée/sortie", "Error de entrada/salida"),
        *(
            "Ошибка ввода/вывода",
            "输入/输出错误",
            "入力/出力エラー",
            "Veraltete Dateizugriffsnummer",
        ),
    ),
    _R.HOST_OOM: (
        *("Nicht genügend Hauptspeicher", "Speicher nicht allozieren", "allouer de la mémoire"),
        *("asignar memoria", "无法分配内存", "メモリを確保できません", "выделить память"),
    ),
}
# How a platform publishes the end of a job that a log then repeats, but for preemptions, time limits
# and drains: `capacity` has those.
PUBLISHED: Mapping[TerminationReason, tuple[str, ...]] = {
    _R.USER_CANCELLED: ("TERMINATED_BY_USER", "ABORTED_BY_USER", "JOB_STATE_CANCELLED"),
    _R.NODE_FAILURE: ("INSTANCE_UNREACHABLE", "JOB_STATE_WORKER_FAILED", "UNEXPECTED_TERMINATION"),
    _R.HOST_OOM: ("NODE_OUT_OF_MEMORY", "OutOfMemoryError: Container killed due to memory usage"),
    _R.STORAGE_IO: ("VOLUME_ERROR",),
    _R.CONFIG_ERROR: ("PORTS_BINDING_FAILED", "MISCONFIGURATION:[A-Z_]+", "FAILED_PRECHECKS"),
    _R.IMAGE_PULL: ("CREATING_CONTAINER_ERROR", "CannotPullContainerError"),
}


def _cuda(reason: TerminationReason, numbers: tuple[int, ...]) -> Cause:
    number = "|".join(map(str, numbers))
    names = "|".join(_CUDA_NAMES.get(reason, ()))
    spelled = (
        rf"\b(cuda|hip)\w*\b.{{0,60}}\b(error|code|status|failure)\b[\s\W]{{0,4}}(code\W{{0,3}})?({number})\b",
        rf"\b(cuda|hip)\w*\(.{{0,40}}\b[Ee]rror\W{{0,3}}({number})\b",
        *((rf"\b(cuda|hip)Error({names})\b",) if names else ()),
    )
    return cause(reason, f"cuda_error_{reason.value}", *spelled, tier=Tier.GENERAL)


def _errno(reason: TerminationReason, numbers: tuple[int, ...]) -> Cause:
    number = "|".join(map(str, numbers))
    return cause(
        reason,
        f"errno_{reason.value}",
        rf"\b(os error|errno\s?[=:]|errno|error code:?|\(os error) ?\(?({number})\b(?!\.)",
        unless=r"\[Errno|inotify|/dev/shm|nccl|shared memory",
        tier=Tier.GENERAL,
    )


NUMBERS: tuple[Cause, ...] = (
    *(_cuda(reason, numbers) for reason, numbers in CUDA.items()),
    *(_errno(reason, numbers) for reason, numbers in ERRNO.items()),
    *(cause(r, f"strerror_{r.value}", *words, tier=Tier.GENERAL) for r, words in STRERROR.items()),
    *(
        cause(r, f"published_{r.value}", rf"\b({'|'.join(names)})\b", tier=Tier.GENERAL)
        for r, names in PUBLISHED.items()
    ),
    cause(
        _R.GPU_OOM,
        "resource_exhausted",
        r"\bResource ?_?exhausted(Error)?\b.{0,120}\b(allocat\w*|HBM|VRAM|device memory|OOM"
        r"|out of memory)",
        unless=r"quota|rate|larger than max|disk|device:CPU",
    ),
    cause(
        _R.PERMISSION_DENIED,
        "status_denied",
        r"\b(PERMISSION_DENIED|UNAUTHENTICATED)\b(: | \(|\W{0,3}$)",
        tier=Tier.GENERAL,
    ),
    cause(
        _R.CONFIG_ERROR,
        "status_not_found",
        r"\b(NOT_FOUND|ALREADY_EXISTS): ",
        tier=Tier.GENERAL,
        confidence=LEANING,
    ),
)
