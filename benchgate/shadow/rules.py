"""What a redaction rule looks for: e-mail addresses, phone numbers, cards, keys, bank accounts and IP addresses.

Each rule is a function from a text to the spans that it wants replaced. They err on the side of replacing. Every
pattern takes time in proportion to its text: runs begin only where the character before is not one of theirs, and no
part of a pattern can be read in two ways.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator

Spans = Callable[[str], Iterator[tuple[int, int]]]
"""Where something to be replaced stands in a text: begin and end, ascending, none over another."""


def pattern_spans(pattern: re.Pattern[str]) -> Spans:
    """Every match of a pattern; only its group `secret`, where it has one."""
    group: int | str = "secret" if "secret" in pattern.groupindex else 0

    def spans(text: str) -> Iterator[tuple[int, int]]:
        return (found.span(group) for found in pattern.finditer(text) if found.end(group) > found.start(group))

    return spans


_AT, _DOT = "@\N{FULLWIDTH COMMERCIAL AT}\N{SMALL COMMERCIAL AT}", ".\N{FULLWIDTH FULL STOP}"
_EMAIL = re.compile(rf"(?<![\w.%+-])[\w.%+-]+[{_AT}][\w-]+(?:[{_DOT}][\w-]+)+")


def emails(text: str) -> Iterator[tuple[int, int]]:
    """Addresses with a dot in the name of their host."""
    return pattern_spans(_EMAIL)(text) if any(at in text for at in _AT) else iter(())


_PHONE = re.compile(
    r"""(?<![\w.+-])(?:
      (?:\+|00)[1-9](?:[ .()/-]{0,2}[0-9]){6,14}                               # international
    | (?:1[-. ])?(?:\([2-9][0-9]{2}\)[ ]?|[2-9][0-9]{2}[-. ])[2-9][0-9]{2}[-. ][0-9]{4}    # North America
    | (?![0-9]{2}[/.-][0-9]{2}[/.-][0-9]{4})\(?0[1-9](?:[ ()/.-]{0,2}[0-9]){7,10}   # a leading 0, and no date
    )(?![0-9])""",
    re.VERBOSE,
)
phones = pattern_spans(_PHONE)

_SPACE = " \u00a0\u00ad\u2009\u200b-\u200d\u202f\u2060\ufeff"  # also those that nobody sees
_CARD = re.compile(rf"(?<![0-9])(?=([2-6](?:[{_SPACE}\u2010-\u2013-]?[0-9]){{12,18}}))")
_IBAN = re.compile(rf"(?<![A-Za-z0-9])(?=([A-Z]{{2}}[0-9]{{2}}(?:[{_SPACE}]?[A-Z0-9]){{11,30}}))")
_BETWEEN = re.compile(rf"[{_SPACE}\u2010-\u2013-]")


def cards(text: str) -> Iterator[tuple[int, int]]:
    """Numbers of 13 to 19 digits that end in the check digit of payment cards (Luhn; ISO/IEC 7812-1)."""
    return _checked(_CARD, 13, luhn, str.isdigit, text)


def ibans(text: str) -> Iterator[tuple[int, int]]:
    """International bank account numbers with the right check digits (ISO 13616)."""
    return _checked(_IBAN, 15, mod97, str.isalnum, text)


def _checked(
    pattern: re.Pattern[str],
    shortest: int,
    genuine: Callable[[str], bool],
    goes_on: Callable[[str], bool],
    text: str,
) -> Iterator[tuple[int, int]]:
    """The longest part from each beginning that passes the check, and after which no character goes on with it."""
    done = 0
    for found in pattern.finditer(text):
        begin, end = found.span(1)
        while begin >= done and end - begin >= shortest:
            digits = _BETWEEN.sub("", text[begin:end])
            whole = end == len(text) or not goes_on(text[end])
            if whole and len(digits) >= shortest and genuine(digits):
                yield begin, end
                done = end
            end -= 1


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others."""
    doubled = [int(digit) * 2 for digit in digits[-2::-2]]
    total = sum(int(digit) for digit in digits[-1::-2]) + sum(double // 10 + double % 10 for double in doubled)
    return total % 10 == 0


def mod97(account: str) -> bool:
    """Whether the two digits after the country are the check digits of the rest."""
    return int("".join(str(int(character, 36)) for character in account[4:] + account[:4])) % 97 == 1


_TOKEN_BEGINNINGS = (
    "sk-", "sk_", "rk_", "pk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "AKIA", "ASIA", "AROA",
    "AIDA", "AGPA", "ANPA", "AIza", "ya29.", "xox", "hf_", "npm_", "pypi-", "SG.", "gsk_", "r8_", "xai-", "nvapi-",
)  # fmt: skip
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:sk-|sk_|rk_|pk_|gh[pousr]_|github_pat_|glpat-|AIza|ya29\.|hf_|npm_|pypi-|SG\.|gsk_|r8_|xai-|nvapi-)"
    r"[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]+)*"
    r"|(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA)[A-Z0-9]{12,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,})"
)
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----"
    r".*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----|\Z)",
    re.DOTALL,
)
_BEARER = re.compile(
    r"(?i)(?:\bbearer\s{1,4}|\bauthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:\w{1,20}\s{1,4})?)"
    r"(?P<secret>[\w.~+/=-]{12,})"
)
_AUTHORIZATION = re.compile(
    r"(?i)\bauthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:basic|bearer|token|negotiate|api-?key)\s{1,4}"
    r"(?P<secret>[\w.~+/=-]{8,})"
)
_URL_LOGIN = re.compile(r"://[^\s/@:]{0,100}:(?P<secret>[^\s/@]{1,200})(?=@)")
_URL_HOOK = re.compile(r"://hooks\.slack\.com/[a-z]{1,20}/(?P<secret>[\w/-]+)")
_URL_QUERY = re.compile(r"(?i)[?&][\w-]{0,20}(?:token|key|secret|sig|signature|password)=(?P<secret>[^\s&#\"'<>]{6,})")
_TOKEN_GIVEN = re.compile(r"(?i)(?<![\w.-])token=[\"']?(?P<secret>[\w.~+/-]{12,})")
_API_KEY_HEADER = re.compile(r"(?i)(?<![\w-])(?:x-)?api-key[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?P<secret>[\w.~+/=-]{8,})")
_ASSIGNED = re.compile(
    r"(?i)(?:passwor[dt]|passwd|pwd|passphrase|secret|(?:api|access|secret|account)[_-]?key|"
    r"(?:auth|access|session|refresh|bot)[_-]?token)"
    r"[\"']?\s{0,4}(?:[:=]|\bis\b[:=]?)\s{0,4}"
    r"(?:\"(?P<double>[^\"\n]{4,200})\"|'(?P<single>[^'\n]{4,200})'|(?P<bare>[^\s\"',;&)]{6,}))"
)

_ASSIGNED_NAMES = ("passw", "passp", "pwd", "secret", "api", "auth", "acc", "session", "refresh", "bot")


def keys(text: str) -> Iterator[tuple[int, int]]:
    """API keys by their beginnings, JSON web tokens, private key blocks, credentials in headers, addresses and code."""
    spans: list[tuple[int, int]] = []
    if any(beginning in text for beginning in _TOKEN_BEGINNINGS):
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
    if "api-key" in small:
        spans += pattern_spans(_API_KEY_HEADER)(text)
    if "bearer" in small or "authorization" in small:
        spans += pattern_spans(_AUTHORIZATION)(text)
        spans += [found.span("secret") for found in _BEARER.finditer(text) if _looks_drawn(found["secret"])]
    if any(word in small for word in _ASSIGNED_NAMES):
        spans += _assigned(text)
    return _merged(spans)


def _assigned(text: str) -> Iterator[tuple[int, int]]:
    """What is given to a name like `password`: in quotes, or with a digit. `password = read()` hides nothing."""
    for found in _ASSIGNED.finditer(text):
        name = str(found.lastgroup)
        if name != "bare" or _looks_random(found[name]):
            yield found.span(name)


def _looks_random(word: str) -> bool:
    return any(character.isdigit() for character in word)


def _looks_drawn(word: str) -> bool:
    """A digit, or a capital within a word: no word of a sentence has one."""
    return _looks_random(word) or re.search("[a-z][A-Z]", word) is not None


def _merged(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ascending, and one where several overlap."""
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
    """IP addresses, of version 4 and 6."""
    found = [match.span() for match in _IPV4.finditer(text)]
    found += [match.span() for match in _IPV6.finditer(text) if match[0].count(":") >= 2]
    return iter([span for span in sorted(found) if _is_address(text[slice(*span)])])


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


RULES: dict[str, Spans] = {
    "key": keys,
    "email": emails,
    "iban": ibans,
    "card": cards,
    "phone": phones,
    "ip": addresses,
}
"""Every rule that benchgate brings, in the order they are applied: what a rule replaced, no later one sees."""

USUAL = ("key", "email", "iban", "card", "phone")
"""The rules that are applied unless others are asked for. Addresses of machines are often what a prompt is about."""
