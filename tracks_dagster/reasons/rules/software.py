"""Rows of causes: checkpoints, data, numbers, settings, libraries or code were wrong."""

from __future__ import annotations

from tracks_dagster.reasons.rules.cause import LEANING, Cause, Tier, cause
from tracks_dagster.track.reasons import TerminationReason

_R = TerminationReason

# The line of an exception: words that a log is full of tell a cause only where code gave up on them.
RAISES = r"^(?:\w+\.)*\w*(?:Error|Exception|Exit): .{0,160}?\b"

# The bytes are whole, and another version of a library wrote them or reads them.
_OTHER_VERSION = (
    r"weights[_ ]only|unsupported (global|class|pickle protocol|format|version)|not an allowed global"
    r"|we changed the default|(newer|older|different|other|another) (version|release)( of)?"
    r"|\b(format|file|schema|checkpoint) version\b|\bversion mismatch\b"
)

DATA: tuple[Cause, ...] = (
    cause(
        _R.DEPENDENCY_MISMATCH,
        "other_version",
        r"Weights ?only (load failed|unpickl)|Unsupported (global|class)\b|not an allowed global"
        r"|unsupported pickle protocol",
        r"(checkpoint|state[_ ]dict|weights?|file|archive|model|index|pickle)\b.{0,60}"
        r"\b(written|saved|created|produced|made|serialized|stored) (with|by|in|using) "
        r"(an? |the )?(newer|older|different|other|another|incompatible)",
        r"(unsupported|unknown|incompatible) (checkpoint|file|format|schema) (format )?version"
        r"|(checkpoint|format|schema) version .{0,40}((not |un)supported|too (new|old)|mismatch)",
    ),
    cause(
        _R.CHECKPOINT_CORRUPT,
        "unreadable_checkpoint",
        r"CheckpointCorrupt|(checkpoint|shard|weights?|\.(ckpt|pth?|bin|safetensors)\b).{0,60}"
        r"\b(sha-?\d+|md5|crc\d*|hash|checksum|digest)\b.{0,20}(mismatch|differ|wrong|does not match)",
        r"PytorchStreamReader failed|failed finding central directory",
        r"SafetensorError|deserializing header|InvalidHeader|HeaderTooLarge"
        r"|MetadataIncompleteBuffer",
        r"invalid header or archive is corrupted|unexpected EOF, expected \d+ more bytes",
        r"Invalid magic number; corrupt|(checkpoint|shard|weights?) .{0,60}\b(is|was) incomplete\b",
        r"storage has wrong (byte )?size|not an sstable|Unable to open table file",
        r"(checkpoint|state[_ ]dict|weights?|model file|\.(ckpt|pt|pth|bin|safetensors)\b).{0,120}"
        r"(corrupt|truncated|incomplete|damaged|unreadable|bad magic|checksum|missing shard)",
        r"(corrupt\w*|truncated|incomplete) .{0,60}(checkpoint|state[_ ]dict|model weights)",
        rf"{RAISES}shard\b.{{0,120}}\b(not found|is missing)\b|Invalid checkpoint file",
        unless=_OTHER_VERSION,
    ),
    cause(
        _R.CHECKPOINT_CORRUPT,
        "unreadable_pickle_of_weights",
        r"invalid load key|pickle data was truncated|EOFError|BadZipFile|zlib\.error"
        r"|Checksum does not match|data ?loss",
        beside=r"torch[./]load|load_(state|checkpoint|model|weights)|serialization\.py|\.(pth?|ckpt)\b"
        r"|from_pretrained|resum\w+ from|restor\w+",
        unless=_OTHER_VERSION,
        tier=Tier.GENERAL,
    ),
    cause(
        _R.BAD_INPUT_DATA,
        "unreadable_sample",
        r"DataRejected|image file is truncated|cannot identify image file|UnidentifiedImageError",
        r"UnicodeDecodeError|ArrowInvalid|JSONDecodeError|Parquet magic bytes|Invalid parquet",
        r"Corrupt JPEG|broken (PNG|data stream)|libpng error|moov atom not found"
        r"|Premature end of JPEG",
        r"Invalid data found when processing input|error (reading|decoding) (the )?(image|video"
        r"|audio)",
        r"(corrupt\w*|truncated) (record|sample|example|image|video|shard|tfrecord|row|file at)",
        r"Error tokenizing data|EmptyDataError|tarfile\.ReadError|CRC check failed"
        r"|Not a gzipped file",
        r"DatasetGeneration(Cast)?Error|NonMatching(Splits|Checksum)\w*Error|ExpectedMoreSplits",
        r"(dataset|data ?set|split|training data) .{0,40}(is )?(empty|has no (rows|samples"
        r"|examples))",
        r"num_samples should be a positive integer|could not convert string to float",
        r"Input (X |y )?contains (NaN|infinity)|SchemaErrors?:|not a valid (image|parquet"
        r"|tfrecord)",
        r"(file|image|annotation|label|record|sample|shard)s? .{0,60}(is|are) (corrupt|truncated"
        r"|malformed)",
        r"Assertion [`'\"]?(t|target|cur_target|label|y)\b.{0,80}(n_classes|num_classes"
        r"|C\b).{0,20}failed",
        r"Target \d+ is out of bounds|labels? .{0,40}(out of (range|bounds)|exceed|must be (in"
        r"|less))",
        r"(invalid|unknown|unexpected) (label|class id|target)",
    ),
    cause(
        _R.BAD_INPUT_DATA,
        "unreadable_file",
        r"UnpicklingError|pickle data was truncated|EOFError: Ran out of input|BadZipFile",
        r"file signature not found|bad magic number|truncated file: eof|zlib\.error|DataLossError",
        tier=Tier.GENERAL,
        confidence=LEANING,
    ),
    cause(
        _R.BAD_INPUT_DATA,
        "undecodable_sample",
        r"DECORDError|LibsndfileError|InvalidDataError|cannot find (a |any )?(video|audio) stream",
        rf"{RAISES}(could not|couldn'?t|failed to|unable to|cannot|error while) (decod|pars)\w+ ",
        rf"{RAISES}(index|data(set)?|annotation) file .{{0,40}}(not|n't) match",
        rf"{RAISES}(no|zero|0) (valid |training )?(samples|examples|images|labels|records|rows)\b",
        rf"{RAISES}column .{{0,60}}(not (in|found)|does ?n.t exist|missing)",
        rf"{RAISES}(could not|couldn'?t|failed to|unable to|cannot|error) (convert|cast|read|load|open"
        r"|process|tokeni[sz])\w* .{0,60}\b(data ?frame|table|rows?|records?|samples?|images?|audio"
        r"|videos?|csv|jsonl?|parquet|tfrecord|annotations?)\b",
        r"\bArrow(TypeError|NotImplementedError|CapacityError|KeyError|SerializationError)\b",
        # What OpenCV says of an image that it could not read.
        r"Assertion failed\) !\w*(src|ssize|img|image)\w*(\.empty\(\)|\.size\(\)\.empty)",
        r"\b(MDB_CORRUPTED|CorruptedError|EmptyDatasetError)\b|got unknown format starting with",
        tier=Tier.GENERAL,
    ),
    cause(
        # A field or a name that annotations lack, or that the list of classes does not have.
        _R.BAD_INPUT_DATA,
        "missing_in_annotations",
        r"^(KeyError|IndexError)\b",
        beside=r"(load|transform|parse|read)_annotations?\b|\bcat2label\b|class_to_idx\["
        r"|\[['\"](categories|annotations)['\"]\]|category_id_to_\w+\[|label2(id|idx)\[",
        tier=Tier.GENERAL,
        confidence=LEANING,
    ),
    cause(
        _R.NAN_LOSS,
        "not_a_number",
        r"\bNonFinite\b|NanLossDuringTraining|\b(NaN|Inf){1,2}\w*(Error|Exception)\b|"
        r"\b(contain|found|encounter|detect|got|was|were)\w*"
        r" .{0,20}\b(nan|inf)\b.{0,60}\b(stop|abort|terminat|halt)\w*",
        r"(loss|grad\w*|logits|outputs?|norm|weights?|param\w*|activations?)\b.{0,40}"
        r"\b(is|are|was|became|turned|contains?|has|got) ?(a )?(nans?|infs?|infinit\w+"
        r"|non-?finite|not finite)\b",
        r"\b(nans?|infs?|non-?finite|infinite)\b(( or | and |/)(nan|inf)\w*)?( values?)?.{0,12} (in|for"
        r"|during|from"
        r"|found|encountered|loss|detected|gradients?)\b",
        r"function '\w+' returned nan values|(found|encounter\w*|detect\w*|got|tensor had)"
        r" (an? )?(nan|inf|non-?finite)\b",
        r"probability tensor contains either|satisfy the constraint .{0,80}found invalid values",
        r"cannot convert float (nan|infinity)",
        unless=r"RuntimeWarning|Input (X |y )?contains|set_detect_anomaly"
        r"|skipp\w+\b(?! iterations: +0\b)|grad_norm: (\d|inf)"
        r"|\binfo\b|in inference|overflow",
    ),
    cause(
        # Shown while the program went on: what it raised later says more.
        _R.NAN_LOSS,
        "loss_shown_as_nan",
        r"(\b|_)(loss|ppl|perplexity)(es)?['\"]?\s?[=:]{0,2}\s?['\"]?\bnan\b",
        # The best loss so far begins with infinity.
        r"^(?!.{0,300}\b(best|min|lowest|patience)).{0,300}?(\b|_)(loss|ppl|perplexity)(es)?['\"]?"
        r"\s?[=:]\s?['\"]?inf\b",
        r"\b(grad\w*|logits|norm)['\"]?\s?[=:]{1,2}\s?nan\b",
        tier=Tier.GENERAL,
        unless=r"RuntimeWarning|skipp\w+\b(?! iterations: +0\b)|\binfo\b|in inference|overflow",
    ),
    cause(
        _R.LOSS_DIVERGENCE,
        "loss_scale_at_minimum",
        r"Minimum loss scale reached|loss scale already at minimum"
        r"|cannot decrease (the )?(loss )?scale",
        r"(grad|loss)[_ ]scale\w* .{0,20}(too small|underflow\w*|below)|\bscale went (less|below)",
        r"loss (has |is )?(diverg|explod|blow)\w*|(training|model|run) (has )?diverged"
        r"|divergence detected",
        r"loss (spike|jump).{0,40}(abort|stop|exceed|limit)"
        r"|loss .{0,40}exceed\w* .{0,30}(threshold|limit)",
    ),
    cause(
        _R.LOSS_DIVERGENCE,
        "loss_scale_at_zero",
        r"ZeroDivisionError|division by zero",
        beside=r"loss scale to (0\.0\b|\d[\d.]*e-\d{2,})",
    ),
    cause(
        _R.LOSS_DIVERGENCE,
        "loss_scale_falling",
        r"overflow.{0,60}(loss )?scale.{0,20}(to:?|=|is) ?(0?\.0\d*|[0-9.]+e-\d+)",
        tier=Tier.SYMPTOM,
    ),
)


SOFTWARE: tuple[Cause, ...] = (
    *DATA,
    cause(
        _R.IMAGE_PULL,
        "image",
        r"\b(ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull"
        r"|CannotPullContainer\w*)",
        r"Failed to pull (and unpack )?image|Back-off pulling image|pull access denied"
        r"|manifest unknown",
        r"manifest for .{0,200}not found|no matching manifest|failed to resolve (reference|image"
        r"|source)",
        r"toomanyrequests|reached your (unauthenticated )?pull rate limit|(import"
        r"|pull)\w* (docker |OCI )?image"
        r".{0,80}(fail|error)|(fail|error)\w*.{0,40}(import|pull)\w* .{0,20}image",
        r"repository .{0,80}not found.{0,60}docker|registry.{0,120}(unauthorized|denied|not found"
        r"|x509)",
        r"could not (find|download|open) (the )?(container |docker |singularity "
        r"|squashfs )?image\b",
    ),
    cause(
        _R.DEPENDENCY_MISMATCH,
        "libraries",
        r"\bModuleNotFoundError\b|\bImportError\b|undefined symbol|cannot import name"
        r"|No module named",
        r"driver .{0,60}is too old|no kernel image is available|driver version is insufficient"
        r"|forward compatibility was attempted",
        r"is not compatible with the current PyTorch|unsupported toolchain"
        r"|Unsupported gpu architecture|invalid value for --gpu-arch",
        r"version [`'\"]?\w+_[\d.]+'? not found|VersionConflict|DistributionNotFound"
        r"|ContextualVersion",
        r"cannot open shared object file|Could not load (dynamic )?library"
        r"|Driver/library version mismatch",
        r"(compiled|built) (with|using|against|for) .{0,120}(incompatible|different|but"
        r"|version of|API)",
        r"binary incompatibility|_ARRAY_API not found|numpy\.core\.multiarray failed to import",
        r"not compiled with (CUDA|NCCL|distributed|ROCm|cu\w+)|VERSION_MISMATCH|exec format error",
        r"CUDA version .{0,80}mismatch\w*|\bversion\b.{0,60} (does not|doesn't) match the version"
        r"|(installed|detected) version .{0,80}(too old"
        r"|not supported|mismatch)",
        r"module '[\w.]+' has no attribute|requires .{0,40}(>=|<=|==|<|>"
        r"|version) ?v?\d.{0,80}(but|found|"
        r"installed|have|got)",
        r"(is incompatible|are incompatible|incompatible version|version conflict)"
        r"|Please (upgrade|downgrade)",
        r"Transformers does not recognize this architecture|requires? (a )?newer version"
        r"|is out of date\b",
        r"CUDA (driver|runtime) .{0,60}(too old|unsupported|mismatch)|cudaErrorInsufficientDriver",
        r"\bonly supports? .{0,40}\b(GPUs?|compute capability|architectures?)\b"
        r"|only supported on .{0,40}(GPUs?|compute capability)",
        r"device kernel image is invalid|[`'\"]?ptxas[`'\"]? (failed|fatal|returned)"
        r"|fatal error: [\w/.+-]+\.h(pp)?: No such file",
        r"(cannot|could not|couldn't|unable to) find .{0,40}\b(installation|compiler|nvcc|CUDA_HOME)\b",
        r"cudaErrorNoKernelImageForDevice|CUDNN_STATUS_(ARCH|VERSION)_MISMATCH"
        r"|has been removed in (version )?\d",
        r"unsatisfied condition: cuda|nvidia-container-cli: .{0,60}(load library|requirement)",
        r"You need \w+ ?(>=|==|<=)|operator \S+::\S+ does not exist"
        r"|Could not run '\S+::\S+' with arguments",
        r"Failed to import \S+\.\S+|Could not find a version that satisfies"
        r"|No matching distribution found|ResolutionImpossible|ResolvePackageNotFound"
        r"|PackagesNotFoundError",
        r"Numpy is not available|(does ?n.t|do(es)? not) have \w+ (built[- ]in|support compiled)",
    ),
    cause(
        _R.DEPENDENCY_MISMATCH,
        "unusable_native_code",
        r"\bCUDA Setup failed\b|DLL load failed|Error building extension|\bnvcc (fatal|not found)",
        rf"{RAISES}ninja is required|{RAISES}.{{1,60}} (is|are) not (installed|compiled|built)\b",
        rf"{RAISES}(could not|couldn'?t|failed to|unable to) (find|load|locate) .{{0,60}}"
        r"(librar(y|ies)|binary|\.so\b|\.dll\b)",
        tier=Tier.GENERAL,
    ),
    cause(
        _R.PERMISSION_DENIED,
        "refused",
        r"\bPermissionError\b|Permission denied|Errno 13\b|\bEACCES\b|Errno 1\b"
        r"|Operation not permitted",
        r"Access ?Denied|\b403\b.{0,40}(Client|Forb|HTTP|error|status)|(HTTP|status|code"
        r"|error).{0,12}\b403\b",
        r"\b401\b.{0,40}(Client|Unauth|HTTP|error|status)|(HTTP|status|code|error).{0,12}\b401\b",
        r"\bUnauthorized\b|(authentication|authorization) (failed|required|error)"
        r"|not authorized to perform",
        r"InvalidAccessKeyId|SignatureDoesNotMatch|Expired ?Token|token .{0,40}(has )?expired"
        r"|InvalidToken",
        r"\bGatedRepo(Error)?\b|gated (repo|model|dataset)|NoCredentialsError"
        r"|Unable to locate credentials",
        r"DefaultCredentialsError|credentials? .{0,30}(not found|were not found|expired|invalid"
        r"|missing)",
        r"do(es)? not have .{0,60}(access|permission)|access to .{0,60}is restricted"
        r"|bad credentials|(lacks?|missing|insufficient) .{0,20}permission",
        r"(invalid|incorrect|wrong|no|missing) (api[ _-]?key|token|credentials|password)\b"
        r"|is forbidden: |\binvalid_grant\b|auth\.exceptions\.RefreshError",
        r"^(\w+\.)*\w*(Authentication|Authorization|Unauthorized|Credentials?)(Error|Exception)\b"
        r"|failed to authenticate|could not read (Username|Password) for|Host key verification failed",
        r"api_key not configured|not logged in|must be authenticated|Invalid user token",
        unless=r"Failed to pull|registry|pull access",
    ),
    cause(
        _R.CONFIG_ERROR,
        "settings",
        r"(non-existent|unknown|missing|invalid|unexpected|unsupported) (config\w*|option"
        r"|argument|setting|"
        r"hyper-?param\w*)[- ]?(key|name|value)?s?\b",
        r"Unrecognized configuration|Config(Attribute|Key|Composition)?Error|undefined key"
        r"|is not in struct|\bInvalidInput\b",
        r"CheckpointMismatch|omegaconf\.errors|hydra\.errors|MissingMandatoryValue"
        r"|MissingConfigException",
        r"unrecognized arguments|invalid choice:|arguments? (is|are) required: "
        r"|the following arguments",
        r"error: argument |expected (at least )?(one|\d+) arguments?$|No such option"
        r"|Got unexpected extra arg",
        r"validation errors? for \w|yaml\.(scanner|parser)\.\w+|Could not (find"
        r"|parse) .{0,30}config",
        r"is not divisible by|must be divisible by|not evenly divisible|should be (divisible"
        r"|a multiple)",
        r"(world[_ ]size|batch[_ ]size|num_\w+|train_batch\w*) .{0,80}(is not equal|must (be"
        r"|equal)|"
        r"does not match|not supported)",
        r"invalid device ordinal|No CUDA GPUs are available|Found no NVIDIA driver"
        r"|no CUDA-capable device",
        r"could not select device driver|size mismatch for |Error\(s\) in loading state_dict"
        r"|(Missing|Unexpected) key\(s\) in state_dict",
        r"already in use by (process|pid|another)"
        r"|could not find (the )?(run|project|entity|artifact)\b",
        r"Address already in use|Errno 98\b|EADDRINUSE"
        r"|environment variable \w+ expected, but not set",
        r"trust_remote_code|Duplicate GPU detected|ncclInvalidUsage|no socket interface found",
        r"Invalid (partition|account|qos)|Requested node configuration is not available",
        r"NoSuchBucket|NoSuchKey|RepositoryNotFound|DatasetNotFound|RevisionNotFound"
        r"|EntryNotFound|\b404\b.{0,40}(Client|Not)",
        r"CreateContainerConfigError|(secret|configmap) .{0,80}not found",
        r"executable file not found|OCI runtime (create|exec) failed|failed to create (the )?(shim"
        r"|containerd) task|: command not found\b",
        rf"{RAISES}((missing|unexpected) keys? .{{0,40}}(checkpoint|state[_ ]dict)"
        r"|key \S+ .{0,20}not found in checkpoint)",
        r"inotify .{0,30}limit reached|MDB_MAP_FULL|can't start new thread"
        r"|(fork|pthread_create|clone)\b.{0,40}Resource temporarily unavailable",
        r"NCCL .{0,60}\binvalid usage\b|Cannot assign requested address|Errno 99\b",
        r"^KeyError: '[A-Z][A-Z0-9]*_[A-Z0-9_]+'$",  # of os.environ
        r"^(\w+\.)*(\w+)?(Misc|C)onfiguration(Error|Exception)\b|Unrecognized model in"
        r"|Attempting to deserialize object on (a )?CUDA"
        r"|VISIBLE_DEVICES\b.{0,40}(error|invalid|out of)",
        r"(is )?not a (valid|supported|recognized|local) (model|config|folder|option|value"
        r"|optimizer|device)",
        r"(must|should) be (set|specified|provided|one of|positive|between)|please (set|specify"
        r"|provide)\b",
        r"Too many open files|Errno 24\b|received 0 items of ancdata|Unknown (model"
        r"|optimizer|task|arch)",
        # "Invalid argument" at the end of a line is what a kernel or a driver calls error 22.
        unless=r"Unexpected argument .{0,5}self|No module named|\bEINVAL\b|Errno 22\b"
        r"|\binvalid argument\W*$|CUDA error: invalid (?!device ordinal)"
        r"|invalid configuration argument",
    ),
    cause(
        _R.CONFIG_ERROR,
        "refused_settings",
        rf"{RAISES}(can'?t|cannot|could not|couldn'?t|unable to|failed to) (find|locate) "
        r"(an? |any |the )?([\w-]+ )?(checkpoint|config\w*|model|tokenizer|weights|path|director\w+"
        r"|folder)s?\b",
        rf"{RAISES}can'?t load (the )?(config\w*|tokenizer|model|\w+ processor|feature extractor)\b",
        rf"{RAISES}no file named\b",
        rf"{RAISES}invalid value .{{0,40}}\b(config\w*|option|setting|argument)\b",
        rf"{RAISES}(is|are) (not|in)(correctly)? ?(set|configured|allowed|supported|specified)\b",
        rf"{RAISES}make sure .{{0,80}}(is|are) (set|configured|specified|correct)\w*",
        rf"{RAISES}(mutually exclusive|cannot be used (with|together)|can only be used (on|with)"
        r"|only one of|either .{1,40} or )",
        r"\b(response )?code:? 404\b|No such object: |does not have (one|a padding token)\b",
        tier=Tier.GENERAL,
    ),
    cause(
        _R.CONFIG_ERROR,
        "missing_file",
        r"FileNotFoundError|No such file or directory|Errno 2\b|NotADirectoryError|does not exist",
        r"KeyError: .{0,80}config",
        tier=Tier.GENERAL,
        confidence=LEANING,
        unless=r"/dev/shm|nccl|operator \S+::",
    ),
    cause(
        _R.CODE_ERROR,
        "wrong_code",
        r"\b(Syntax|Indentation|Tab|Name|UnboundLocal|ZeroDivision|NotImplemented"
        r"|Recursion)Error\b",
        r"shapes? .{0,60}cannot be (multiplied|broadcast)|(size|shape) of tensor .{0,30}must match",
        r"Expected all tensors to be on the same device|does not require grad"
        r"|shape '.{0,60}' is invalid",
        r"backward through the graph a second time|modified by an inplace operation",
        r"finished reduction in the prior iteration|ready (only once|twice)|Can'?t pickle"
        r"|cannot pickle",
        r"mismatch between collectives|Cannot re-initialize CUDA in forked"
        r"|name '\w+' is not defined",
        r"Expected (input|object|tensor) .{0,60}(to have|of (scalar|type|device))"
        r"|dimension out of range",
        r"local variable '\w+' referenced before|leaf variable .{0,40}in-place"
        r"|expected scalar type",
        r"triton\.\w+.{0,20}(CompilationError|OutOfResources)|out of resource: shared memory",
        r"bootstrapping phase|if __name__ == '__main__'"
        r"|Default process group has not been initialized",
        tier=Tier.GENERAL,
    ),
    cause(
        _R.CODE_ERROR,
        "wrong_tensors",
        r"\b(sizes?|shapes?|dim(ension)?s?|lengths?|dtypes?)\b.{0,60}\b(must (match|be)|mismatch\w*"
        r"|(do|does) ?n.t match|do(es)? not match|incompatible|not compatible|not aligned|unequal)",
        r"\b(mismatch\w*|incompatible|unequal|inconsistent) .{0,40}\b(sizes?|shapes?|dim(ension)?s?"
        r"|dtypes?)\b",
        r"\bexpect(s|ed)\b.{0,80}\b(tensors?|channels?|dim(ension)?s?|sizes?|shapes?|dtypes?|scalar)\b"
        r".{0,80}\b(but|got|found|to (be|have|match))\b",
        r"not implemented for '\w+'|can'?t be cast to|\btype\b.{0,80}should be the same"
        r"|view size is not compatible|Boolean value of Tensor|do(es)? not broadcast|Given groups=\d"
        r"|but expected (shape|dtype|Float|Double|Half|BFloat16|Long|Int|Bool)\b",
        r"\binvalid (configuration argument|device function|resource handle)\b",
        tier=Tier.GENERAL,
        unless=r"checkpoint|state[_ ]dict|for \w+(\.\w+)+: copying",
    ),
    cause(
        _R.CODE_ERROR,
        "failed_check_on_device",
        r"device-side assert|Assertion [`'\"]?(srcIndex|idx|index|ind\w*)\b.{0,120}failed"
        r"|index out of range in self",
        tier=Tier.SYMPTOM,
    ),
)
