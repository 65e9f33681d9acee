from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import UsageError
from benchgate.shadow.redaction import RULES, Redactor, TooSlowError, redactor_of
from benchgate.shadow.request_log import LoggedRequest

CARD = "4111 1111 1111 1111"
GITHUB = "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z5A"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLWhlcmU"
PRIVATE_KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nabc\n-----END RSA PRIVATE KEY-----"


def redacted(text: str, rules: str | None = "key,email,iban,card,phone,ip", own: tuple[str, ...] = ()) -> str:
    asked, _ = redactor_of(rules, own).redact(LoggedRequest("chat", "chat", prompt=text))
    assert asked.prompt is not None
    return asked.prompt


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write to ann.o'neill+x@mail.example.co.uk.", "write to ann.o'<EMAIL_1>."),
        ("Bob <bob@example.org>, bob@example.org, eve@example.org", "Bob <<EMAIL_1>>, <EMAIL_1>, <EMAIL_2>"),
        ("grüße@bücher.example", "<EMAIL_1>"),
        ("+49 (30) 901820-0 or 0049 30 901820", "<PHONE_1> or <PHONE_2>"),
        ("(212) 555-0142, 212-555-0142, 1-800-555-0199", "<PHONE_1>, <PHONE_2>, <PHONE_3>"),
        ("tel. 030 9018200, 01 23 45 67 89", "tel. <PHONE_1>, <PHONE_2>"),
        ("+33\u202f6\u202f12\u202f34\u202f56\u202f78, +49\xa030\xa01234567", "<PHONE_1>, <PHONE_2>"),
        ("+1\u2011415\u2011555\u20112671, 415\u2013555\u20132671", "<PHONE_1>, <PHONE_2>"),
        ("Tel. 030 / 12345678, 06\u00a012\u00a034\u00a056\u00a078", "Tel. <PHONE_1>, <PHONE_2>"),
        ("gb29 nwbk 6016 1331 9268 19 or de89370400440532013000", "<IBAN_1> or <IBAN_2>"),
        (
            "GB29-NWBK-6016-1331-9268-19, FR14\u20112004\u20111010\u20110505\u20110001\u20113M02\u2011606",
            "<IBAN_1>, <IBAN_2>",
        ),
        ("sqlserver://sa:p@ss@h/db?to=a@b", "sqlserver://sa:<KEY_1>@h/db?to=a@b"),
        (f"card {CARD} 12/27 123", "card <CARD_1> 12/27 123"),
        ("5 4111-1111-1111-1111", "5 <CARD_1>"),
        ("378282246310005EUR", "<CARD_1>EUR"),
        ("pay to DE89 3704 0044 0532 0130 00 TODAY", "pay to <IBAN_1> TODAY"),
        ("GB82WEST12345698765432.", "<IBAN_1>."),
        ("sk-proj-Ab12Cd34Ef56Gh78Ij90 and sk-ant-api03-Ab12Cd34Ef56", "<KEY_1> and <KEY_2>"),
        (f"export GH={GITHUB}!", "export GH=<KEY_1>!"),
        ("AKIAIOSFODNN7EXAMPLE", "<KEY_1>"),
        (f"jwt {JWT}", "jwt <KEY_1>"),
        ("Authorization: Bearer abcdef0123456789abcdef", "Authorization: Bearer <KEY_1>"),
        (f"see\n{PRIVATE_KEY}\nend", "see\n<KEY_1>\nend"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEcut", "<KEY_1>"),
        ("password = \"correct horse\" or Secret: 'it is'", "password = \"<KEY_1>\" or Secret: '<KEY_2>'"),
        ("AccountKey=abc123def456==;EndpointSuffix=x", "AccountKey=<KEY_1>;EndpointSuffix=x"),
        ("my password is hunter22.", "my password is <KEY_1>"),
        ("postgres://app:s3cr3t@db.internal/x", "postgres://app:<KEY_1>@db.internal/x"),
        ("ann\uff20mail.example", "<EMAIL_1>"),
        ("4111\u200b1111\u00a01111\u20111111", "<CARD_1>"),
        ("gsk_" + "abcdefgh" * 5 + " r8_" + "abcdefgh" * 4, "<KEY_1> <KEY_2>"),
        ("https://hooks.slack.com/services/T0A/B0B/xyz", "https://hooks.slack.com/services/<KEY_1>"),
        ("x-api-key: abcdefgh", "x-api-key: <KEY_1>"),
        ("get /x?page=2&access_token=abcdef&n=1", "get /x?page=2&access_token=<KEY_1>&n=1"),
        ("token=abcdefghijkl", "token=<KEY_1>"),
        ("api_key=abcdefghijkl, apikey=abcdefghijkl", "api_key=<KEY_1>, apikey=<KEY_1>"),
        ("Cookie: session=abcdef; theme=dark\nHost: a", "Cookie: <KEY_1>\nHost: a"),
        ('{"Set-Cookie": "sid=abcdef; Path=/; HttpOnly"}', '{"Set-Cookie": "<KEY_1>; HttpOnly"}'),
        (
            "curl -u bob:hunter -x proxy, curl --user 'bob:hunter'",
            "curl -u bob:<KEY_1> -x proxy, curl --user 'bob:<KEY_1>'",
        ),
        (
            "curl https://a.example \\\n  -d '{\n}' -u bob:hunter",
            "curl https://a.example \\\n  -d '{\n}' -u bob:<KEY_1>",
        ),
        (
            "curl -b 'sid=abc; theme=dark' --cookie=a=b https://a.example?c=d",
            "curl -b '<KEY_1>' --cookie=<KEY_2> https://a.example?c=d",
        ),
        ("whsec_" + "abcd+/" * 5 + "= dop_v1_" + "0123456789abcdef" * 4, "<KEY_1> <KEY_2>"),
        (
            "BEARER abcdef01, Bearer      abcdef02, Bearer%20abcdef03",
            "BEARER <KEY_1>, Bearer      <KEY_2>, Bearer%20<KEY_3>",
        ),
        ("authorization=Bearer%20abcdefgh", "authorization=Bearer%20<KEY_1>"),
        ("00 Authorization: Basic dXNlcjpwYXNzMTIz", "00 Authorization: Basic <KEY_1>"),
        ("Proxy-Authorization: bearer abcdefgh", "Proxy-Authorization: bearer <KEY_1>"),
        ("Bearer dXNlcjpwYXNz", "Bearer <KEY_1>"),
        ("session_token=abc123def456, refreshToken: abc123", "session_token=<KEY_1>, refreshToken: <KEY_2>"),
        (f'export AWS_SESSION_TOKEN="{"IQoJb3Jp" * 60}"', 'export AWS_SESSION_TOKEN="<KEY_1>"'),
        (f"client_secret = '{'x/+=' * 100}' ok", "client_secret = '<KEY_1>' ok"),
        ("my password is: hunter22", "my password is: <KEY_1>"),
        ("hosts 10.0.0.12 and 2001:db8::7, at 12:30:45", "hosts <IP_1> and <IP_2>, at 12:30:45"),
        (
            r'See {"a": "Hi\n+49 170 1234567\tAKIAIOSFODNN7EXAMPLE\nann@x.org, ann@x.org\r\nDE89370400440532013000"}',
            r'See {"a": "Hi\n<PHONE_1>\t<KEY_1>\n<EMAIL_1>, <EMAIL_1>\r\n<IBAN_1>"}',
        ),
        (r"in C:\temp\new@x.org and \\nan@x.org", r"in C:\temp\<EMAIL_1> and \\<EMAIL_2>"),
        (r'{"password": "ab\ncd ef", x', r'{"password": "<KEY_1>", x'),
    ],
)
def test_what_a_rule_looks_for_is_replaced_and_nothing_around_it(text: str, expected: str) -> None:
    assert redacted(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "What is 4111111111111112 times 2?",  # no check digit
        "at 2024-01-02 03:04:05, on 01/02/2024 10:30",
        "05/12/24\u201306/12/24, 01 / 02 / 03 / 04 / 05, pages 200\u2013300 4000",
        "on 01 / 02 / 2024 10:30, 01\u201302\u20132024 10 30, 2024\u201101\u201102",
        "1\u202f234\u202f567, 200\u2013300, pages 100 \u2013 200 \u2013 3000, 0.1 / 0.25 / 0.125",
        "001 - 002 - 003 - 004, v1.10.0-2024, 10\u00a0000\u00a0000",
        "be30d547-5b44-31ba-db2e-b6b9e5460142, in20 years and 12 months of it we had",
        "version 1.2.3.4.5, pi is 3.14159265358979",
        "password = input('Password: ')",
        "the @app.route decorator, user@host",
        "basic understanding of authorization",
        "GB00WEST12345698765432",
        "ask-learn-something-very-long",
        "max_tokens=256, token=tok, f(token=read())",
        "an api-key: yes",
        "the bearer understands authorization: documentation of basics",
        "pad_token=tokenizer.eos_token, session_token = read()",
        "max_tokens=100, prompt_tokens: 2048, tokens=1048576",
        "cookie: chocolate; a cookie = 12 g of sugar; sort -u name:3",
        "the bearer of bearer  bonds",
        "python x.py -u https://example.org/path with curl, curl -u https://example.org/path",
        "fetch it with curl\ndocker run -u 1000:1000 image\nwget -U Mozilla:5.0 -b name=value",
        "curl -b cookies.txt --cookie-jar jar=1 https://a.example",
    ],
)
def test_what_only_looks_a_little_like_it_stays(text: str) -> None:
    assert redacted(text) == text


def test_every_rule_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "shadow.md").read_text()
    assert [name for name in RULES if f"| `{name}` |" not in page] == []


def test_addresses_of_machines_stay_unless_asked_for() -> None:
    assert redacted("ping 10.0.0.12", rules=None) == "ping 10.0.0.12"


def test_one_value_has_one_placeholder_in_all_the_messages_of_a_request() -> None:
    asked = LoggedRequest(
        "chat",
        "chat",
        messages=(
            {"role": "system", "content": "You serve eve@example.org."},
            {"role": "user", "content": [{"type": "text", "text": "I am bob@example.org; mail eve@example.org"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c",
                        "function": {"name": "pay", "arguments": json.dumps({"card": 4111111111111111, "n": 2})},
                    }
                ],
            },
            {"role": "tool", "content": "done", "tool_call_id": "c"},
        ),
        fields={"tools": [{"function": {"name": "pay", "parameters": {"default": "bob@example.org"}}}]},
    )
    found, replaced = redactor_of(None, ()).redact(asked)
    assert found.messages[0]["content"] == "You serve <EMAIL_1>."
    assert found.messages[1]["content"] == [{"type": "text", "text": "I am <EMAIL_2>; mail <EMAIL_1>"}]
    calls = found.messages[2]["tool_calls"]
    assert isinstance(calls, list)
    assert json.loads(calls[0]["function"]["arguments"]) == {"card": "<CARD_1>", "n": 2}
    assert found.fields["tools"] == [{"function": {"name": "pay", "parameters": {"default": "<EMAIL_2>"}}}]
    assert replaced == {"email": 4, "card": 1}


def arguments_redacted(arguments: str, own: tuple[str, ...] = ()) -> tuple[str, dict[str, int]]:
    calls = [{"id": "c", "function": {"name": "login", "arguments": arguments}}]
    asked = LoggedRequest("chat", "chat", messages=({"role": "assistant", "content": None, "tool_calls": calls},))
    found, replaced = redactor_of(None, own).redact(asked)
    messages: Any = found.messages
    return messages[0]["tool_calls"][0]["function"]["arguments"], dict(replaced)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"password": "correct horse", "api_key": "a b c d"}, {"password": "<KEY_1>", "api_key": "<KEY_2>"}),
        ({"a": [{"password": ["correct horse", "x y z"]}]}, {"a": [{"password": ["<KEY_1>", "<KEY_2>"]}]}),
        ({"secret": 12345, "n": 12345}, {"secret": "<KEY_1>", "n": 12345}),
        ({"password": 'two "words" \n', "card": 4111111111111111}, {"password": "<KEY_1>", "card": "<CARD_1>"}),
        ({"password": "many words " * 50}, {"password": "<KEY_1>"}),
        ({"authorization": "Basic dXNlcjpw"}, {"authorization": "Basic <KEY_1>"}),
        (
            {"properties": {"password": {"type": "string", "minLength": 8}}, "password": True, "max_tokens": 4096},
            {"properties": {"password": {"type": "string", "minLength": 8}}, "password": True, "max_tokens": 4096},
        ),
    ],
)
def test_a_value_whose_name_says_that_it_is_secret_is_replaced_in_arguments(
    values: dict[str, object], expected: dict[str, object]
) -> None:
    for indent in (None, 2):
        shown, replaced = arguments_redacted(json.dumps(values, indent=indent))
        assert json.loads(shown) == expected
        assert sum(replaced.values()) == str(expected).count("<")  # each once
    inner, _ = arguments_redacted(json.dumps({"body": json.dumps(values)}))
    assert json.loads(json.loads(inner)["body"]) == expected


def test_names_and_values_are_seen_together_in_fields_and_in_escaped_json_within_a_text() -> None:
    tools = [{"function": {"name": "f", "parameters": {"api_key": "a b c d"}}}]
    body = json.dumps({"body": json.dumps({"password": 'correct "horse"', "user": "bob"})})
    asked = LoggedRequest("chat", "chat", prompt=f"Send {body} again", fields={"tools": tools})
    found, _ = redactor_of(None, ()).redact(asked)
    assert found.fields["tools"] == [{"function": {"name": "f", "parameters": {"api_key": "<KEY_2>"}}}]
    assert found.prompt is not None and "horse" not in found.prompt
    assert '\\"<KEY_1>\\", \\"user\\": \\"bob\\"' in found.prompt


def test_a_rule_of_ones_own_sees_names_beside_values_and_no_placeholder_of_another_rule() -> None:
    own = ('PERSON="person": "(?P<secret>[^"]+)"', "WORD=[A-Z]+_[0-9]+")
    shown, replaced = arguments_redacted('{"person": "Ann", "card": 4111111111111111, "id": "AB_1"}', own)
    assert json.loads(shown) == {"person": "<PERSON_1>", "card": "<CARD_1>", "id": "<WORD_1>"}
    assert replaced == {"PERSON": 1, "card": 1, "WORD": 1}


@pytest.mark.slow
@pytest.mark.parametrize("unit", ['{"password": "a b c"}', '"a"', "1", '{"a": 1}'])
def test_json_of_many_values_is_redacted_in_time(unit: str) -> None:
    text = f"[{','.join([unit] * (100_000 // (len(unit) + 1)))}]"
    Redactor(RULES).redact(LoggedRequest("chat", "chat", prompt=text))


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        ("customer-support/chat", "customer-support/chat"),
        ("openai/deployments/*/chat", "openai/deployments/*/chat"),
        ("sk-abcdefghijklmnopqrst/chat", "*/chat"),
        ("tenant/jane.doe/chat", "tenant/*/chat"),
        ("AbCdEfGhIj/chat", "*/chat"),
        ("abcdefghijklmnopqrst/chat", "*/chat"),
        ("acme/chat", "*/chat"),
        ("of-jane/mail", "*"),
    ],
)
def test_what_is_stored_of_a_path_is_plain_words_that_no_rule_knows(label: str, kept: str) -> None:
    redactor = redactor_of(None, ("TENANT=acme", "ACROSS=jane/mail"))
    found, replaced = redactor.redact(LoggedRequest("chat", label, prompt="write to bob@example.org"))
    assert (found.label, found.prompt) == (kept, "write to <EMAIL_1>")
    assert replaced == {"email": 1}


def test_a_rule_of_ones_own_comes_first_and_may_name_the_part_that_is_secret() -> None:
    own = ("CUSTOMER=C-[0-9]{4}", "CITY=lives in (?P<secret>[A-Z][a-z]+)")
    assert (
        redacted("C-1234 (C-1234, C-9) lives in Rome", own=own) == "<CUSTOMER_1> (<CUSTOMER_1>, C-9) lives in <CITY_1>"
    )
    assert redacted("bob@example.org", own=("WORK=\\S+@example.org",)) == "<WORK_1>"


@pytest.mark.parametrize(
    ("rules", "own", "message"),
    [
        ("emial", (), "--rules: there is no rule 'emial'; did you mean 'email'?"),
        (None, ("x=a",), "--redact: found 'x=a'; write NAME=REGEX"),
        (None, ("EMAIL=a",), "is the placeholder of a built-in rule"),
        (None, ("A=(",), "--redact A: not a regular expression"),
        (None, ("A=b*",), "--redact A: it matches the empty text"),
        (None, ("A=b", "A=c"), "--redact: A is given twice"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(rules: str | None, own: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        redactor_of(rules, own)
    assert message in str(caught.value)


def test_a_pattern_that_takes_an_age_is_stopped_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.shadow.redaction._MAX_CPU_S", 0.05)
    redactor = redactor_of("none", ("SLOW=(a+)+b",))
    with pytest.raises(TooSlowError, match="SLOW"):
        redactor.redact(LoggedRequest("chat", "chat", prompt="a" * 60))


@pytest.mark.parametrize(
    "unit",
    ["a", "a@", "a@a.", "1", "1 ", "+1", "(0", "0-", "sk-", "eyJ", "eyJaaaaaaaa.", "AB12", "password=", "://a:", "1.",
     ":1", "bearer ", "-----BEGIN PRIVATE KEY-----", "authorization: ", "\"'", "?key=", "token=", "api-key:", "://hooks.slack.com/a/",
     "1\u200b"],
)  # fmt: skip
def test_no_text_keeps_a_rule_of_ours_busy(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 kB that begin like a match over and over: a rule that takes the square of that takes hours.
    Redactor(RULES).redact(LoggedRequest("chat", "chat", prompt=unit * (100_000 // len(unit))))


def test_none_stands_alone() -> None:
    with pytest.raises(UsageError, match="`none` stands alone"):
        redactor_of("email,none", ())


@pytest.mark.parametrize(
    "content",
    [
        'Please review this config:\n\n[db]\npwd = ""\nport=8080\nhost=db1\n',
        '.env\nPASSWORD=""\nPORT=5432\nDEBUG=1\n',
        "x" * 186 + " " + "4" * 37 + " and what comes after it " * 20,
        "redis://app@cache:6379,ops",
    ],
)
def test_name_of_a_value_makes_no_find_inside_it(content: str) -> None:
    asked = LoggedRequest("chat", "chat", messages=({"role": "user", "content": content},))
    found, _ = redactor_of("key,email,iban,card,phone", ()).redact(asked)
    assert found.messages == asked.messages
