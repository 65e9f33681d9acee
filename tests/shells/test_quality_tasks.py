from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchgate.errors import SuiteError
from benchgate.model.deployment import canonical_json
from benchgate.quality.tasks.gated_metric import config_fault
from benchgate.quality.tasks.lm_eval_tasks import module_file
from benchgate.quality.tasks.loading import load_tasks
from benchgate.quality.tasks.task_file import ignored_target_fault
from benchgate.suite.quality import Quality, TaskEntry
from tests.shells.quality_helpers import tasks_of

FIXTURES = Path(__file__).parent.parent / "fixtures" / "tasks"

TASK = """\
task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "Capital of {{country}}?"
doc_to_target: capital
generation_kwargs: {temperature: 0, until: ["\\n"]}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
ROWS = '{"id": "a", "country": "Italy", "capital": "Rome"}\n{"id": "b", "country": "Peru", "capital": "Lima"}\n'


def problems_of(folder: Path, task: str = TASK, rows: str = ROWS) -> list[str]:
    """Every problem found in a task file and its rows, as the user reads it, without the folder."""
    (folder / "task.yaml").write_text(task)
    (folder / "rows.jsonl").write_text(rows)
    with pytest.raises(SuiteError) as caught:
        tasks_of(folder, "task.yaml")
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def test_a_task_keeps_its_rows_in_order_and_loses_only_its_data_path() -> None:
    italian, dates = tasks_of(FIXTURES, "italian.yaml", "dates.yaml")
    assert [row["id"] for row in italian.rows] == ["n1", "n2", "n3", "n4", "n5", "n6", "n7"]
    assert italian.config["generation_kwargs"] == {"until": ["\n"], "max_gen_toks": 16, "temperature": 0.0}
    assert "dataset_kwargs" not in italian.config
    assert "dataset_path" not in italian.config
    assert dates.name == "dates"
    assert canonical_json([italian.config, list(dates.rows)])  # plain JSON, as the plan needs it


def test_every_problem_of_every_file_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("task: !function steal.py\n")
    (tmp_path / "two.yaml").write_text(
        TASK.replace("metric_list", "metric_lst").replace("temperature: 0", "temperature: cold")
    )
    with pytest.raises(SuiteError) as caught:
        tasks_of(tmp_path, "one.yaml", "two.yaml", "three.yaml")
    told = str(caught.value).replace(f"{tmp_path}/", "")
    assert "one.yaml:1:7: a function is code; read it, and set `quality.allow_unsafe_code: true`" in told
    assert "two.yaml:9:1: metric_lst: unknown key; did you mean 'metric_list'?" in told
    assert "two.yaml:8:34: generation_kwargs.temperature:" in told
    assert "three.yaml: cannot be read (No such file or directory)" in told


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("generate_until", "loglikelihood_rolling", "task.yaml:5:14: output_type: expected 'generate_until'"),
        ("generate_until", "multiple_choice", "task.yaml:8:20: generation_kwargs: nothing is generated here"),
        ("generate_until", "multiple_choice", "doc_to_choice: is missing; name the column with the options"),
        ("metric: exact_match", "metric: rouge", "metric_list[0].metric: expected 'exact_match'"),
        ("metric: exact_match", "metric: acc", "task.yaml:9:24: metric_list[0].metric: generate_until has no acc; use"),
        ("metric: exact_match", "metric: bleu", "metric_list[0]: bleu is aggregated by `bleu`"),
        ("dataset_path: json", "dataset_path: gsm8k", "task.yaml:2:15: dataset_path: expected 'json'"),
        ("test_split: test", "test_split: train", "test_split: `data_files` has no split 'train'; it has `test`"),
        ("test: rows", "train: rows", "dataset_kwargs.data_files.train: is neither the `test_split` nor the `few"),
        ("task: capitals", "task: capitals\nfewshot_split: more", "fewshot_split: `data_files` has no split 'more'"),
        (
            "task: capitals",
            "task: capitals\nnum_fewshot: 1",
            "num_fewshot: 1 examples are requested; name",
        ),
        (
            "task: capitals",
            "task: capitals\nnum_fewshot: 2\nfewshot_split: test",
            "task.yaml:2:14: num_fewshot: 2 examples are requested, and there are 1",
        ),
        (
            "temperature: 0",
            "temperature: 0.5",
            "task.yaml:1:1: it draws its answers at temperature 0.5, and only one of each item",
        ),
        ("task: capitals", "task: capitals\nprocess_docs: x", "process_docs: unknown key"),
        ("test_split: test\n", "", "test_split: is missing"),
        ("temperature: 0, ", "", "task.yaml:8:20: generation_kwargs.temperature: is missing"),
        (
            ', until: ["\\n"]',
            "",
            "task.yaml:8:20: generation_kwargs.until: is missing, and lm-eval would end every answer at its first",
        ),
        (
            '["\\n"]',
            f"[{', '.join('abcdefghijklmnopq')}]",
            "generation_kwargs.until: List should have at most 16 items",
        ),
        ("{{country}}", "{{contry}}", "doc_to_text: the rows have no `contry`; their columns are `capital`, `country`"),
        ("doc_to_target: capital", "doc_to_target: captal", "doc_to_target: 'captal' is neither a column"),
        (
            "metric_list:",
            'filter_list: [{name: f, filter: [{function: regex, regex_pattern: "([A-Z"}]}]\nmetric_list:',
            "filter_list[0].filter[0].regex_pattern: is no pattern: unterminated character set",
        ),
        ("{{country}}", "{{country.upper()}}", "doc_to_text: calls, macros and imports are not allowed"),
        ("{{country}}", "{{country|attr('x')}}", "doc_to_text: the filter `attr` is not allowed"),
        ("{{country}}", "{{country", "doc_to_text: not a template"),
        ("rows.jsonl", "absent.jsonl", "absent.jsonl: cannot be read"),
        ("task: capitals", "task: capitals\ntask: again", "task.yaml:2:1: task: written twice"),
        ("task: capitals", "task: [", "this is not YAML"),
    ],
)
def test_what_the_harness_cannot_vouch_for_is_refused_in_its_place(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in TASK
    found = problems_of(tmp_path, TASK.replace(old, new))
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("regex, regex_patern: x", ["52: {}.regex_patern: unknown parameter of `regex`; did you mean `regex_"]),
        ("regex, answer: x", ["52: {}.answer: unknown parameter of `regex`; it has `fallback`, `group_select`,"]),
        ("regex, group_select: one", ["66: {}.group_select: Input should be a valid integer, found 'one'"]),
        ("take_first, fallback: x", ["57: {}.fallback: unknown parameter of `take_first`; it has none; remove it"]),
        ("map", ["34: {}.default_value: is missing; give a text", "34: {}.mapping_dict: is missing; give the ans"]),
        (
            "map, maping_dict: {a: b}, default_value: c",
            ["34: {}.mapping_dict: is missing", "50: {}.maping_dict: unknown parameter of `map`; did you mean"],
        ),
        ("map, mapping_dict: {a: 1}, default_value: c", ["{}.mapping_dict.a: Input should be a valid string, found 1"]),
    ],
)
def test_parameter_of_a_filter_step_that_is_unknown_or_missing_is_refused_in_its_place(
    tmp_path: Path, step: str, expected: list[str]
) -> None:
    steps = f"filter_list: [{{name: f, filter: [{{function: {step}}}]}}]\nmetric_list:"
    found = sorted(problems_of(tmp_path, TASK.replace("metric_list:", steps)))
    for problem, part in zip(found, expected, strict=True):
        assert part.format("filter_list[0].filter[0]") in problem


def test_every_parameter_of_a_filter_step_may_be_given(tmp_path: Path) -> None:
    extraction = 'regex_pattern: "(.)", group_select: -1, fallback: none'
    ignoring = "ignore_case: true, ignore_punctuation: true, regexes_to_ignore: [x]"
    steps = (
        f"{{function: regex, {extraction}}}",
        f"{{function: multi_choice_regex, {extraction}, {ignoring}}}",
        "{function: map, mapping_dict: {R: Rome}, default_value: other}",
        "{function: take_first}",
    )
    (tmp_path / "task.yaml").write_text(f"{TASK}filter_list: [{{name: f, filter: [{', '.join(steps)}]}}]\n")
    (tmp_path / "rows.jsonl").write_text(ROWS)
    assert len(tasks_of(tmp_path, "task.yaml")[0].rows) == 2


@pytest.mark.parametrize(
    ("step", "parameter", "text"),
    [
        ("function: regex, regex_pattern: x, fallback: Rome", "fallback", "Rome"),
        ("function: multi_choice_regex, fallback: ' rome'", "fallback", "' rome'"),
        ("function: map, mapping_dict: {R: Rome}, default_value: Rome", "default_value", "Rome"),
        ("function: map, mapping_dict: {R: Rome}, default_value: none", None, None),
        ("function: take_first", None, None),
    ],
)
def test_text_for_unread_answers_that_is_a_target_is_refused_with_its_place_and_the_first_row(
    tmp_path: Path, step: str, parameter: str | None, text: str | None
) -> None:
    task = f"{TASK}filter_list: [{{name: f, filter: [{{{step}}}]}}]\n"
    rows = ROWS + json.dumps({"id": "c", "country": "Latium", "capital": "Rome"}) + "\n"
    if text is None:
        (tmp_path / "task.yaml").write_text(task)
        (tmp_path / "rows.jsonl").write_text(rows)
        assert len(tasks_of(tmp_path, "task.yaml")[0].rows) == 3
    else:
        [problem] = problems_of(tmp_path, task, rows)
        last = task.splitlines()[-1]
        where = f"task.yaml:10:{last.rindex(text) + 1}: filter_list[0].filter[0].{parameter}: "
        assert problem.startswith(where) and "is a target, first on line 1 of rows.jsonl" in problem


def test_text_for_unread_answers_of_a_filter_that_is_not_gated_may_be_a_target(tmp_path: Path) -> None:
    ungated = "{name: g, filter: [{function: regex, fallback: Rome}]}"
    filters = f"filter_list: [{{name: f, filter: [{{function: take_first}}]}}, {ungated}]\n"
    (tmp_path / "task.yaml").write_text(TASK + filters)
    (tmp_path / "rows.jsonl").write_text(ROWS)
    assert len(tasks_of(tmp_path, "task.yaml")[0].rows) == 2
    with pytest.raises(SuiteError, match="'Rome' is a target"):
        load_tasks(tmp_path, Quality.model_validate({"tasks": [{"task": "task.yaml", "filter": "g"}]}))


def test_rows_without_a_unique_text_id_are_refused_with_their_lines(tmp_path: Path) -> None:
    row = {"country": "Italy", "capital": "Rome"}
    rows = [{"id": "a", **row}, {"id": "a", **row}, {"id": 7, **row}, row, {"id": "", **row}]
    found = problems_of(tmp_path, rows="\n".join(json.dumps(r) for r in rows))
    assert [problem.split(": ")[0] for problem in found] == [
        "rows.jsonl:2",
        "rows.jsonl:3",
        "rows.jsonl:4",
        "rows.jsonl:5",
    ]
    assert "`id` 'a' is already used on line 1" in found[0]
    assert "`id` is 7" in found[1]
    assert "the row has no `id`" in found[2]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("", "rows.jsonl: the file has no rows"),
        ("{not json}\n", "rows.jsonl:1: not JSON"),
        ("[1]\n", "rows.jsonl:1: [1] is not a JSON object"),
        ('{"id": "a", "country": NaN, "capital": "x"}\n', "rows.jsonl:1: NaN is not a number"),
        ('{"id": "a", "country": 1e999, "capital": "x"}\n', "rows.jsonl:1: 1e999 is not a number"),
        ('{"id": "a", "country": "\\ud800", "capital": "x"}\n', "rows.jsonl:1: holds half of a surrogate pair"),
        ('{"id": "a", "id": "b", "country": "x", "capital": "x"}\n', "rows.jsonl:1: the key 'id' is written twice"),
        (ROWS + '{"id": "c", "country": "Chad"}\n', "rows.jsonl:3: capital: the first row has this key"),
        (ROWS + '{"id": "c", "country": 3, "capital": "x"}\n', "rows.jsonl:3: country: is int, but str in the first"),
        (ROWS + '{"id": "c", "country": "Chad", "capital": ""}\n', "rows.jsonl:3: capital: the target is ''"),
    ],
)
def test_unusable_rows_are_refused_with_their_line(tmp_path: Path, rows: str, expected: str) -> None:
    found = problems_of(tmp_path, rows=rows)
    assert any(problem.startswith(expected) for problem in found), found


@pytest.mark.parametrize(
    ("target", "capital", "expected"),
    [
        ("capital", "[1, 2]", "capital: the target '[1, 2]' looks like a list"),
        ('"{{capital}}"', "[1, 2]", "doc_to_target: the target '[1, 2]' looks like a list"),
        ('"[{{capital}}]"', "1", "doc_to_target: the target '[1]' looks like a list"),
        ('"{{capital|trim}}"', "  ", "doc_to_target: the target is '', not a text to match"),
        ("\"{% if capital == 'x' %}y{% endif %}\"", "z", "doc_to_target: the target is ''"),
        ('"{{capital.name}}"', "z", "doc_to_target: the target cannot be rendered: 'str object' has no attribute"),
        ('"{{capital + 1}}"', "z", "doc_to_target: the target cannot be rendered: can only concatenate str"),
        ("\"{{'%(x)s' % {}}}{{capital}}\"", "z", "doc_to_target: the target cannot be rendered: 'x'"),
    ],
)
def test_a_target_that_would_be_scored_as_something_else_is_refused_with_its_line(
    tmp_path: Path, target: str, capital: str, expected: str
) -> None:
    task = TASK.replace("doc_to_target: capital", f"doc_to_target: {target}")
    found = problems_of(tmp_path, task, ROWS + json.dumps({"id": "c", "country": "Chad", "capital": capital}) + "\n")
    assert found[-1].startswith(f"rows.jsonl:3: {expected}"), found


@pytest.mark.parametrize(
    ("ignoring", "capital", "refused"),
    [
        ("ignore_numbers: true", "42", "nothing is left of the target '42' once what the metric ignores is taken out"),
        ("ignore_numbers: true", "$4.20", "nothing is left of the target '$4.20'"),
        ("ignore_punctuation: true", "?!", "nothing is left of the target '?!'"),
        ('regexes_to_ignore: ["[0-9]", "x"]', "4x2", "nothing is left of the target '4x2'"),
        ('regexes_to_ignore: ["("]', "z", "`regexes_to_ignore` has '(', which is no pattern: missing )"),
        ("ignore_numbers: true", "catch 22", None),
        ('regexes_to_ignore: [","]', "4,200", None),
        ("ignore_case: true", "?!", None),
    ],
)
def test_target_of_which_the_metric_ignores_all_is_refused(
    tmp_path: Path, ignoring: str, capital: str, refused: str | None
) -> None:
    task = TASK.replace("metric: exact_match,", f"metric: exact_match, {ignoring},")
    rows = ROWS + json.dumps({"id": "c", "country": "Chad", "capital": capital}) + "\n"
    if refused is None:
        (tmp_path / "task.yaml").write_text(task)
        (tmp_path / "rows.jsonl").write_text(rows)
        assert len(tasks_of(tmp_path, "task.yaml")[0].rows) == 3
    else:
        assert problems_of(tmp_path, task, rows)[-1].startswith(f"rows.jsonl:3: capital: {refused}")


def test_what_another_metric_than_the_judged_one_ignores_is_of_no_matter(tmp_path: Path) -> None:
    listed = "metric_list: [{metric: bleu}, {metric: exact_match, ignore_numbers: true}]"
    (tmp_path / "task.yaml").write_text(f"{TASK.partition('metric_list')[0]}{listed}\n")
    (tmp_path / "rows.jsonl").write_text(ROWS.replace("Rome", "42"))
    assert len(tasks_of(tmp_path, "task.yaml")[0].rows) == 2


def test_right_answer_of_signs_alone_may_be_ignored_beside_others() -> None:
    punctuation = {"ignore_punctuation": True}
    assert ignored_target_fault(["!!!", "Chk Chk Chk"], punctuation) is None
    assert "target '!!!'" in (ignored_target_fault(["!!!", "?"], punctuation) or "")
    assert "target '12'" in (ignored_target_fault(["12", "twelve"], {"ignore_numbers": True}) or "")


def test_function_is_found_in_its_package_with_nothing_of_it_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "elsewhere" / "foreign_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('this must not run')\n")
    (package / "own.py").write_text("raise SystemExit('this must not run')\n")
    monkeypatch.syspath_prepend(package.parent)
    assert module_file("foreign_package.own.pick", tmp_path) == package / "own.py"
    assert module_file("foreign_package.pick", tmp_path) == package / "__init__.py"
    for nowhere in ("foreign_package.other.pick", "no_such_package.own.pick", "pick"):
        with pytest.raises(ImportError, match="there is no module"):
            module_file(nowhere, tmp_path)


def test_brackets_inside_a_target_are_a_text_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(TASK.replace("doc_to_target: capital", 'doc_to_target: "{{capital}}"'))
    (tmp_path / "rows.jsonl").write_text(ROWS.replace("Rome", "[Rome] (Italy)"))
    assert len(tasks_of(tmp_path, "task.yaml")[0].rows) == 2


def test_two_task_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.jsonl").write_text(ROWS)
        (tmp_path / folder / "capitals.yaml").write_text(TASK)
    with pytest.raises(SuiteError, match="another task file of the suite is called 'capitals'"):
        tasks_of(tmp_path, "one/capitals.yaml", "two/capitals.yaml")


CHOICE = """\
task: pick
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: options
doc_to_target: right
metric_list: [{metric: acc}, {metric: acc_norm}]
"""


def picks(*rows: tuple[list[str], object]) -> str:
    made = [{"id": f"p{n}", "question": "q", "options": opts, "right": right} for n, (opts, right) in enumerate(rows)]
    return "\n".join(map(json.dumps, made))


def test_a_task_of_choices_is_planned_with_what_guessing_would_score(tmp_path: Path) -> None:
    (tmp_path / "pick.yaml").write_text(CHOICE)
    (tmp_path / "rows.jsonl").write_text(picks((["a", "b"], 1), (["a", "b", "c", "d"], 0)))
    [task] = tasks_of(tmp_path, "pick.yaml", endpoint="completions")
    assert (task.output_type, task.metric, task.scale, task.chance) == ("multiple_choice", "acc", "binary", 0.375)
    assert task.cut(1).chance == 0.5, "of the rows that are judged"
    assert task.only({"p1"}).chance == 0.25


def test_greedy_decoding_of_the_right_option_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "pick.yaml").write_text(CHOICE.replace("{metric: acc}", "{metric: exact_match}"))
    (tmp_path / "rows.jsonl").write_text(picks((["a", "b"], 1), (["a", "b"], 0)))
    [task] = tasks_of(tmp_path, "pick.yaml", endpoint="completions")
    assert (task.metric, task.chance) == ("exact_match", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{country|shout}}", "the filter `shout` is not allowed in a task; use `capitalize`"),
        ("{{country is loud}}", "not a template: No test named 'loud'."),
        ("{% block a %}{% endblock %}{% block a %}{{country}}{% endblock %}", "not a template: block 'a' defined"),
        ("{" * 3000, "not a template: it is nested too deeply"),
    ],
)
def test_a_template_that_cannot_be_compiled_is_refused_in_its_place(tmp_path: Path, text: str, expected: str) -> None:
    [found] = problems_of(tmp_path, TASK.replace("Capital of {{country}}?", text))
    assert found.startswith(f"task.yaml:6:14: doc_to_text: {expected}"), found


def test_a_description_may_be_the_same_for_all_rows_whatever_it_holds(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS)
    (tmp_path / "task.yaml").write_text(TASK + "description: 'Answer as {\"city\": \u2026}.'\n")
    [task] = tasks_of(tmp_path, "task.yaml")
    assert task.config["description"] == 'Answer as {"city": \u2026}.'
    found = problems_of(tmp_path, TASK + "description: 'In {{place}}'\n")
    assert "description: the rows have no `place`; their columns are" in found[0]


@pytest.mark.parametrize("right", ["\u00b2", "\u0663", "007"])
def test_digits_that_lm_eval_cannot_read_as_a_number_are_refused_with_their_line(tmp_path: Path, right: str) -> None:
    by_template = CHOICE.replace("doc_to_target: right", 'doc_to_target: "{{right}}"')
    [found] = problems_of(tmp_path, by_template, picks((["a", right], right)))
    assert found.startswith("rows.jsonl:1: doc_to_target: the target"), found
    assert "is no number that lm-eval reads" in found


def test_a_number_that_is_the_text_of_another_option_is_refused(tmp_path: Path) -> None:
    by_template = CHOICE.replace("doc_to_target: right", 'doc_to_target: "{{right}}"')
    [found] = problems_of(tmp_path, by_template, picks((["1", "2", "3"], "1")))
    assert "lm-eval takes the target '1' for option 1, which is '2'" in found
    (tmp_path / "pick.yaml").write_text(CHOICE)
    [task] = tasks_of(tmp_path, "pick.yaml", endpoint="completions")  # as a column, it is a text
    assert task.rows[0]["right"] == "1"


@pytest.mark.parametrize(
    ("options", "right", "expected"),
    [
        (["a"], 0, "the options are ['a'], not a list of two texts or more"),
        (["a", "a"], 0, "the options ['a', 'a'] hold one twice"),
        (["a", ""], 0, "not a list of two texts or more"),
        (["a", "b"], 2, "the target is option 2, and there are 2, counted from 0"),
        (["a", "b"], -1, "the target is option -1"),
    ],
)
def test_a_question_without_its_options_is_refused_with_its_line(
    tmp_path: Path, options: list[str], right: int, expected: str
) -> None:
    found = problems_of(tmp_path, CHOICE, picks((["a", "b"], 0), (options, right)))
    assert found[0].startswith("rows.jsonl:2: right: ")
    assert expected in found[0]


def test_choices_over_a_chat_endpoint_are_refused_before_any_server_is_asked(tmp_path: Path) -> None:
    (tmp_path / "pick.yaml").write_text(CHOICE)
    (tmp_path / "rows.jsonl").write_text(picks((["a", "b"], 1)))
    with pytest.raises(SuiteError, match=r"quality\.endpoint: the task pick scores given texts"):
        tasks_of(tmp_path, "pick.yaml")


def test_a_folder_to_include_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "capitals.yaml").write_text(TASK)
    (tmp_path / "rows.jsonl").write_text(ROWS)
    with pytest.raises(SuiteError, match=r"quality\.include\[0\]: there is no folder mine"):
        tasks_of(tmp_path, "capitals.yaml", include=["mine"])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"filter": "loose"}, "it has no filter 'loose'; it has none"),
        ({"metric": "f1"}, "it has no metric 'f1'; it has exact_match"),
        ({"cluster": "town"}, "its rows have no column 'town'; they have id, country, capital"),
        ({"few_shot": 3}, "3 examples are requested; name their source"),
        ({"metric": "chrf", "scale": "binary"}, "chrf is a score in between; remove `scale: binary`"),
    ],
)
def test_what_a_suite_says_of_a_task_must_be_there(tmp_path: Path, said: dict[str, object], expected: str) -> None:
    metrics = TASK if said.get("metric") != "chrf" else TASK.replace("[{metric", "[{metric: chrf}, {metric")
    (tmp_path / "capitals.yaml").write_text(metrics)
    (tmp_path / "rows.jsonl").write_text(ROWS)
    with pytest.raises(SuiteError) as caught:
        load_tasks(tmp_path, Quality.model_validate({"tasks": [{"task": "capitals.yaml", **said}]}))
    assert f"quality.tasks[0]: capitals.yaml: {expected}" in str(caught.value)


def test_a_data_file_without_rows_is_named_as_one_would_type_it_with_the_task_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/task.yaml").write_text(TASK.replace("rows.jsonl", "../rows.jsonl"))
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(SuiteError) as caught:
        tasks_of(tmp_path, "t/task.yaml")
    [problem] = caught.value.problems
    assert problem.source == str(tmp_path / "rows.jsonl") and "the `data_files` of task.yaml" in problem.message


def test_the_documented_task_file_loads(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/guides/evals.md").read_text(encoding="utf-8")
    titles = ('yaml title="capitals.yaml"', 'json title="capitals.jsonl"')
    task, rows = (page.split(f"```{title}\n")[1].split("```")[0] for title in titles)
    (tmp_path / "capitals.yaml").write_text(task)
    (tmp_path / "capitals.jsonl").write_text(rows)
    [loaded] = tasks_of(tmp_path, "capitals.yaml")
    assert [row["id"] for row in loaded.rows] == ["capital-1", "capital-2"]


@pytest.mark.parametrize(
    ("config", "metric", "fault"),
    [
        ({}, "f1", "it has no metric 'f1'; it has exact_match"),
        ({"output_type": "multiple_choice"}, "f1", "it has no metric 'f1'; it has acc, acc_norm"),
        (
            {"output_type": "multiple_choice", "metric_list": [{"metric": "acc"}, {"metric": "em"}]},
            "em",
            "lm-eval gives no em of multiple_choice; judge acc, acc_norm, acc_bytes, acc_mutual_info, exact_match",
        ),
        ({"output_type": "loglikelihood", "metric_list": [{"metric": "exact_match"}]}, None, "lm-eval gives no exact_"),
        ({"output_type": "multiple_choice", "metric_list": [{"metric": "em"}], "process_results": "f"}, "em", None),
        ({"output_type": "multiple_choice"}, "acc_norm", None),
        ({"repeats": 64, "metric_list": [{"metric": "pass_at_k", "k": [2, 64]}]}, None, "its pass_at_k is of several"),
        ({"repeats": 10, "metric_list": [{"metric": "pass_at_k", "k": [1, 5]}]}, None, None),
    ],
)
def test_metric_that_a_task_of_lm_evals_does_not_give_is_refused(
    config: dict[str, object], metric: str | None, fault: str | None
) -> None:
    found = config_fault(config, TaskEntry(task="t", metric=metric))
    assert found == fault if fault is None else (found or "").startswith(fault)
