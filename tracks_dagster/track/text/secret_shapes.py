"""Secrets in a text, known by their form or by the name before them.

What is written here is judged by `redact`'s tests: shapes of well-known services, and texts of training
that must stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tracks_dagster.track.text.private_keys import AGE_KEY, PRIVATE_KEY
from tracks_dagster.track.text.secret_names import Names, looks_made_up, what_names

DENSE_LENGTH_MIN = 20  # of a value whose name alone says little, in a text
DENSE_IN_CONFIG_MIN = 12  # and in a config
DENSE_DIGITS_MIN = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """A secret known by its form, or by the name before it.

    words: in lower case, one of them is in every text that has it. pattern: its group "secret" is
    hidden, else all of it. is_secret: asked about what was found. begins: with one of `words`, so that
    only those places are looked at: a pattern of any case is slow to search for (360 ms in 1 MiB).
    """

    words: tuple[str, ...]
    pattern: re.Pattern[str]
    is_secret: Callable[[re.Match[str]], bool] = lambda match: True
    begins: bool = False

    @property
    def group(self) -> str | int:
        """The group of a match that is hidden."""
        return "secret" if "secret" in self.pattern.groupindex else 0

    def secrets_in(self, text: str) -> Iterator[re.Match[str]]:
        """Yield what has the form and is a secret, one after the other."""
        lower = text.lower() if self.begins else ""
        if len(lower) != len(text):  # lower case may be longer, and places differ
            yield from filter(self.is_secret, self.pattern.finditer(text))
            return
        end = 0
        for start in sorted({at for word in self.words for at in _places(word, lower)}):
            match = self.pattern.match(text, start) if start >= end else None
            if match is not None and self.is_secret(match):
                yield match
                end = match.end()


def _places(word: str, text: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)


_PLACEHOLDER = re.compile(
    r"none|null|nil|true|false|undefined|required|missing|empty|redacted|optional|default"
    r"|basic|digest|bearer|[*x.…-]+|[<${*…\[].*|%(?![0-9a-f]{2}).*|\(\?.*",
    re.IGNORECASE | re.DOTALL,
)
_CODE = re.compile(  # os.environ["PGPASSWORD"], getpass(), self.password, str
    r"str|string|bytes|[a-z_][\w.]*[\[(].*|[a-z_]\w*(?:\.[a-z_]\w*)+|lambda"
    r"|(?:[a-z_]\w*[._])*(?:password|passwd|passphrase|pwd|secret|token|key)",
    re.IGNORECASE | re.DOTALL,
)
_DENSE = re.compile(r"[A-Za-z0-9+=_-]+")
_SCREAMING = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")  # how a variable is called


def is_placeholder(value: str) -> bool:
    """Whether a value stands for one that is given elsewhere: none, ***, ${TOKEN}."""
    return not value or _PLACEHOLDER.fullmatch(value) is not None


def is_telling(value: str, length_min: int = DENSE_LENGTH_MIN) -> bool:
    """Whether a value looks like a secret though its name says little: long, letters and digits."""
    has_length = len(value) >= length_min and _DENSE.fullmatch(value) is not None
    return has_length and looks_made_up(value) and sum(map(str.isdigit, value)) >= DENSE_DIGITS_MIN


def _is_made_up(match: re.Match[str]) -> bool:
    return looks_made_up(match["secret"]) and not is_placeholder(match["secret"])


def _is_given(match: re.Match[str]) -> bool:
    """Whether a password is given: any one in quotes or after "=", in a sentence what looks made up."""
    value = match["secret"]
    if is_placeholder(value) or (not match["quote"] and _CODE.fullmatch(value)):
        return False
    mark = match["mark"]
    in_sentence = mark[-1:].isspace() and "=" not in mark and not match["quote"]
    return not (in_sentence or _is_beside(match)) or looks_made_up(value)


def _is_beside(match: re.Match[str]) -> bool:
    """Whether the value is only next to its name: in a table, a tuple, a comparison, after a blank."""
    return match["mark"].strip() in ("", "|", "│", "┃", "->", ",", "==", "!=")


def _is_odbc(match: re.Match[str]) -> bool:
    """Whether "pwd" is a password's name there, and no folder as in PWD and OLDPWD."""
    return match.string[: match.start()][-1:] in {";", "?", "&", "_"} and _is_given(match)


def _is_named(match: re.Match[str]) -> bool:
    """Whether the whole name, of which the match has the end, says that the value is a secret."""
    start, value = match.start(), match["secret"]
    before = _NAME_BEFORE.search(match.string, max(0, start - NAME_LENGTH_MAX), start)
    first = start if before is None else before.start()
    name = match.string[first : match.end("name")]
    says = what_names(name)
    if _is_beside(match) and not _names_beside(name, says, match):
        return False
    if says is Names.PASSWORD:
        return _is_given(match)
    if says is Names.SECRET and name.lower() == "pwd" and value.startswith("/"):
        return False
    if says is Names.NOTHING or value == name or (not match["quote"] and _CODE.fullmatch(value)):
        return False
    is_variable = _SCREAMING.fullmatch(name) is not None and match["mark"] == "="
    if says is Names.SECRET:
        return (is_variable and _is_given(match)) or _is_made_up(match)
    is_in_url = match.string[first - 1 : first] in {"?", "&"}
    if is_variable or is_in_url or name.lower().endswith(("sig", "signature")):
        return _is_made_up(match)
    return is_telling(value) and not is_placeholder(value)


def _names_beside(name: str, says: Names, match: re.Match[str]) -> bool:
    """Whether a name says enough of what is only next to it: "token" is followed by many a word."""
    if says is Names.PASSWORD:
        return len(name) >= len("passwd")
    is_word = match["mark"].isspace() and "_" not in name
    return says is Names.SECRET and not is_word and is_telling(match["secret"])


NAME_LENGTH_MAX = 40  # on either side of the word
_NAME_BEFORE = re.compile(r"[\w-]*\Z")

# After a name: "=", ":" or "=>" and a value, perhaps in quotes; JSON in JSON escapes its quotes. Or the
# next column of a table, the next item of a tuple, the next word.
_VALUE = (
    r"\\{0,3}[\"']?\]?(?P<mark>\s{0,2}(?:=>|[:!=]?={1,2}|:(?!//)|\\u003d|&#(?:61|x3d);)\s{0,4}"
    r"(?:[|>][+-]?\n\s{1,20})?|\s{1,2}(?:is|was)\s{1,2}"
    r"|[ ]{0,40}(?:[│┃|]|->)[ ]{0,40}|,\s{0,4}(?=b?[\"'])|[ \t]{1,40})"
    r"(?:b(?=[\"']))?(?P<quote>\\{0,3}(?:\"{3}|'{3}|[\"']))?"
    r"(?P<secret>(?(quote)(?:(?!(?P=quote))(?:\\.|[^\\\n])){1,400}"
    r"|(?:[^\s\"'<>,;&)\]}\\]|,(?=[^\s\"'])|\\(?![nrt\"'\\])){1,400}))"
)


def _named(*words: str, is_secret: Callable[[re.Match[str]], bool]) -> Shape:
    rest = rf"[\w-]{{0,{NAME_LENGTH_MAX}}}"
    pattern = re.compile(rf"(?P<name>(?:{'|'.join(words)}){rest}){_VALUE}", re.IGNORECASE)
    return Shape(words, pattern, is_secret, begins=True)


_PROSE = frozenset(
    {
        "is",
        "must",
        "was",
        "not",
        "or",
        "and",
        "to",
        "for",
        "in",
        "with",
        "option",
        "argument",
        "flag",
    }
    | {"requires", "required", "from", "as", "instead", "has", "have", "cannot", "can", "should"}
    | {
        "will",
        "when",
        "if",
        "which",
        "a",
        "an",
        "the",
        "are",
        "be",
        "given",
        "were",
        "on",
        "by",
        "of",
    }
)


def _is_argument(match: re.Match[str]) -> bool:
    """Whether the value after an option is a secret, and no word of a sentence or a usage."""
    says, value = what_names(match["name"]), match["secret"]
    if (
        is_placeholder(value)
        or value.lower().rstrip(".,:;") in _PROSE
        or _SCREAMING.fullmatch(value)
    ):
        return False
    if says is Names.SECRET:
        return not re.fullmatch(r"[\d.]+", value)
    return says is Names.PASSWORD or (says is Names.PERHAPS and looks_made_up(value))


def _is_in_element(match: re.Match[str]) -> bool:
    is_password = what_names(match["name"]) is Names.PASSWORD
    return _is_argument(match) and (is_password or looks_made_up(match["secret"]))


def _is_of_a_user(match: re.Match[str]) -> bool:
    """Whether what follows a user's name and a colon is a password, and no group or number."""
    value = match["secret"]
    user = match["user"]  # or of `python -u train.py:main` a file
    return not (value.isdigit() or is_placeholder(value) or value == user or user.endswith(".py"))


def _is_login(match: re.Match[str]) -> bool:
    return not match["secret"].isdigit() and not is_placeholder(match["secret"])  # a port


def _is_authorization(match: re.Match[str]) -> bool:
    value = match["secret"]
    return looks_made_up(value) or (
        match["scheme"] is not None and len(value) > 2 * DENSE_LENGTH_MIN
    )


def _is_in_base64(match: re.Match[str]) -> bool:
    value = match["secret"]
    return looks_made_up(value) or not (value.islower() or value.isupper())


def _token(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})")


URL_PASSWORD = re.compile(
    r"\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s:/@\"'<>]{0,200}:"
    r"(?!\d{1,5}(?:[/?#,\s\"']|$))"  # a port
    r"(?P<secret>[^\s\"'<>]{1,400}|[^\s/@<>,]{1,100})(?=@)"  # with a quote in it up to the first @
)

# Of services: what a token begins with.
_PREFIXES = (
    *("hvs.", "hvb.", "hvr.", "glrt-", "gldt-", "glptt-", "glft-", "glsoat-", "glcbt-", "glimt-"),
    *("glagent-", "glffct-", "gloas-", "dop_v1_", "doo_v1_", "dor_v1_", "r8_", "gsk_", "xai-"),
    *("pplx-", "nvapi-", "tgp_v1_", "lsv2_pt_", "lsv2_sk_", "wandb_v1_", "api_org_", "dckr_pat_"),
    *("dckr_oat_", "tskey-", "sntrys_", "sntryu_", "figd_", "lin_api_", "ntn_", "secret_", "pmak-"),
    *("nrak-", "glsa_", "glc_", "atatt3", "atctt3", "atlasv1.", "akcp", "rubygems_", "pscale_tkn_"),
    *("pscale_pw_", "pscale_oauth_", "sbp_", "sb_secret_", "whsec_", "gocspx-", "shpat_", "shpss_"),
    *(
        "shpca_",
        "shppa_",
        "sq0atp-",
        "sq0csp-",
        "rzp_live_",
        "flwseck",
        "dt0c01.",
        "clojars_",
        "pul-",
    ),
    *(
        "cfut_",
        "cfat_",
        "phx_",
        "rnd_",
        "e2b_",
        "jina_",
        "tvly-",
        "apify_api_",
        "doppler_",
        "dp.pt.",
    ),
    *("dp.st.", "ops_ey", "vcp_", "gaaaaa"),
)
_PREFIXED = re.compile(
    rf"(?<![A-Za-z0-9_-])(?P<secret>(?:{'|'.join(map(re.escape, _PREFIXES))})[\w.=-]{{16,400}})",
    re.IGNORECASE,
)


def _is_random(match: re.Match[str]) -> bool:
    """Whether a token is not a name of many words: it has digits and letters close to each other."""
    runs = re.findall(r"[A-Za-z0-9]+", match["secret"])
    return any(len(run) >= 12 and looks_made_up(run) for run in runs)


SHAPES = (
    Shape(("private key",), PRIVATE_KEY),
    Shape(("age-secret-key-",), AGE_KEY),
    Shape(("://",), URL_PASSWORD),
    Shape(  # a token, or the key of a DSN, in the place of a user
        ("://",), re.compile(r"://(?P<secret>[A-Za-z0-9_-]{16,200})(?=@)"), _is_made_up
    ),
    Shape(
        (
            "hooks.slack.com/",
            "/webhooks/",
            "webhook.office.com/",
            "/webhookb2/",
            "api.telegram.org/",
        ),
        re.compile(
            r"https?://(?:hooks\.slack\.com/[a-z]+/|(?:[a-z]+\.)?discord(?:app)?\.com/api/webhooks/"
            r"|[a-z0-9-]+\.webhook\.office\.com/|outlook\.office(?:365)?\.com/webhookb?2?/"
            r"|api\.telegram\.org/(?:file/)?bot)(?P<secret>[^\s\"'<>\\]+)"
        ),
    ),
    Shape(  # addresses of messengers, as Apprise writes them
        (
            "gram://",
            "slack://",
            "discord://",
            "over://",
            "pbul://",
            "gotify",
            "ifttt://",
            "teams://",
        ),
        re.compile(
            r"\b(?:tgram|telegram|slack|discord|pover|pushover|pbul|gotifys?|ifttt|msteams)://"
            r"(?P<secret>[^\s\"'<>]{8,400})"
        ),
    ),
    Shape((":aa",), _token(r"\d{8,12}:AA[\w-]{30,60}")),  # of a bot of Telegram
    _named("pwd", is_secret=_is_odbc),
    _named(
        *("password", "passwd", "passphrase", "passcode", "pass", "pwd", "pw", "secret", "token"),
        *(
            "signature",
            "sig",
            "cred",
            "key",
            "auth",
            "cookie",
            "jwt",
            "bearer",
            "pat",
            "otp",
            "sas",
        ),
        is_secret=_is_named,
    ),
    Shape(  # in the query of a URL in the query of a URL
        ("%3d", "%3a"),
        re.compile(
            r"(?P<name>(?:[a-z_-]|%5f|%2d){1,40})(?:%22|%27)?%3[ad](?:%22|%27|%20|\+){0,2}"
            r"(?P<secret>[^\s&\"'<>]{1,400}?)(?=%22|%27|%26|%2c|%0a|[\s&\"'<>]|$)",
            re.IGNORECASE,
        ),
        lambda match: _is_argument(match) and match["secret"] != "[hidden]",
    ),
    Shape(  # <password>X</password>
        ("</",),
        re.compile(
            r"<(?P<name>[A-Za-z][\w:.-]{1,40})(?:\s[^<>]{0,200})?>\s{0,40}(?P<secret>[^<>\s]{4,400})"
            r"(?=\s{0,40}</)"
        ),
        _is_in_element,
    ),
    Shape(  # a pod's environment, and settings in XML: name: HF_TOKEN, value: X
        ("value",),
        re.compile(
            r"\b(?:name|key)\\{0,3}[\"']?\s{0,2}[:=]\s{0,2}\\{0,3}[\"']?(?P<name>[A-Za-z][\w.-]{1,60})"
            r"\\{0,3}[\"']?[,\s]{1,40}\\{0,3}[\"']?value\\{0,3}[\"']?\s{0,2}[:=]\s{0,2}\\{0,3}[\"']?"
            r"(?P<secret>[^\s\"',}\\]{4,400})",
            re.IGNORECASE,
        ),
        _is_argument,
    ),
    Shape(  # --token X, and as a list of words: "--token", "X"
        ("-",),
        re.compile(
            r"-(?<![\w-]-)-?(?P<name>[A-Za-z][\w-]{1,40})(?:[\"']\s{0,2},?\s{0,3}[\"']?|\s{1,3}[\"']?)"
            r"(?P<secret>[^\s\"',\]\[-][^\s\"',\]]{0,400})"
        ),
        _is_argument,
    ),
    Shape(  # curl -u ann:X
        ("-u",),
        re.compile(
            r"-(?<![\w-]-)(?:u|-user|-proxy-user|U)(?:[\"']\s?,\s{0,3}|\s{1,3}|=)?[\"']?"
            r"(?P<user>[A-Za-z_][\w.@+-]{0,100}):(?P<secret>[^\s\"',:/][^\s\"',]{2,400})"
        ),
        _is_of_a_user,
    ),
    Shape(  # mysql -pX, redis-cli -a X, docker login -p X
        ("sshpass", "mysql", "mariadb", "redis-cli", " login ", "ldap", "smbclient"),
        re.compile(
            r"\b(?:sshpass|mysql\w{0,10}|mariadb[\w-]{0,10}|redis-cli|ldap\w{1,10}|smbclient"
            r"|(?:docker|podman|oc|az|cf|registry|skopeo|buildah) login)\b[^\n]{0,200}?"
            r"\s-(?:p|a|w)(?:[\"'],)?\s?[\"']?(?P<secret>[^\s\"'-][^\s\"']{3,200})"
        ),
        _is_login,
    ),
    Shape(("login ",), re.compile(r"\blogin\s+\S{1,100}\s+password\s+(?P<secret>\S{1,200})")),
    Shape(  # Authorization: token X
        ("authorization",),
        re.compile(
            r"authorization\\{0,3}[\"']?\s{0,2}[:=]\s{0,2}\\{0,3}[\"']?(?:(?P<scheme>[A-Za-z][\w-]{1,20})"
            r"\s{1,2})?(?P<secret>[^\s\"'\\,;]{6,2000})",
            re.IGNORECASE,
        ),
        _is_authorization,
    ),
    Shape(  # the whole line of a header
        ("cookie:", 'cookie"', "cookie'"),
        re.compile(
            r"\bcookie[\"']?:\s{0,2}[\"']?(?P<secret>[\w.-]{1,60}=[^\r\n\"']{6,2000})",
            re.IGNORECASE,
        ),
    ),
    Shape(
        ("bearer ", "basic "),
        re.compile(
            r"\b(?:bearer|basic)\s{1,2}(?P<secret>[A-Za-z0-9._~+/=-]{16,400})", re.IGNORECASE
        ),
        _is_made_up,
    ),
    Shape(  # a JSON Web Key: what it has of a private or shared one
        ("kty",),
        re.compile(
            r"[\"'](?:d|p|q|dp|dq|qi|k)\\{0,3}[\"']\s{0,2}:\s{0,2}\\{0,3}[\"']"
            r"(?P<secret>[A-Za-z0-9_-]{16,2000})"
        ),
    ),
    Shape(  # of Docker's configuration
        ("auth",),
        re.compile(
            r"[\"'](?:auth|identitytoken)\\{0,3}[\"']\s{0,2}:\s{0,2}\\{0,3}[\"']"
            r"(?P<secret>[A-Za-z0-9+/=]{12,2000})"
        ),
        _is_in_base64,
    ),
    Shape(_PREFIXES, _PREFIXED, _is_random, begins=True),
    Shape(
        ("akia", "asia", "abia", "acca"),
        _token(r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ),
    Shape(
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        _token(r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}"),
    ),
    Shape(("hf_",), _token(r"hf_(?=[a-z]{0,60}[A-Z0-9])[A-Za-z0-9]{16,400}")),
    # The id of a run has no capitals, so that none is taken for one of these.
    Shape(("sk-",), _token(r"sk-(?=[\w-]{0,60}[A-Z])(?=[\w-]{0,60}\d)[\w-]{16,400}")),
    Shape(("glpat-",), _token(r"glpat-[\w-]{16,}")),
    Shape(("sk_", "rk_"), _token(r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}")),
    Shape(("npm_",), _token(r"npm_[A-Za-z0-9]{30,}")),
    Shape(("xox", "xapp-"), _token(r"(?:xox[abeoprs](?:\.xox[bp])?|xapp)-\d[A-Za-z0-9-]{9,}")),
    Shape(("aiza",), _token(r"AIza[\w-]{30,}")),
    Shape(("ya29.", "1//0"), _token(r"ya29\.[\w-]{20,}|1//0[\w-]{30,}")),
    Shape(("pypi-",), _token(r"pypi-(?=[\w-]{0,60}[A-Z])[\w-]{40,400}")),
    Shape(("sg.",), _token(r"SG\.[\w-]{16,}\.[\w-]{16,}")),
    Shape(("dapi",), _token(r"dapi[0-9a-f]{32}")),
    Shape(("-us",), _token(r"[0-9a-f]{32}-us\d{1,2}(?!\d)")),
    Shape(("sk",), _token(r"SK[0-9a-f]{32}(?![0-9a-f])")),
    Shape(("eyj",), _token(r"(?:[ps]k\.)?eyJ[\w-]{8,}\.(?:eyJ)?[\w-]{8,}(?:\.[\w-]*){0,3}")),
)
