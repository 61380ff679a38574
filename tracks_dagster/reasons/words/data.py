"""What software says when checkpoints, samples or numbers are wrong: rows of the table of causes."""

from __future__ import annotations

from tracks_dagster.reasons.finding import LEANING
from tracks_dagster.reasons.words.cause import Cause, Tier, cause
from tracks_dagster.track.reasons import TerminationReason

_R = TerminationReason

# The line of an exception: words that a log is full of tell a cause only where code gave up on them.
RAISES = r"^(?:\w+\.)*\w*(?:Error|Exception|Exit): .{0,160}?\b"

DATA: tuple[Cause, ...] = (
    cause(
        _R.CHECKPOINT_CORRUPT,
        "unreadable_checkpoint",
        r"CheckpointCorrupt|PytorchStreamReader failed|failed finding central directory",
        r"SafetensorError|deserializing header|InvalidHeader|HeaderTooLarge"
        r"|MetadataIncompleteBuffer",
        r"invalid header or archive is corrupted|unexpected EOF, expected \d+ more bytes",
        r"Invalid magic number; corrupt|(checkpoint|shard|weights?) .{0,60}\b(is|was) incomplete\b",
        r"storage has wrong (byte )?size|not an sstable|Unable to open table file",
        r"(checkpoint|state[_ ]dict|weights?|model file|\.(ckpt|pt|pth|bin|safetensors)\b).{0,120}"
        r"(corrupt|truncated|incomplete|damaged|unreadable|bad magic|checksum|missing shard)",
        r"(corrupt\w*|truncated|incomplete) .{0,60}(checkpoint|state[_ ]dict|model weights)",
        rf"{RAISES}shard\b.{{0,120}}\b(not found|is missing)\b|Invalid checkpoint file",
        r"Checkpoint(ing)?Exception|Unable to load (weights|checkpoint)|couldn'?t (load"
        r"|read) .{0,30}checkpoint",
    ),
    cause(
        _R.CHECKPOINT_CORRUPT,
        "unreadable_pickle_of_weights",
        r"UnpicklingError|invalid load key|pickle data was truncated|EOFError|BadZipFile"
        r"|zlib\.error"
        r"|Checksum does not match|data ?loss",
        beside=r"torch[./]load|load_(state|checkpoint|model|weights)|serialization\.py|\.(pth?|ckpt)\b"
        r"|from_pretrained|resum\w+ from|restor\w+",
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
        r"\bNonFinite\b|NanLossDuringTraining|\b(contain|found|encounter|detect|got|was|were)\w*"
        r" .{0,20}\b(nan|inf)\b.{0,60}\b(stop|abort|terminat|halt)\w*",
        r"(loss|grad\w*|logits|outputs?|norm|weights?|param\w*|activations?)\b.{0,40}"
        r"\b(is|are|was|became|turned|contains?|has|got) ?(a )?(nan|inf|infinite"
        r"|non-?finite)\b",
        r"(nan|inf|non-?finite|infinite)\b(( or | and |/)(nan|inf)\w*)?( values?)?.{0,12} (in|for"
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
