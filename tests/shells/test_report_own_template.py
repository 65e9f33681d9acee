"""Templates of the reader's own: what they can show, what they cannot reach, and where their mistakes are."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from benchgate.errors import UsageError
from benchgate.report.own_template import MOST_S, OwnTemplate, plain, read_template, render_own
from benchgate.report.own_template_process import MOST_CHARACTERS, rendered
from benchgate.report.view import report_view
from tests.fakes import evidence as fake
from tests.fakes import hostile

DASH = "\N{EN DASH}"
HTML = """<!doctype html>
<title>{{ view.banner.outcome }}</title>
<h1>{{ view.banner.mark }} {{ view.banner.candidate }} against {{ view.banner.baseline }}</h1>
<ul>
{% for check in view.checks.failing %}
<li class="{{ check.outcome|lower }}">{{ check.title }}: {{ check.change }}, allowed {{ check.allowed }}</li>
{% endfor %}
</ul>
"""
MARKDOWN = """# {{ view.banner.mark }} {{ view.banner.outcome }}

{{ view.banner.reason }} (run {{ view.banner.run|code }})

| check | difference |
|---|---:|
{% for check in view.checks.all %}
| {{ check.title }} | {{ check.change }} |
{% endfor %}
"""


def said(source: str, *, markdown: bool = False, text: str | None = None) -> str:
    """What a template makes of the report that has everything, in this process; with a text, of its head and checks."""
    view = hostile.view()
    parts = {"banner": view.banner, "checks": view.checks}
    said_so = {name: plain(hostile.poisoned(part, text)) for name, part in parts.items()} if text else plain(view)
    answer = rendered(source, said_so, markdown=markdown)
    assert "fault" not in answer, answer
    return str(answer["text"])


def fault(source: str, *, markdown: bool = False) -> tuple[object, str]:
    """The line and the words of what is wrong with a template."""
    answer = rendered(source, plain(hostile.view()), markdown=markdown)
    return answer["line"], str(answer["fault"])


def test_a_template_shows_what_our_own_report_shows(tmp_path: Path) -> None:
    path = tmp_path / "short.html.j2"
    path.write_text(HTML)
    page = render_own(hostile.view(), read_template(path))
    assert "<title>BLOCK</title>" in page
    assert "<h1>■ benign against benign</h1>" in page
    assert page.count('<li class="') == len(hostile.view().checks.failing)


def test_markdown_of_a_template_is_a_heading_a_line_and_a_table(tmp_path: Path) -> None:
    path = tmp_path / "short.md.j2"
    path.write_text(MARKDOWN)
    text = render_own(hostile.view(), read_template(path))
    assert text.startswith("# ■ BLOCK\n\nbenign (run `benign`)\n\n| check | difference |\n")
    assert text.count("\n| benign |") == 4
    assert text.count("\n| ") == 1 + len(hostile.view().checks.all)


def test_a_page_of_a_template_can_have_our_charts() -> None:
    source = "{% for one in charts %}<figure id={{ one.anchor }}>{{ one.svg }}{{ one.caption }}</figure>{% endfor %}"
    page = render_own(report_view(fake.evidence(), fake.verdict()), OwnTemplate("own.html.j2", source, markdown=False))
    assert page.count('<svg class="chart"') == page.count("<figure id=figure-") >= 3


def test_the_template_of_the_documentation_does_what_it_says() -> None:
    page = (Path(__file__).parents[2] / "docs/report.md").read_text(encoding="utf-8")
    text = said(page.partition("```jinja\n")[2].partition("```")[0], markdown=True)
    assert text.startswith("# ■ BLOCK: `benign`\n\nbenign\n\n| check | difference | allowed |\n|---|---:|---:|\n| ")


class Tags(HTMLParser):
    """The elements of a page with their attributes, in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.found: list[object] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [name for name, _ in attrs]))

    def handle_comment(self, data: str) -> None:
        self.found.append("comment")


@pytest.mark.parametrize("text", hostile.TEXTS, ids=range(len(hostile.TEXTS)))
def test_hostile_text_stays_text_in_templates_too(text: str) -> None:
    page = said(HTML, text=text)
    assert Tags(page).found == Tags(said(HTML, text=hostile.BENIGN)).found
    assert page.encode()
    read = MarkdownIt("commonmark").enable("table").parse
    summaries = [said(MARKDOWN, markdown=True, text=one) for one in (text, hostile.BENIGN)]
    kinds, benign = [[token.type for token in read(summary)] for summary in summaries]
    assert kinds == benign


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("'<b>'", "&lt;b&gt;"),
        ("'<b>' ~ '&'", "&lt;b&gt;&amp;"),
        ("['<b>']|join", "&lt;b&gt;"),
        ("'a\\u202eb'", "a\N{REPLACEMENT CHARACTER}b"),
        ("'\\u202e'|e", "\N{REPLACEMENT CHARACTER}"),
        ("{'<a>': 1}|tojson", '{"\\u003ca\\u003e": 1}'),
    ],
)
def test_what_html_prints_is_escaped_whatever_was_done_to_it(expression: str, shown: str) -> None:
    assert said("{{ " + expression + " }}") == shown


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("'@team'", "@\u200bteam"),
        ("'<b>' ~ '|'", "&#60;b&#62;&#124;"),
        ("('a'|code) ~ '@team'", "&#96;a&#96;@\u200bteam"),
        ("'`a`'|code", "`\N{MODIFIER LETTER GRAVE ACCENT}a\N{MODIFIER LETTER GRAVE ACCENT}`"),
        ("1.5", "1.5"),
    ],
)
def test_what_markdown_prints_is_interrupted_whatever_was_done_to_it(expression: str, shown: str) -> None:
    assert said("{{ " + expression + " }}", markdown=True) == shown


@pytest.mark.parametrize("markdown", [False, True])
def test_what_is_none_is_never_printed_as_a_value(markdown: bool) -> None:
    assert rendered("{{ view.n }} {{ view.zero }}", {"n": None, "zero": 0}, markdown=markdown) == {"text": f"{DASH} 0"}


@pytest.mark.parametrize("markdown", [False, True])
@pytest.mark.parametrize(
    "expression",
    [
        "view.__class__",
        "''.__class__.__mro__",
        "''|attr('__class__')",
        "view['__class__']",
        "self._TemplateReference__context",
        "range.__globals__",
        "cycler.__init__.__globals__",
        "'{0.__class__}'.format(view)",
        "view.pop('banner')",
        "[].append(1)",
        "lipsum()",
        "'x'|safe",
        "'x'|urlize",
        "[1, 2]|random",
    ],
)
def test_no_template_reaches_python_changes_anything_or_prints_markup_of_a_text(
    expression: str, markdown: bool
) -> None:
    line, words = fault("{{ view.banner.mark }}\n{{ " + expression + " }}", markdown=markdown)
    assert (line, bool(words)) == (2, True)


@pytest.mark.parametrize(
    "statement",
    [
        "{% include '/etc/passwd' %}",
        "{% import 'x' as y %}",
        "{% from 'x' import y %}",
        "{% extends 'report.html.j2' %}",
        "{% autoescape false %}{{ view.banner.reason }}{% endautoescape %}",
    ],
)
def test_a_template_reads_no_file_and_cannot_turn_the_escaping_off(statement: str) -> None:
    line, words = fault(f"\n\n{statement}")
    assert line == 3
    assert "stands alone" in words or "always escaped" in words


def test_mistakes_are_told_with_their_line_and_the_nearest_name() -> None:
    assert fault("a\n{{ view.banner.resaon }}") == (2, "there is no 'resaon' here; did you mean 'reason'?")
    assert fault("{% for x in view.checks %}\n{% endfro %}")[0] == 2
    assert fault("\n{{ 1 / 0 }}") == (2, "division by zero")
    line, words = fault("{% macro m() %}\n{{ veiw }}\n{% endmacro %}\n{{ m() }}")
    assert (line, words) == (2, "'veiw' is undefined")


def test_output_without_end_is_refused() -> None:
    loop = "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}"
    assert fault(loop) == (None, f"it makes more than {MOST_CHARACTERS:,} characters")


@pytest.mark.parametrize(
    ("source", "words", "most_s"),
    [
        ("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "not done after 1 s", 1.0),
        ("{{ 'x' * 100000000000 }}", "more memory than a template gets", MOST_S),
    ],
)
def test_a_template_that_takes_too_much_is_stopped(source: str, words: str, most_s: float) -> None:
    with pytest.raises(UsageError, match=words):
        render_own(hostile.view(), OwnTemplate("own.html.j2", source, markdown=False), most_s=most_s)


def test_the_process_of_a_template_has_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHGATE_SECRET", "s3cret")
    started: list[Mapping[str, str]] = []

    def run(command: Sequence[str], *, env: Mapping[str, str], **_: object) -> subprocess.CompletedProcess[bytes]:
        started.append(env)
        return subprocess.CompletedProcess(command, 0, b'{"text": "done"}', b"")

    monkeypatch.setattr(subprocess, "run", run)
    assert render_own(hostile.view(), OwnTemplate("own.md.j2", "", markdown=True)) == "done"
    assert [set(environment) for environment in started] == [{"PYTHONPATH"}]


def test_a_process_that_ends_by_itself_is_told_with_its_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, -9, b"", b"first\nlast word\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(UsageError, match=r"own\.md\.j2: its process ended with -9: last word"):
        render_own(hostile.view(), OwnTemplate("own.md.j2", "", markdown=True))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("own.txt", b"x", "ends in .html.j2 or .md.j2"),
        ("own.html.j2", b"a\nb\xff", "own.html.j2:2: this is not UTF-8"),
        ("own.html.j2", b"x" * 1024 * 1025, "at most 1,048,576 bytes"),
        ("own.html.j2", None, "could not be read: No such file or directory"),
    ],
)
def test_a_file_that_can_be_no_template_is_refused(
    name: str, content: bytes | None, words: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_template(tmp_path / name)


def test_a_mistake_names_the_file_and_its_line() -> None:
    with pytest.raises(UsageError, match=r"^mine\.html\.j2:2: there is no 'verdict' here; there are att"):
        render_own(hostile.view(), OwnTemplate("mine.html.j2", "\n{{ view.verdict }}", markdown=False))


def test_all_of_a_report_is_plain_data() -> None:
    data = plain(hostile.view())
    assert isinstance(data, dict)
    assert data["banner"]["outcome"] == "BLOCK"
    assert data["fairness"]["fair"] is False  # a property
    assert [row["title"] for row in data["checks"]["all"]].count("benign") == 4
    with pytest.raises(TypeError, match="holds no object"):
        plain(object())
