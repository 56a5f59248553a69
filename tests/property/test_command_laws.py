"""Laws of command rules: what may change a decision, and what may not."""

from __future__ import annotations

import os
import shlex

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sandboxed_subprocess as sp
from sandboxed_subprocess import CommandRejected, ExecPolicy, exact_rule, prefix_rule
from sandboxed_subprocess.commands._rules import STRICTNESS

# Not installed anywhere, or everywhere: what a name stands for is another matter.
programs = st.sampled_from(["ls", "cat", "git", "kubectl-x", "frob"])
words = st.sampled_from(["status", "push", "-f", "--all", "a b", "x;y", "$HOME", "'", '"', "*", "", "ä", "\\", "#x", "~", "{a,b}", "-", "\t"])
vectors = st.builds(lambda program, rest: [program, *rest], programs, st.lists(words, max_size=4))
tokens = st.one_of(words, st.lists(words, min_size=1, max_size=3))
decisions = st.sampled_from(["allow", "prompt", "forbidden"])
rules = st.one_of(
    st.builds(lambda p, rest, d: prefix_rule([p, *rest], d), programs, st.lists(tokens, max_size=2), decisions),
    st.builds(lambda v, d: exact_rule(v, d), vectors, decisions),
)
policies = st.builds(lambda found, default: ExecPolicy(found, default), st.lists(rules, max_size=6), decisions)
quick = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def strict(evaluation):
    return STRICTNESS[evaluation.decision]


@given(policies, rules, vectors)
@quick
def test_one_more_rule_never_weakens_what_rules_decide(policy, rule, argv):
    """A later file must not allow what an earlier one forbids. Only what no rule has decided gives way: the default, and what is
    asked for because no rule speaks of the code in it."""
    before, after = policy.check(argv), policy.with_rules(rule).check(argv)
    assert strict(after) >= max([STRICTNESS[found.decision] for found in before.rules], default=0)
    if rule.decision != "allow" and (before.rules or policy.default != "forbidden"):
        assert strict(after) >= strict(before)
    if before.decision == "allow" and rule.decision == "allow":
        assert after.decision == "allow"
    assert strict(after) >= STRICTNESS[rule.decision] or rule not in after.rules


@given(policies, policies, vectors)
@quick
def test_the_order_of_rules_and_of_files_means_nothing(first, second, argv):
    """The strictest wins, not the last."""
    assert (first | second).check(argv).decision == (second | first).check(argv).decision


@given(policies, policies, vectors)
@quick
def test_a_merge_is_at_least_as_strict_as_what_decided_in_either(first, second, argv):
    """`a | b` adds rules; it takes none away."""
    merged = strict((first | second).check(argv))
    for one in (first, second):
        found = one.check(argv)
        if found.rules:
            assert merged >= strict(found)


@given(policies, st.lists(vectors, min_size=1, max_size=4), st.sampled_from(["; ", " && ", " || ", " | ", "\n", " & "]))
@quick
def test_a_script_is_as_strict_as_its_strictest_command(policy, argvs, separator):
    """Joined in whatever way, commands are no more allowed than alone."""
    script = separator.join(shlex.join(argv) for argv in argvs)
    whole = strict(policy.check(script, shell=True))
    alone = max(strict(policy.check(argv)) for argv in argvs)
    assert whole >= alone
    if not any(separator.strip() in word for argv in argvs for word in argv):
        assert whole == alone or any("[" in word or word in ("{", "}") for argv in argvs for word in argv)


WRAPPED = ["env {}", "nice -n 5 {}", "timeout 5 {}", "sh -c {quoted}", "bash -lc {quoted}", "({})", "{{ {}; }}", "if {}; then {}; fi",
           "! {}", "time {}", "nohup {}", "env A=1 {}", "for i in 1; do {}; done", "eval {quoted}", "A=1 {}", "{} 2>&1", "{} </dev/null"]  # fmt: skip


@given(policies, vectors, st.sampled_from(WRAPPED))
@quick
def test_what_is_around_a_command_makes_it_no_weaker(policy, argv, form):
    """A wrapper is looked into; one that weakens a decision would be used for that."""
    line = shlex.join(argv)
    wrapped = form.format(line, line, quoted=shlex.quote(line))
    assert strict(policy.check(wrapped, shell=True)) >= strict(policy.check(argv))


def ansi(word):
    return "$'" + "".join(f"\\x{byte:02x}" for byte in os.fsencode(word)) + "'"


def double(word):
    return '"' + "".join(f"\\{c}" if c in '$`"\\' else c for c in word) + '"'


quotings = st.sampled_from([shlex.quote, double, ansi, lambda w: "''" + shlex.quote(w), lambda w: shlex.quote(w) + '""'])


@given(policies, vectors, st.data())
@quick
def test_how_a_command_is_written_changes_nothing(policy, argv, data):
    """`git push`, `"git"   pu's'h`, `$'git' push`: one command, one decision."""
    line = "  ".join(data.draw(quotings)(word) for word in argv)
    expected = policy.check(argv)
    for script in (line, f"  {line}  ", f"{line}\n", f"{line} # comment", line.replace("  ", " \\\n  ")):
        found = policy.check(["bash", "-c", script])
        assert found.decision == expected.decision, (script, found.reason)


@given(policies, vectors)
@settings(max_examples=40, deadline=None)
def test_what_check_says_is_what_run_does(policy, argv):
    """Asked twice, in two ways, the same question has one answer."""
    whole = sp.Policy.danger_full_access(commands=policy)
    try:
        sp.run(argv, policy=whole, capture_output=True, stdin=sp.DEVNULL, cwd="/", timeout=20)
        ran = True
    except CommandRejected:
        ran = False
    except (OSError, sp.TimeoutExpired):
        ran = True  # the rules let it through
    assert ran == (sp.check_command(argv, whole, cwd="/").decision == "allow")


pieces = st.sampled_from([*"ab $`'\"\\;&|<>(){}[]*?!#~=\n\t\r-x0:@%^,./+é\u00a0", "$(", "<<", "ls", "rm", "do", "done", "fi", "E\n", "\udc80"])
texts = st.lists(pieces, max_size=40).map("".join)


@given(texts, st.booleans())
@settings(max_examples=500, deadline=None)
def test_no_script_is_an_error(script, heuristics):
    """Whatever a model writes, the answer is a decision."""
    policy = ExecPolicy.heuristics() if heuristics else ExecPolicy([prefix_rule(["ls"])], "allow")
    for shell in ("sh", "bash", "zsh"):
        assert policy.check([shell, "-c", script]).decision in ("allow", "prompt", "forbidden")
    assert policy.check([*script.split("a"), "x"] if script.split("a")[0] else ["x"]).decision
