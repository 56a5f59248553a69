"""Command lines of agents, and of those who would fool them, with the decision that is right for each."""

from __future__ import annotations

import collections
import json
import pathlib

import pytest

from sandboxed_subprocess import ExecPolicy

CORPUS = pathlib.Path(__file__).parent / "corpus"
LINES = [(file.stem, number, json.loads(line)) for file in sorted(CORPUS.glob("*.jsonl"))
         for number, line in enumerate(file.read_text("utf-8").splitlines(), 1) if line.strip()]  # fmt: skip


@pytest.fixture(scope="module")
def policies():
    return {
        "team": ExecPolicy.load(CORPUS / "team.rules"),
        "open": ExecPolicy.load(CORPUS / "open.rules", default="allow"),
        "safe": ExecPolicy.heuristics(),
    }


@pytest.mark.parametrize("name", sorted({name for name, _, _ in LINES}))
def test_each_line_is_decided_as_it_should(policies, name):
    """One file of the corpus; each line has its reason beside it."""
    wrong = []
    for _, number, line in [entry for entry in LINES if entry[0] == name]:
        wanted = [line["want"]] if isinstance(line["want"], str) else line["want"]
        shell = "shell" in line
        found = policies[line["rules"]].check(line["shell"] if shell else line["argv"], shell=shell, cwd="/srv/nowhere", writable_roots=["/srv"])
        if found.decision not in wanted:
            command = line["shell"] if shell else line["argv"]
            wrong.append(f"{name}.jsonl:{number}: {line['rules']}: {command!r} is {found.decision} ({found.reason}), not {wanted}: {line['why']}")
    assert wrong == [], "\n".join(wrong)


def test_the_corpus_is_what_it_says():
    """At least 400 lines, each once, each with its reason, in all three sets of rules and both ways."""
    assert len(LINES) >= 400
    keys = collections.Counter(json.dumps([line["rules"], line.get("shell"), line.get("argv")]) for _, _, line in LINES)
    assert [key for key, count in keys.items() if count > 1] == []
    assert all(line["why"].strip() for _, _, line in LINES)
    assert {line["rules"] for _, _, line in LINES} == {"team", "open", "safe"}
    decided = collections.Counter(line["want"] for _, _, line in LINES if isinstance(line["want"], str))
    assert min(decided[d] for d in ("allow", "prompt", "forbidden")) >= 60
