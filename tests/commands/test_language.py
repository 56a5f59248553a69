"""The language of rules: what is read, what is refused, and where it says so."""

from __future__ import annotations

import pickle

import pytest

import sandboxed_subprocess as sp
from sandboxed_subprocess import ExecPolicy, RulesError, exact_rule, host_executable, network_rule, prefix_rule

CODEX = '''
# A file of another tool, as its documentation has it.
prefix_rule(
    pattern = ["git", "reset", "--hard"],
    decision = "forbidden",
    justification = "destructive operation",
    match = [["git", "reset", "--hard"]],
    not_match = [
        ["git", "reset", "--keep"],
        "git reset --merge",
    ],
)
prefix_rule(pattern = ["ls"], match = [["ls"], ["ls", "-l"], "ls -a ."])
prefix_rule(pattern = ["cp"], decision = "prompt", match = ["cp -r src dest", "cp 'a b' c"])
prefix_rule(pattern = [["bash", "sh"], ["-c", "-l"]], match = ["bash -c", "sh -l"], not_match = ["bash x"])
host_executable(name = "git", paths = ["/opt/homebrew/bin/git", "/usr/bin/git", "~/bin/git"])
network_rule(host = "api.github.com", protocol = "https", decision = "allow")
network_rule("pypi.org", "https", "allow")
network_rule(host = "evil.example", protocol = "http", decision = "deny", justification = "no")
'''


def test_the_files_of_others_load_as_they_are():
    """The language is theirs, so that one set of rules serves two tools."""
    policy = ExecPolicy.from_text(CODEX, "codex.rules")
    assert policy.check(["git", "reset", "--hard", "x"]).decision == "forbidden"
    assert policy.check(["ls", "-l"]).decision == "allow"
    assert policy.check(["cp", "a", "b"]).decision == "prompt"
    assert [rule.host for rule in policy.network_rules] == ["api.github.com", "pypi.org", "evil.example"]
    assert policy.network_rules[1] == network_rule("pypi.org", protocol="https")
    rule = policy.command_rules[0]
    assert rule.source == "codex.rules:3" and rule.justification == "destructive operation"


STARLARK = '''
GIT = ["git"]
READ = ["status", "log"] + ["diff",]     # lists in variables, added, with commas at the end

def allow(*words):
    """A function, with a docstring."""
    prefix_rule(pattern = list(words), decision = "allowed")

allow("git", READ)
[allow(name) for name in ["ls", "cat"]]
for verb in ("push", "fetch"):
    prefix_rule(GIT + [verb], decision = "denied", justification = f"{verb} needs the network")
if True:
    exact_rule(["npm", "run", "build"], match = ["npm run build"], not_match = ["npm run build --x"])
'''


def test_what_users_of_starlark_write_is_understood():
    """Variables, functions, loops and comprehensions: a subset of it that one has to guess at is no language."""
    policy = ExecPolicy.from_text(STARLARK, "team.rules")
    assert policy.check(["git", "diff"]).decision == policy.check(["cat", "x"]).decision == "allow"
    forbidden = policy.check(["git", "fetch"])
    assert forbidden.decision == "forbidden" and forbidden.justification == "fetch needs the network"
    assert policy.check(["npm", "run", "build"]).decision == "allow"
    assert policy.check(["npm", "run", "build", "x"]).decision == "prompt"
    # Where the rule was made, not where the function was called from.
    assert [rule.source for rule in policy.command_rules] == [f"team.rules:{n}" for n in (7, 7, 7, 12, 12, 14)]


BAD = [
    ("prefix_rule(\n  pattern = [", 2, "Parse error"),
    ("\nx = y\n", 2, "not found"),
    ("prefix_rule([])", 1, "cannot be empty"),
    ('prefix_rule(["a", []])', 1, "neither a string"),
    ('prefix_rule(["a", 3])', 1, "neither a string"),
    ('prefix_rule("git status")', 1, "a list is needed"),
    ('prefix_rule([""])', 1, "has a name"),
    ('\n\nprefix_rule(["a"], decision = "maybe")', 3, "maybe"),
    ('prefix_rule(["a"], justification = " ")', 1, "justification"),
    ('prefix_rule(["a"], colour = "red")', 1, "colour"),
    ("prefix_rule()", 1, "pattern"),
    ('prefix_rule(["git", "push"],\n  match = ["git pull"])', 1, "git pull|'git', 'pull'"),
    ('prefix_rule(["git"], not_match = [["git", "x"]])', 1, "not_match"),
    ('prefix_rule(["git"], match = [""])', 1, "empty"),
    ('prefix_rule(["git"], match = ["git \'x"])', 1, "example"),
    ('exact_rule(["a", ["b", "c"]])', 1, "alternatives"),
    ('host_executable(name = "a/b", paths = [])', 1, "bare name"),
    ('host_executable(name = "git", paths = ["bin/git"])', 1, "absolute"),
    ('host_executable(name = "git", paths = ["/usr/bin/hg"])', 1, "does not have the name"),
    ('network_rule(host = "", decision = "allow")', 1, "host"),
    ('network_rule(host = "*", decision = "allow")', 1, "UNRESTRICTED_NETWORK"),
    ('load("other.rules", "x")', 1, "not allowed"),
    ("def f(n):\n  for i in range(1000000000):\n    n = i\nf(1)", 2, "cancelled"),
    ("def f(n):\n  f(n)\nf(1)", 2, "overflow"),
]


@pytest.mark.parametrize("text, line, words", BAD, ids=[repr(text[:30]) for text, _, _ in BAD])
def test_a_rule_that_cannot_be_says_where(text, line, words, monkeypatch):
    """A message without a line sends people through the whole file; a rule that is left out protects nobody."""
    from sandboxed_subprocess.commands import _starlark

    monkeypatch.setattr(_starlark, "_SECONDS", 0.2)
    with pytest.raises(RulesError, match=words) as caught:
        ExecPolicy.from_text(text, "bad.rules")
    assert caught.value.file == "bad.rules"
    if line is not None:
        assert caught.value.line == line and str(caught.value).startswith(f"bad.rules:{line}: ")
    assert pickle.loads(pickle.dumps(caught.value)).line == caught.value.line
    assert isinstance(caught.value, sp.PolicyError)


def test_the_example_that_fails_is_named():
    """They are tests of the rules; a test that fails says what it had."""
    with pytest.raises(RulesError) as caught:
        ExecPolicy.from_text('prefix_rule(["git", "push"], match = ["git push", "git pull"])', "r")
    assert caught.value.example == ("git", "pull") and caught.value.rule == 'prefix_rule(["git", "push"], decision="allow")'


def test_one_bad_file_is_an_error_of_all(tmp_path):
    """Left out, it would weaken the rules of the others: what it forbids would be allowed."""
    good, bad = tmp_path / "good.rules", tmp_path / "bad.rules"
    good.write_text('prefix_rule(["ls"])\n')
    bad.write_text('prefix_rule(["rm"], decision = "forbiden")\n')
    assert ExecPolicy.load(good).check(["ls"]).decision == "allow"
    with pytest.raises(RulesError, match=r"bad\.rules:1"):
        ExecPolicy.load(good, bad)
    with pytest.raises(FileNotFoundError):
        ExecPolicy.load(good, tmp_path / "none.rules")
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(RulesError, match="UTF-8"):
        ExecPolicy.load(bad)
    empty = tmp_path / "empty.rules"
    empty.write_text("")
    assert ExecPolicy.load(empty).check(["ls"]).decision == "prompt"


def test_rules_of_two_sources_add_up_and_the_stricter_default_stays():
    """A merge in which the last one wins lets a later file allow what an earlier one forbids."""
    first = ExecPolicy([prefix_rule(["git"]), prefix_rule(["rm"], "forbidden")])
    second = ExecPolicy([prefix_rule(["rm"]), prefix_rule(["git", "push"], "prompt")], default="allow")
    for merged in (first | second, second | first):
        assert merged.check(["rm", "x"]).decision == "forbidden"
        assert merged.check(["git", "push"]).decision == "prompt"
        assert merged.check(["git", "log"]).decision == "allow"
        assert merged.default == "prompt"
    assert (first | first).rules == first.rules
    assert (ExecPolicy.heuristics() | first).check(["ls"]).decision == "allow"
    with pytest.raises(TypeError):
        first | "rules"


@pytest.mark.parametrize("default", ["allow", "prompt", "forbidden"])
def test_the_default_decides_what_no_rule_is_about(default):
    """Permissive, cautious, paranoid."""
    policy = ExecPolicy([prefix_rule(["ls"])], default=default)
    assert policy.check(["cat", "x"]).decision == default
    assert policy.check(["ls"]).decision == "allow"
    assert policy.check("ls; cat x", shell=True).decision == default
    assert policy.check("", shell=True).decision == policy.check("# nothing", shell=True).decision == default
    assert policy.check("$X", shell=True).decision == ("forbidden" if default == "forbidden" else "prompt")


def test_a_policy_is_data():
    """It is a field of `Policy`, which is hashed, compared and sent to other processes."""
    policy = ExecPolicy.from_text(CODEX + STARLARK, "x") | ExecPolicy.heuristics()
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy and hash(again) == hash(policy) and again.check(["ls"]) == policy.check(["ls"])
    assert policy != policy.replace(default="allow") and policy.with_rules(prefix_rule(["x"])) != policy
    with pytest.raises(AttributeError):
        policy.default = "allow"
    for value in ("git", [("git",)], [3]):
        with pytest.raises(RulesError):
            ExecPolicy(value)
    with pytest.raises(RulesError):
        ExecPolicy(default="yes")
    whole = sp.Policy.workspace_write("/srv", commands=ExecPolicy([prefix_rule(["ls"])]))
    assert pickle.loads(pickle.dumps(whole)) == whole and hash(whole)
    stored = pickle.loads(pickle.dumps(whole.replace(trust=sp.TrustStore("/srv/approved.json"))))
    assert stored == whole and stored.trust.path == "/srv/approved.json"
    with pytest.raises(sp.PolicyError, match="not an ExecPolicy"):
        sp.Policy.workspace_write("/srv", commands=[prefix_rule(["ls"])])


def test_a_rule_is_written_as_it_is_read():
    """What an approver is offered to save has to be read again, quotes and all."""
    rules = [
        prefix_rule(["git", ["a", 'b"c'], "ä\\n\n"], "forbidden", 'a "reason"\n'),
        exact_rule(["npm", "test"]),
        prefix_rule(["x"], "prompt"),
    ]
    again = ExecPolicy.from_text("\n".join(map(str, rules)))
    assert [rule._replace(source=None) for rule in again.command_rules] == rules


@pytest.mark.parametrize("word, meaning", [("allowed", "allow"), ("deny", "forbidden"), ("denied", "forbidden")])
def test_decisions_have_synonyms(word, meaning):
    """Three tools, three words."""
    assert prefix_rule(["x"], word).decision == network_rule("h", decision=word).decision == meaning


def test_host_rules_are_the_policys_own():
    """One source: what the rules say of hosts is what the network is asked for; until that exists, it is refused by name."""
    rules = ExecPolicy([network_rule("api.github.com", 443), prefix_rule(["curl"])])
    policy = sp.Policy.workspace_write("/srv", commands=rules)
    assert policy.host_rules == rules.network_rules
    assert policy.replace(network=[network_rule("x.org")]).host_rules == (network_rule("x.org"), *rules.network_rules)
    only_forbidding = ExecPolicy([network_rule("evil.example", decision="deny")])
    assert sp.Policy.workspace_write("/srv", commands=only_forbidding).host_rules == "none"
    with pytest.raises(sp.PolicyError, match="both"):
        _ = sp.Policy.workspace_write("/srv", network=sp.danger.UNRESTRICTED_NETWORK, commands=rules).host_rules


def test_an_evaluation_says_what_decided():
    """A refusal without its reason is switched off."""
    policy = ExecPolicy.from_text('prefix_rule(["ls"])\nprefix_rule(["rm"], decision="deny", justification="use trash")', "t.rules")
    found = policy.check("ls && rm x", shell=True)
    assert found.justification == "use trash" and "t.rules:2" in found.reason
    assert [(part.argv, part.decision) for part in found.parts[1:]] == [(("ls",), "allow"), (("rm", "x"), "forbidden")]
    data = found.to_dict()
    assert data["decision"] == "forbidden" and data["parts"][2]["argv"] == ["rm", "x"] and data["rules"][1]["source"] == "t.rules:2"
    assert '"forbidden"' in found.to_json()
    assert policy.check(["ls"]).program.endswith("/ls")


@pytest.mark.parametrize("host", ["git", ["/usr/bin/git"]])
def test_rules_are_made_in_python_as_well(host):
    """`host_executable`, `prefix_rule` and `exact_rule` are functions of the package."""
    made = host_executable("git", ["/usr/bin/git"])
    assert ExecPolicy([made, prefix_rule(["git", "x"])]).check(["/usr/bin/git", "x"]).decision == "allow"
    with pytest.raises(RulesError):
        host_executable("git", host if isinstance(host, str) else ["git"])
