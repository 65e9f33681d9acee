"""Redaction of requests as they are read, before anything of them is compared, sampled or written.

`<EMAIL_1>` replaces the first address in a request wherever it occurs there, so references within the request stay
true. The values are forgotten with the request.

A rule is a function from a text to the spans to replace. Rules err on the side of replacing. Each takes linear time:
a pattern starts only where the previous character cannot belong to it, and no part of it can match in two ways.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType

from benchgate.errors import UsageError
from benchgate.shadow.request_log import LoggedRequest
from benchgate.suite.formats import holds_half_a_pair

# Finds the spans of a text to replace: start and end, ascending, without overlaps.
Spans = Callable[[str], Iterator[tuple[int, int]]]


def pattern_spans(pattern: re.Pattern[str]) -> Spans:
    """Return a rule that replaces every match of a pattern, or only its group `secret` if it has one."""
    group: int | str = "secret" if "secret" in pattern.groupindex else 0

    def spans(text: str) -> Iterator[tuple[int, int]]:
        return (found.span(group) for found in pattern.finditer(text) if found.end(group) > found.start(group))

    return spans


_AT, _DOT = "@\N{FULLWIDTH COMMERCIAL AT}\N{SMALL COMMERCIAL AT}", ".\N{FULLWIDTH FULL STOP}"
_EMAIL = re.compile(rf"(?<![\w.%+-])[\w.%+-]+[{_AT}][\w-]+(?:[{_DOT}][\w-]+)+")


def emails(text: str) -> Iterator[tuple[int, int]]:
    """Find e-mail addresses with a dot in the host name."""
    return pattern_spans(_EMAIL)(text) if any(at in text for at in _AT) else iter(())


_SPACE = " \u00a0\u00ad\u2009\u200b-\u200d\u202f\u2060\ufeff"  # also invisible ones
_HYPHEN = r"\u2010-\u2013-"
_SHORT_HYPHEN = r"\u2010-\u2012-"  # the en dash stands between the ends of a range
_GAP = f"[{_SPACE}.()/{_SHORT_HYPHEN}]{{0,2}}"  # between two digits of a phone number
_STEP = f"[{_SPACE}.{_SHORT_HYPHEN}]"  # between two groups of digits in North America
_DATE = f"[0-9]{{2}}[{_SPACE}]?[/.{_HYPHEN}][{_SPACE}]?[0-9]{{2}}[{_SPACE}]?[/.{_HYPHEN}][{_SPACE}]?[0-9]{{4}}"
_PHONE = re.compile(
    rf"""(?<![\w.+-])(?<![0-9][{_HYPHEN}])(?:
      (?:\+|00)[1-9](?:{_GAP}[0-9]){{6,14}}                               # international
    | (?:1{_STEP})?(?:\([2-9][0-9]{{2}}\)[{_SPACE}]?|[2-9][0-9]{{2}}{_STEP})[2-9][0-9]{{2}}{_STEP}[0-9]{{4}}
    | [2-9][0-9]{{2}}\u2013[2-9][0-9]{{2}}\u2013[0-9]{{4}}
    | (?!{_DATE})\(?0[1-9](?:{_GAP}[0-9]){{7,10}}                         # a leading 0, and no date
    | \(?0[1-9][0-9]{{0,4}}\)?[{_SPACE}]/[{_SPACE}][0-9]{{5,9}}                   # 030 / 12345678
    )(?![0-9])""",
    re.VERBOSE,
)
phones = pattern_spans(_PHONE)

_CARD = re.compile(rf"(?<![0-9])(?=([2-6](?:[{_SPACE}{_HYPHEN}]?[0-9]){{12,18}}))")
_IBAN = re.compile(
    r"(?<![A-Za-z0-9])(?=([A-Za-z]{2}[0-9]{2}(?:"
    rf"(?:[{_HYPHEN}][A-Za-z0-9]{{4}}){{2,7}}(?:[{_HYPHEN}][A-Za-z0-9]{{1,3}})?(?![A-Za-z0-9])"  # unlike in a UUID
    rf"|(?:[{_SPACE}]?[A-Za-z0-9]){{11,30}})))"
)
_BETWEEN = re.compile(rf"[{_SPACE}{_HYPHEN}]")


def cards(text: str) -> Iterator[tuple[int, int]]:
    """Find payment card numbers: 13 to 19 digits with a valid check digit (Luhn; ISO/IEC 7812-1)."""
    return _checked(_CARD, 13, luhn, str.isdigit, text)


def ibans(text: str) -> Iterator[tuple[int, int]]:
    """Find international bank account numbers with valid check digits (ISO 13616)."""
    return _checked(_IBAN, 15, _is_account, str.isalnum, text)


def _is_account(account: str) -> bool:
    # In small letters, words of a sentence look like one.
    return (account.isupper() or sum(map(str.isdigit, account)) * 2 >= len(account)) and mod97(account)


def _checked(
    pattern: re.Pattern[str],
    shortest: int,
    is_valid: Callable[[str], bool],
    continues: Callable[[str], bool],
    text: str,
) -> Iterator[tuple[int, int]]:
    """Yield from each start the longest valid part that the next character does not continue."""
    done = 0
    for found in pattern.finditer(text):
        begin, end = found.span(1)
        while begin >= done and end - begin >= shortest:
            digits = _BETWEEN.sub("", text[begin:end])
            is_whole = end == len(text) or not continues(text[end])
            if is_whole and len(digits) >= shortest and is_valid(digits):
                yield begin, end
                done = end
            end -= 1


def luhn(digits: str) -> bool:
    """Return True if the last digit is the check digit of the others."""
    doubled = [int(digit) * 2 for digit in digits[-2::-2]]
    total = sum(int(digit) for digit in digits[-1::-2]) + sum(double // 10 + double % 10 for double in doubled)
    return total % 10 == 0


def mod97(account: str) -> bool:
    """Return True if the two digits after the country code are the check digits of the rest."""
    return int("".join(str(int(character, 36)) for character in account[4:] + account[:4])) % 97 == 1


_TOKEN_PREFIXES = (
    "sk-", "sk_", "rk_", "pk-", "pk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "AKIA", "ASIA",
    "AROA", "AIDA", "AGPA", "ANPA", "AIza", "ya29.", "xox", "hf_", "npm_", "pypi-", "SG.", "gsk_", "r8_", "xai-",
    "nvapi-", "whsec_", "dop_v1_", "doo_v1_", "dor_v1_",
)  # fmt: skip
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:[sp]k-|[srp]k_|gh[pousr]_|github_pat_|glpat-|AIza|ya29\.|hf_|npm_|pypi-|SG\.|gsk_|r8_|xai-|nvapi-|do[por]_v1_)"
    r"[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]+)*"
    r"|(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA)[A-Z0-9]{12,}"
    r"|whsec_[A-Za-z0-9+/=]{16,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,})"
)
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----"
    r".*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----|\Z)",
    re.DOTALL,
)
_BEARER = re.compile(
    r"(?i)(?:(?<![a-z])bearer(?:\s|%20){1,8}|\bauthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:\w{1,20}\s{1,4})?)"
    r"(?P<secret>[\w.~+/=-]{8,})"
)
_AUTHORIZATION = re.compile(
    r"(?i)\bauthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:basic|bearer|token|negotiate|api-?key)(?:\s|%20){1,8}"
    r"(?P<secret>[\w.~+/=-]{8,})"
)
_URL_LOGIN = re.compile(r"://[^\s/@:]{0,100}:(?P<secret>[^\s/,;\"'<>]{1,200})(?=@)")
_URL_HOOK = re.compile(r"://hooks\.slack\.com/[a-z]{1,20}/(?P<secret>[\w/-]+)")
_URL_QUERY = re.compile(r"(?i)[?&][\w-]{0,20}(?:token|key|secret|sig|signature|password)=(?P<secret>[^\s&#\"'<>]{6,})")
_TOKEN_GIVEN = re.compile(r"(?i)(?<![\w.-])(?:token|api[_-]?key)=[\"']?(?P<secret>[\w.~+/-]{12,})")
_COOKIE_PAIR = r"[\w.!#$%&*+^`|~-]{1,100}=[^\s;,\"'\\]{1,4000}"
_COOKIE = re.compile(
    r"(?i)(?<![\w-])(?:set-)?cookie(?:\\{0,7}[\"'])?\s{0,4}[:=]\s{0,4}(?:\\{0,7}[\"'])?"
    rf"(?P<secret>{_COOKIE_PAIR}(?:;\s{{0,4}}{_COOKIE_PAIR}){{0,50}})"
)
# To the end of its line, unless that is escaped or in quotes.
_CURL = re.compile(
    r"(?is)curl(?:[^\n'\"\\^`]++|\\(?:[ \t]*\r?\n|.)?+|[\^`](?:[ \t]*\r?\n)?+|'[^']*+'|\"(?:[^\"\\]++|\\.)*+\"|['\"])*+"
)
_CURL_LOGIN = re.compile(
    r"(?<![\w-])(?:-[uU]\s{0,4}|--(?:proxy-)?user[\s=]{1,4})[\"']?"
    r"[^\s:\"']{1,100}:(?!//)(?P<secret>[^\s\"']{3,200})"
)
_CURL_COOKIE = re.compile(
    r"(?<![\w-])(?:-b\s{0,4}|--cookie[\s=]{1,4})(?:\\{0,7}[\"'])?"
    rf"(?P<secret>{_COOKIE_PAIR}(?:;\s{{0,4}}{_COOKIE_PAIR}){{0,50}})"
)
_API_KEY_HEADER = re.compile(r"(?i)(?<![\w-])(?:x-)?api-key[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?P<secret>[\w.~+/=-]{8,})")
_ASSIGNED = re.compile(
    r"(?i)(?:passwor[dt]|passwd|pwd|passphrase|secret|(?:api|access|secret|account)[_-]?key|"
    r"(?:auth|access|session|refresh|bot)[_-]?token)"
    r"(?:\\{0,7}[\"'])?\s{0,4}(?:[:=]|\bis\b[:=]?)\s{0,4}"
    # In JSON within JSON quotes are escaped. One with more backslashes than the opening quote belongs to the value.
    r"(?:(?P<escapes>\\{0,7})(?:\"(?P<double>(?:(?!(?<!\\)(?P=escapes)\")[^\n]){4,4000})(?P=escapes)\""
    r"|'(?P<single>(?:(?!(?<!\\)(?P=escapes)')[^\n]){4,4000})(?P=escapes)')"
    r"|(?P<bare>[^\s\"',;&)]{6,}))"
)

_ASSIGNED_NAMES = ("passw", "passp", "pwd", "secret", "api", "auth", "acc", "session", "refresh", "bot")


def keys(text: str) -> Iterator[tuple[int, int]]:
    """Find API keys by their prefixes, JSON web tokens, private key blocks, credentials in headers, URLs and code."""
    spans: list[tuple[int, int]] = []
    if any(prefix in text for prefix in _TOKEN_PREFIXES):
        spans += pattern_spans(_TOKEN)(text)
    if "eyJ" in text:
        spans += pattern_spans(_JWT)(text)
    if "PRIVATE KEY" in text:
        spans += pattern_spans(_PRIVATE_KEY)(text)
    if "://" in text:
        spans += [*pattern_spans(_URL_LOGIN)(text), *pattern_spans(_URL_HOOK)(text)]
    small = text.lower()
    if "=" in text:
        spans += [*pattern_spans(_URL_QUERY)(text), *pattern_spans(_TOKEN_GIVEN)(text)]
    if "cookie" in small:
        spans += pattern_spans(_COOKIE)(text)
    if "curl" in small:
        for command in _CURL.finditer(text):
            for pattern in (_CURL_LOGIN, _CURL_COOKIE):
                spans += (found.span("secret") for found in pattern.finditer(text, *command.span()))
    if "api-key" in small:
        spans += pattern_spans(_API_KEY_HEADER)(text)
    if "bearer" in small or "authorization" in small:
        spans += pattern_spans(_AUTHORIZATION)(text)
        for found in _BEARER.finditer(text):
            # A digit, or a capital within a word: no word of a sentence has one.
            if any(map(str.isdigit, found["secret"])) or re.search("[a-z][A-Z]", found["secret"]):
                spans.append(found.span("secret"))
    if any(word in small for word in _ASSIGNED_NAMES):
        for found in _ASSIGNED.finditer(text):
            # Given to a name like `password`: in quotes, or with a digit. `password = read()` hides nothing.
            name = next(name for name in ("double", "single", "bare") if found[name] is not None)
            if name != "bare" or any(character.isdigit() for character in found[name]):
                spans.append(found.span(name))
    return _merged(spans)


def _merged(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    begin = end = -1
    for left, right in sorted(spans):
        if left > end or end < 0:
            if end >= 0:
                yield begin, end
            begin, end = left, right
        else:
            end = max(end, right)
    if end >= 0:
        yield begin, end


_IPV4 = re.compile(r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?!\.?[0-9])(?!\w)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]{2,39}(?![\w:])")


def addresses(text: str) -> Iterator[tuple[int, int]]:
    """Find IP addresses of versions 4 and 6."""
    found = [match.span() for match in _IPV4.finditer(text)]
    found += [match.span() for match in _IPV6.finditer(text) if match[0].count(":") >= 2]
    for begin, end in sorted(found):
        with suppress(ValueError):
            ipaddress.ip_address(text[begin:end])
            yield begin, end


# The built-in rules in the order in which they are applied. A later rule does not see what an earlier one replaced.
RULES: dict[str, Spans] = {
    "key": keys,
    "email": emails,
    "iban": ibans,
    "card": cards,
    "phone": phones,
    "ip": addresses,
}

# The rules applied unless others are named. IP addresses are often the subject of a prompt.
DEFAULT_RULES = ("key", "email", "iban", "card", "phone")
_MAX_CPU_S = 2.0
"""Processor time to redact one request of 100,000 characters, in proportion for longer ones. The built-in rules need
less than a tenth of it, and half of it for JSON that is all one-digit numbers."""

_LONG = 100_000  # characters

_RULE_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
# A part of a path like `chat` or `customer-support`. Keys are longer, or mix upper and lower case.
_PLAIN_WORDS = re.compile(r"(?:[a-z]{1,16}|[A-Z][a-z]{1,15})(?:[_-][a-z]{1,16}){0,3}")


_PLACEHOLDER = re.compile(r"<[A-Z][A-Z0-9_]{0,40}>")
_ENDS_QUOTED = re.compile(r"[\"\\\n]")
_INDENT = re.compile(r"\s*[{\[]\r?\n([ \t]+)")
_MAX_NAMED = 200  # characters of a value, and of its name, in which a rule looks for both


class TooSlowError(Exception):
    """A rule that exceeded its time; the message is its name."""


class Redactor:
    """Replaces the spans that its rules find. Rules are applied in order."""

    def __init__(self, rules: Mapping[str, Spans]) -> None:
        self.rules = rules
        self._current_rule = ""

    def redact(self, request: LoggedRequest) -> tuple[LoggedRequest, Counter[str]]:
        """Return the redacted request, and the number of replacements by rule.

        Raises TooSlowError after two seconds of processor time, in proportion longer for requests of more than 100,000
        characters. Only the main thread can be stopped.
        """
        placeholders = _Placeholders()
        with _time_limit(self, _MAX_CPU_S * max(1.0, len(request.text) / _LONG)):
            parts = [
                part if _PLAIN_WORDS.fullmatch(part) and self._is_clean(part) else "*"
                for part in request.label.split("/")
            ]
            kept = "/".join(parts)
            redacted = replace(
                request,
                messages=tuple(self._mapping(message, placeholders) for message in request.messages),
                prompt=None if request.prompt is None else self._string(request.prompt, placeholders),
                fields=self._mapping(request.fields, placeholders),
                label=kept if self._is_clean(kept) else "*",
            )
        return redacted, placeholders.replaced

    def _is_clean(self, text: str) -> bool:
        return self._text(text, _Placeholders()) == text

    def _mapping(self, values: Mapping[str, object], placeholders: _Placeholders) -> dict[str, object]:
        return {self._text(key, placeholders): self._value(value, placeholders, key) for key, value in values.items()}

    def _value(self, value: object, placeholders: _Placeholders, name: str = "") -> object:
        if isinstance(value, str):
            return self._named(name, self._string(value, placeholders), placeholders)
        if isinstance(value, list):
            return [self._value(element, placeholders, name) for element in value]
        if isinstance(value, dict):
            return self._mapping(value, placeholders)
        if isinstance(value, int | float) and not isinstance(value, bool):
            shown = json.dumps(value)
            redacted = self._named(name, self._text(shown, placeholders), placeholders)
            return value if redacted == shown else redacted
        return value

    def _string(self, text: str, placeholders: _Placeholders) -> str:
        """Redact a text. JSON, like the arguments of a call, is redacted value by value before, and stays JSON."""
        values = _json_values(text)
        if values is None:
            return self._text(text, placeholders)
        try:
            redacted = self._value(values, placeholders)
        except RecursionError:
            return self._text(text, placeholders)
        if redacted != values:
            indent = _INDENT.match(text)
            shown = json.dumps(redacted, ensure_ascii=False, indent=indent and indent[1])
            text = json.dumps(redacted) if holds_half_a_pair(shown) else shown
        # Finds that span several values. If replacing them would break the JSON, the text stays.
        return text if _json_values(self._text(text, _Placeholders())) is None else self._text(text, placeholders)

    def _text(self, text: str, placeholders: _Placeholders) -> str:
        for rule, spans in self.rules.items():
            self._current_rule = rule
            text = placeholders.replace(rule, text, _spans_in(text, spans))
        return text

    def _named(self, name: str, value: str, placeholders: _Placeholders) -> str:
        """Redact a value for what its name says, like `password`, as if both stood in a text."""
        if not name:
            return value
        before = f'"{_ENDS_QUOTED.sub("_", name[-_MAX_NAMED:])}": "'
        for rule, spans in self.rules.items():
            self._current_rule = rule
            beginning = _ENDS_QUOTED.sub("_", value[:_MAX_NAMED])
            found = []
            for start, end in spans(f'{before}{beginning}"'):
                # A find further inside is none of the name, and may be made by what is cut and replaced here.
                if start <= len(before) < end:
                    end -= len(before)
                    found.append((0, len(value) if end >= len(beginning) else end))
            value = placeholders.replace(rule, value, found)
        return value

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Raise TooSlowError as a signal handler, only in a rule's code: in the garbage collector it would be lost."""
        if frame is not None and frame.f_globals.get("__package__") == __package__:
            raise TooSlowError(self._current_rule)


_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\[nrtbf]")


def _spans_in(text: str, spans: Spans) -> list[tuple[int, int]]:
    """Find what a rule replaces, also behind an escaped white space of JSON that stands within the text.

    There the letter of the escape would be taken for a part of what follows it.
    """
    letters = {match.end() - 1 for match in _ESCAPED.finditer(text)} if '"' in text else set()
    if not letters:
        return list(spans(text))
    own = ((start + (start in letters), end) for start, end in spans(text))
    joined: list[tuple[int, int]] = []
    for start, end in sorted([*own, *spans(_ESCAPED.sub(r"\1  ", text))]):
        if start >= end:
            continue
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


class _Placeholders:
    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._made: set[str] = set()
        self._values: Counter[str] = Counter()
        self.replaced: Counter[str] = Counter()

    def replace(self, rule: str, text: str, spans: Iterable[tuple[int, int]]) -> str:
        """Replace the spans of a text, except those within a placeholder."""
        found = list(spans)
        if not found:
            return text
        made = [match.span() for match in _PLACEHOLDER.finditer(text) if match[0] in self._made]
        pieces, done = list[str](), 0
        for start, end in found:
            while made and made[0][1] < end:
                del made[0]
            if made and made[0][0] <= start:
                continue
            pieces += [text[done:start], self._replacement(rule, text[start:end])]
            done = end
        return "".join([*pieces, text[done:]])

    def _replacement(self, rule: str, value: str) -> str:
        self.replaced[rule] += 1
        if (rule, value) not in self._names:
            self._values[rule] += 1
            self._names[rule, value] = f"<{rule.upper()}_{self._values[rule]}>"
            self._made.add(self._names[rule, value])
        return self._names[rule, value]


def _json_values(text: str) -> dict[str, object] | list[object] | None:
    """Return the object or list that a text is in JSON. None for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        values: dict[str, object] | list[object] = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values


@contextmanager
def _time_limit(redactor: Redactor, limit_s: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, redactor.stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s, limit_s / 10)  # repeated until it interrupts a rule
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def redactor_of(rules: str | None, custom: Sequence[str]) -> Redactor:
    """Build a redactor from the options `--rules` and `--redact`. Raises UsageError.

    `rules` are names like `email,phone`; None stands for the default ones, `none` for no built-in ones. `custom` holds
    `NAME=REGEX`, applied first.
    """
    chosen: dict[str, Spans] = {}
    for option in custom:
        name, pattern = _custom_rule(option)
        if name in chosen:
            raise UsageError(f"--redact: {name} is given twice; give each rule a name of its own")
        chosen[name] = pattern_spans(pattern)
    names = DEFAULT_RULES if rules is None else () if rules.strip() == "none" else tuple(_built_in_names(rules))
    return Redactor(chosen | {name: spans for name, spans in RULES.items() if name in names})


def _built_in_names(rules: str) -> Iterator[str]:
    names = [part.strip() for part in rules.split(",")]
    if "none" in names:
        raise UsageError(
            f"--rules: `none` stands alone, and {rules!r} names rules beside it; leave out one or the other"
        )
    for name in names:
        if name not in RULES:
            near = difflib.get_close_matches(name, RULES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(RULES)}, and none"
            raise UsageError(f"--rules: there is no rule {name!r}; {hint}")
        yield name


def _custom_rule(option: str) -> tuple[str, re.Pattern[str]]:
    name, equals, expression = option.partition("=")
    if not equals or not _RULE_NAME.fullmatch(name):
        example = "write NAME=REGEX, like CUSTOMER=C-[0-9]{8}, the name in capitals"
        raise UsageError(f"--redact: found {option[:40]!r}; {example}")
    if name.lower() in RULES:
        raise UsageError(f"--redact: {name} is the placeholder of a built-in rule; choose another name")
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise UsageError(f"--redact {name}: not a regular expression: {error}") from error
    if pattern.search("") is not None:
        raise UsageError(f"--redact {name}: it matches the empty text; every match must have a character")
    return name, pattern
