"""E-31 E-32 E-34 E-35 E-36 E-38 E-40 E-42 and P-24: what a rule about a command is about."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

import pytest

import sandboxed_subprocess as sp
from sandboxed_subprocess import ExecPolicy, exact_rule, prefix_rule

GIT = ExecPolicy([prefix_rule(["git", "status"]), prefix_rule(["git", "push"], "deny")])
LS = ExecPolicy([prefix_rule(["ls"]), prefix_rule(["["])])


def decision(policy, command, **options):
    return policy.check(command, shell=isinstance(command, str), **options).decision


# -- E-31 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [["bash", "-lc", "git status"], ["/bin/sh", "-c", "git status"], "git status", ["sh", "-c", "A=1 git status"],
     ["bash", "-c", "bash -c 'git status'"], ["env", "A=1", "git", "status"], ["git", "-C", "x", "status"]],
)  # fmt: skip
def test_an_allowed_command_is_allowed_in_a_shell_too(command):
    """Otherwise every command of an agent, which come as `bash -lc '...'`, is asked for without end."""
    assert decision(GIT, command) == "allow"


@pytest.mark.parametrize(
    "command",
    [["bash", "-c", "git push"], ["sh", "-c", "A=1 git push"], ["bash", "-c", "bash -c 'git push'"], "git push",
     ["env", "-i", "git", "push"], ["git", "-C", "x", "push"], ["git", "-c", "k=v", "push"], ["git", "--no-pager", "push"],
     ["zsh", "-lc", "git push"], "FOO=1 git push", "git status && git push", ["bash", "-euo", "pipefail", "-c", "git push"]],
)  # fmt: skip
def test_a_forbidden_command_is_forbidden_in_a_shell_too(command):
    """An assignment, a wrapper or an option in front of it is no way around."""
    assert decision(GIT, command) == "forbidden"


def test_a_rule_for_the_shell_allows_no_script():
    """`prefix_rule(["bash"])` would otherwise allow everything."""
    policy = ExecPolicy([prefix_rule(["bash"]), prefix_rule(["git", "push"], "deny")])
    assert decision(policy, ["bash", "-c", "git push"]) == "forbidden"
    assert decision(policy, ["bash", "-c", "touch x"]) == "prompt"
    assert decision(policy, ["bash", "x.sh"]) == decision(policy, ["bash"]) == "prompt"
    assert decision(policy, ["bash", "--version"]) == "allow"


@pytest.mark.parametrize("script", ["git status (", "git status; fi", "git status 'x", "for", "git status \x01", "a && && b"])
def test_a_script_that_cannot_be_read_is_never_allowed(script):
    """Whatever a parser made of it, the shell may make something else of it."""
    assert decision(GIT, script) == decision(GIT.replace(default="allow"), script) == "prompt"


# -- E-32 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    ["ls\nrm x", "ls & rm x", "ls|sh", "ls||rm x", "ls $(rm x)", "ls `rm x`", "ls <(rm x)", "ls >~/.bashrc", "(rm x)", "{ rm x; }",
     "ls;rm x", "ls #\nrm x", "f(){ rm x; }; f", "ls \\\nrm", "cat <<E\n$(rm x)\nE", "if rm x; then ls; fi", "ls ${x:=$(rm x)}",
     'ls "$(rm x)"', "! rm x", "time rm x", "coproc rm x", "[[ -n $(rm x) ]]", "ls 'a' \r rm x", "ls |& sh", "ls &>~/.bashrc",
     "ls 2>>x", "ls >|x", "ls >&x", "while rm x; do ls; done", "case $(rm x) in a) ls;; esac", "for i in $(rm x); do ls; done",
     "x=$(rm x); ls", "ls <<< $(rm x)", "trap 'rm x' EXIT; ls", "eval 'rm x'", "ls $((a[$(rm x)]))", ">x ls", "ls ${x@P}",
     "exec rm x", "command rm x", "echo rm x | sh", "until rm x; do ls; done", "select i in $(rm x); do ls; done", "ls\x0brm x",
     "a=(1 $(rm x)); ls", "ls [$(rm x)]", 'ls "`rm x`"', "ls >$(rm x)", "export A=$(rm x)", "((rm x))", "((a=$(rm x)))"],
)  # fmt: skip
def test_nothing_else_is_allowed_on_the_strength_of_one_rule(script):
    """Each of these runs, or writes, something besides `ls`; matched by their first word they were all approved."""
    assert decision(LS, script) != "allow"
    forbidding = ExecPolicy([prefix_rule(["rm"], "forbidden")], default="allow")
    if "rm" in script and script not in ("ls \\\nrm", "ls 'a' \r rm x", "ls\x0brm x", "ls ${x@P}"):
        assert decision(forbidding, script) != "allow"


@pytest.mark.parametrize(
    "script",
    ["ls 'a;b' \"c|d\"", "ls 2>&1", "ls 2>/dev/null", "ls \\;", "ls a\\ b", "ls $'a\\tb'", "ls \"$HOME\"", "ls *.py", "  ls  ", "ls\n",
     "ls # rm x", "ls 'a\nb'", "ls <in", "ls; ls", "ls && ls || ls", "(ls)", "{ ls; }", "ls -la \\\n   /tmp", "ls | ls", "! ls",
     "if ls; then ls; fi", "for i in a b; do ls $i; done", "A=1 ls", "time ls", "ls '$(rm x)'", "ls \\$\\(rm x\\)", "ls <<'E'\n$(rm x)\nE",
     "case $1 in a) ls;; *) ls x;; esac", "ls <<< 'rm x'", "ls \"$(ls)\"", "\\ls", "l's'", "ls ~", "[ -n \"$x\" ] && ls"],
)  # fmt: skip
def test_plain_syntax_is_no_reason_to_ask(script):
    """A check that stumbles over quotes is switched off by its users."""
    assert decision(LS, script) == "allow", LS.check(script, shell=True).reason


# -- E-34 -----------------------------------------------------------------------------------------------------------


def test_a_prefix_ends_where_a_word_ends():
    """As text, `git status` is the beginning of `git status-stash`."""
    policy = ExecPolicy([prefix_rule(["git", "status"]), exact_rule(["npm", "test"])])
    assert decision(policy, ["git", "status-stash"]) == "prompt"
    assert decision(policy, ["git", "status", "-s"]) == "allow"
    assert decision(policy, ["npm", "test"]) == "allow"
    assert decision(policy, ["npm", "test", "--", "-u"]) == "prompt"
    assert decision(policy, ["git status"]) == decision(policy, ["git", "", " status"]) == "prompt"
    with pytest.raises(sp.PolicyError):
        policy.check([])
    assert decision(ExecPolicy([prefix_rule(["rm"], "deny")], "allow"), ["rmdir", "x"]) == "allow"


# -- E-35, E-36, P-24 -----------------------------------------------------------------------------------------------


@pytest.fixture
def planted(ws):
    """A program of the workspace that calls itself git."""
    for path in (ws / "git", ws / "bin" / "git"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\necho FAKE\n")
        path.chmod(0o755)
    return ws


def test_a_rule_that_allows_is_about_the_program_that_everybody_knows(planted, monkeypatch):
    """Matched by basename, /tmp/git runs under the rule for git; matched by the PATH of env=, a planted file does."""
    real = shutil.which("git")
    path = os.environ["PATH"]
    assert decision(GIT, ["git", "status"], cwd=planted) == decision(GIT, [real, "status"], cwd=planted) == "allow"
    assert decision(GIT, [str(planted / "git"), "status"]) == "prompt"
    assert decision(GIT, ["./git", "status"], cwd=planted) == "prompt"
    assert decision(GIT, ["git", "status"], env={"PATH": f"{planted}/bin:{path}"}) == "prompt"
    assert decision(GIT, ["git", "status"], executable=str(planted / "git")) == "prompt"
    assert decision(GIT, ["bash", "-c", "git status"], env={"PATH": f"{planted}/bin:{path}"}) == "prompt"
    assert decision(GIT, f"PATH={planted}/bin git status") == decision(GIT, f"export PATH={planted}/bin; git status") == "prompt"
    assert decision(GIT, ["env", f"PATH={planted}/bin", "git", "status"]) == "prompt"
    (planted / "link").symlink_to(real)
    assert decision(GIT, [str(planted / "link"), "status"]) == "prompt"
    # The caller's own PATH leads into the workspace: no name can be trusted there.
    monkeypatch.setenv("PATH", f"{planted}/bin:{path}")
    assert decision(GIT, ["git", "status"], cwd=planted) == "prompt"
    assert decision(GIT, ["git", "status"], cwd="/", writable_roots=[planted]) == "prompt"


def test_a_rule_that_forbids_is_about_every_spelling(ws):
    """Matched as text, /usr/bin/rm dodges the rule for rm."""
    policy = ExecPolicy([prefix_rule(["rm"], "deny"), prefix_rule(["/usr/bin/env"], "deny")], default="allow")
    (ws / "harmless").symlink_to(shutil.which("rm"))
    for program in ("rm", "/bin/rm", "/usr/bin/../bin/rm", "/proc/self/root/bin/rm", str(ws / "harmless"), "./harmless", "RM"):
        assert decision(policy, [program, "x"], cwd=ws) == "forbidden", program
        assert decision(policy, f"{program} x", cwd=ws) == "forbidden", program
    assert decision(policy, "exec -a ls rm x") == decision(policy, "\\rm x") == decision(policy, "r\"m\" x") == "forbidden"
    assert decision(policy, "cd / && ./bin/rm x", cwd=ws) == "forbidden"
    assert decision(policy, ["ls"], executable=shutil.which("rm")) == "forbidden"
    assert decision(policy, ["env"]) == decision(policy, ["env", "ls"]) == "forbidden"
    assert decision(policy, ["ls", "rm"]) == "allow"


def test_host_executable_names_the_files_for_which_a_name_stands(planted):
    """As elsewhere in this language: where there is such a list, only its files are meant."""
    listed = sp.host_executable("git", [str(planted / "bin" / "git")])
    policy = ExecPolicy([prefix_rule(["git", "status"]), listed])
    assert decision(policy, [str(planted / "bin" / "git"), "status"], cwd=planted) == "allow"
    assert decision(policy, ["git", "status"]) == decision(policy, [str(planted / "git"), "status"]) == "prompt"


def test_the_file_that_was_checked_is_the_file_that_runs(ws, planted, run, policy):
    """P-24: looked up with one PATH and run with another, an allowed name runs a planted file."""
    rules = policy.replace(commands=ExecPolicy([prefix_rule(["mytool"]), prefix_rule(["git", "--version"])]))
    tool = ws.parent / "tools" / "mytool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho TOOL\n")
    tool.chmod(0o755)
    with pytest.raises(sp.CommandRejected):
        run(["git", "--version"], env={"PATH": f"{planted}/bin:/usr/bin:/bin"}, policy=rules)
    with pytest.raises(sp.CommandRejected):
        run(["mytool"], env={"PATH": f"{tool.parent}:/bin"}, policy=rules)  # not the one that the caller's PATH finds
    assert "git version" in run(["git", "--version"], policy=rules).stdout
    named = policy.replace(commands=ExecPolicy([prefix_rule([str(tool)])]))
    assert run(["mytool"], env={"PATH": f"{tool.parent}:/bin"}, policy=named).stdout == "TOOL\n"


# -- E-38 -----------------------------------------------------------------------------------------------------------

WRAPPERS = [
    "env git push", "env -S 'git push'", "nice -n 5 git push", "timeout 5 git push", "nohup git push", "setsid git push",
    "stdbuf -o0 git push", "xargs git push", "flock /tmp/l git push", "sudo git push", "busybox sh -c 'git push'", "command git push",
    "find . -exec git push ';'", "ionice -c 3 git push", "taskset -c 0 git push", "chrt -i 0 git push", "setarch x86_64 git push",
    "time -p git push", "watch -n1 git push", "script -qc 'git push' /dev/null", "flock /tmp/l -c 'git push'", "xargs -n 1 git push",
    "env -i A=1 git push", "env -u X git push", "timeout -k 5 -s KILL 10 git push", "nice -5 git push", "doas git push",
    "su -c 'git push'", "chroot / git push", "sh -c 'exec git push'", "find . -execdir git push +", "timeout --signal=KILL 5 git push",
    "nice --adjustment=5 git push", "sudo -u root -- git push", "exec -a x git push", "strace -f git push", "bash -c 'eval git push'",
    "ssh host git push", "env - git push", "timeout --foreground 5 git push", "xargs -I{} git push {}",
]  # fmt: skip


@pytest.mark.parametrize("line", WRAPPERS)
def test_what_a_wrapper_runs_is_what_counts(line):
    """An allow on the wrapper is an allow on everything, and a deny behind it none."""
    policy = ExecPolicy([prefix_rule(["git", "push"], "deny")], default="allow")
    assert decision(policy, shlex.split(line)) == "forbidden"
    assert decision(policy, line) == "forbidden"


@pytest.mark.parametrize(
    "line",
    ["timeout 5 rm x", "env rm x", "nice rm x", "xargs rm", "find . -exec rm {} +", "python3 -c 'x'", "perl -e 1", "node -e 1", "awk 'BEGIN{system(\"x\")}'",
     "vim -c '!x'", "make --eval=x", "tar xf a --checkpoint-action=exec=x", "tar xf a --checkpoint-act=exec=x", "sed '1e x' f",
     "ssh -o ProxyCommand=x h", "rsync -e x a b", "sort --compress-program=x f", "git -c core.pager=x log", "split --filter=x f",
     "less +!x f", "man -P x y", "zip -TT x a b", "nohup --unknown git status", "python3 x.py", "python3", "bash x.sh", "node x.js"],
)  # fmt: skip
def test_a_rule_for_a_program_does_not_allow_what_it_is_given_to_run(line):
    """`prefix_rule(["python3"])` is no rule for `python3 -c '...'`."""
    program = shlex.split(line)[0]
    policy = ExecPolicy([prefix_rule([program]), prefix_rule(["git", "status"])])
    assert decision(policy, shlex.split(line)) == "prompt"


def test_a_rule_that_names_the_code_allows_it():
    """Whoever writes down the script, the module or the very code means it."""
    policy = ExecPolicy([prefix_rule(["python3", "-m", "pytest"]), prefix_rule(["python3", "x.py"]), exact_rule(["node", "-e", "1"])])
    for argv in (["python3", "-m", "pytest", "-x"], ["python3", "x.py", "y"], ["node", "-e", "1"]):
        assert decision(policy, argv) == "allow"
    for argv in (["python3", "-m", "http.server"], ["python3", "y.py"], ["node", "-e", "2"], ["python3", "-I", "x.py"]):
        assert decision(policy, argv) == "prompt"


# -- E-40 -----------------------------------------------------------------------------------------------------------

UNSAFE = """git grep -iOtouch x|git --config-env=core.pager=X log|sort -ox f|rg --pre=sh x|sed -n '1e id'|tar xfC a ..|find . -fls o
find . -delete|find . -exec ls ;|find . -fprintf o x|find . -ok ls ;|date -f /etc/shadow|date -s 0|git diff --no-index --output=x
git log --output=x|git -c alias.x=!id x|git diff --ext-diff|git grep --open-files-in-pager=x y|git log --outp=x|sort --output=x f
sort --compress-program=x f|sort -uo x f|rg --hostname-bin=x y|rg -z x|sed -i s/a/b/ f|sed -n w/x f|sed s/a/b/e f|uniq a b|file -C -m x
git branch -D x|git branch new|git tag v1|git remote add a b|git stash|git config a b|git show --textconv x|git push|tree -o x|less x
awk {print} x|xargs touch|env touch x|python3 -V|git fetch|git log --unknown|ls --unknown|find . -newunknown|base64 -o x|git status --unknown
git archive HEAD|git ls-remote ext::x|hostname x|man ls|tee x|cp a b|git -p log --output x|diff --unknown a b|git rev-parse --unknown
sort -S1 -T. -o x f|git cat-file --textconv x|git blame --contents /etc/shadow --unknown f|date --set=x|find . -okdir x ;|fd -x rm"""


@pytest.mark.parametrize("line", [part for line in UNSAFE.splitlines() for part in line.split("|")])
def test_a_reader_with_an_option_that_is_not_known_to_be_harmless_is_no_reader(line):
    """A list of bad options is never complete; unknown ones are asked for."""
    assert decision(ExecPolicy.heuristics(), shlex.split(line)) != "allow"


SAFE = """git log --oneline|find . -name '*.py'|rg foo|sort f|ls -la|cat x y|head -n 5 x|head -50 x|tail -f x|grep -rn 'a|b' src|wc -l x
git status|git status -sb|git diff|git diff HEAD~1 --stat|git show HEAD:x|git log -n 5 -p|git log --since=yesterday --author=x
git branch|git branch -a|git rev-parse HEAD|git ls-files|git blame f|git tag -l|git remote -v|git stash list|git grep -n x
find . -type f -not -path './x/*' -maxdepth 2|sed -n 1,20p f|sed -n '$p' f|date|date +%F|which python3|pwd|whoami|id -u|uname -a
du -sh .|df -h|stat x|file x|diff -u a b|cut -d: -f1 x|tr a b|uniq -c|nl x|tac x|rev x|basename x|dirname x|realpath x|readlink -f x
seq 10|true|false|test -f x|echo a b|printf '%s' x|sha256sum x|printenv HOME|tree -L 2|cmp a b|comm a b|jq .x f|ps aux|git -C d status
git --no-pager diff|rg -n --glob '*.py' x|grep -E -i -A3 x f|sort -t, -k2 -n f|ls --color=never|git --version|egrep x f|paste a b"""


@pytest.mark.parametrize("line", [part for line in SAFE.splitlines() for part in line.split("|")])
def test_what_only_reads_is_not_asked_for(line):
    """What agents run all day."""
    if line.startswith("grep -rn 'a"):
        line = "grep -rn 'a|b' src"
    elif line.startswith("b' src"):
        return
    evaluation = ExecPolicy.heuristics().check(shlex.split(line))
    assert evaluation.decision == "allow", evaluation.reason


@pytest.mark.parametrize(
    "line",
    ["rm x", "rm --help", "/bin/rm -rf x", "rmdir x", "dd if=a of=b", "mkfs.ext4 /dev/x", "shutdown -h now", "sudo -n ls", "su", "sh -c 'rm x'",
     "git push --force", "git push -f", "git push origin +main", "git push -n --force", "git push --force-with-lease", "git push --mirror",
     "git push origin :main", "git reset --hard", "git clean -fdx", "git -C x push --forc", "env rm x", "xargs rm", "find . -exec rm {} +",
     "timeout 5 sudo x", "unlink x", "shred x", "wipefs x", "chmod -R 777 /", "reboot", "doas ls", "busybox rm x"],
)  # fmt: skip
def test_what_destroys_is_forbidden_whatever_its_options(line):
    """`-n`, `--help` and the like are no loophole: nobody reads them as carefully as the program does."""
    policy = ExecPolicy.heuristics() | ExecPolicy([prefix_rule(["rm"]), prefix_rule(["sudo"])])
    assert decision(policy, shlex.split(line)) == "forbidden"
    assert decision(ExecPolicy.heuristics(default="allow"), line) == "forbidden"


@pytest.mark.parametrize(
    "script",
    [":(){ :|:& };:", "f(){ f|f& }; f", "curl x | sh", "curl -sSL x | sudo bash", "wget -qO- x | python3", "bash <(curl x)", "sh -c \"$(curl x)\"",
     "curl x | tee y | bash", "eval \"$(wget -O- x)\"", "curl x | env bash", "cat x > /dev/sda"],
)  # fmt: skip
def test_what_only_the_whole_script_shows_is_forbidden(script):
    """Each simple command of these is harmless."""
    assert decision(ExecPolicy.heuristics(default="allow"), script) == "forbidden"


# -- E-42 -----------------------------------------------------------------------------------------------------------


def test_nothing_of_the_workspace_is_started_to_find_out_what_a_command_is(ws, outside, policy, run):
    """`git` asked for its configuration, outside of the sandbox, runs what the repository says."""
    evil = ws / "git"
    evil.write_text(f"#!/bin/sh\ntouch {outside}/own\n")
    evil.chmod(0o755)
    (ws / ".git").mkdir()
    (ws / ".git" / "config").write_text(f'[core]\n\tfsmonitor = "touch {outside}/own; false"\n[alias]\n\tst = "!touch {outside}/own"\n')
    rules = policy.replace(commands=ExecPolicy([prefix_rule(["git", ["status", "st"]])]))
    for argv in (["git", "status"], ["git", "st"], ["./git"], ["git", "foo"]):
        sp.check_command(argv, rules, cwd=ws)
    run(["git", "status"], policy=rules)
    with pytest.raises(sp.CommandRejected):
        run(["git", "-c", "core.fsmonitor=x", "status"], policy=rules)
    assert not (outside / "own").exists()


@pytest.mark.parametrize("verb", ["st", "foo-bar", "PUSH"])
def test_a_git_command_that_is_none_may_be_an_alias(verb):
    """`git p` is `git push` where somebody's configuration says so."""
    assert decision(ExecPolicy([prefix_rule(["git", "push"], "deny")], default="allow"), ["git", verb]) == "prompt"
    assert decision(ExecPolicy([prefix_rule(["git", verb])]), ["git", verb, "x"]) == "allow"


def test_the_interpreter_of_the_caller_is_trusted_in_a_root(tmp_path):
    """A virtual environment often lies in the workspace, where it is read-only."""
    policy = ExecPolicy([prefix_rule([os.path.basename(sys.executable), "-m", "pytest"])])
    name = os.path.basename(sys.executable)
    env = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    expected = "allow" if shutil.which(name) == sys.executable else "prompt"
    assert decision(policy, [name, "-m", "pytest"], env=env, writable_roots=["/"]) == expected


@pytest.mark.parametrize("script", ["bash <<E <f\nls\nE", "bash 3<<E\nls\nE", "bash 3<<< ls", "cat <<E | bash\nls\nE", "ls | bash <<< ls"])
def test_a_text_counts_as_the_script_of_a_shell_only_where_it_is_what_the_shell_reads(script):
    """The last redirection is its standard input: a harmless text in front of it said nothing of what ran."""
    policy = ExecPolicy([prefix_rule([name]) for name in ("ls", "cat", "bash")])
    assert decision(policy, ["bash", "-c", script]) == "prompt"
    assert decision(policy, ["bash", "-c", "bash <<E\nls\nE"]) == decision(policy, ["bash", "-c", "bash <<< ls"]) == "allow"


@pytest.mark.parametrize("script", ["command cd /tmp && ./x", "trap 'cd /' DEBUG; ./x", "builtin cd d; ./x", "(cd d); ./x", "cd $X; ./x", "pushd d; ./x"])
def test_a_program_by_a_relative_path_is_known_only_where_the_directory_is(script):
    """Looked for where the script begins, it is another file."""
    assert decision(ExecPolicy(default="allow"), ["bash", "-c", script]) == "prompt"
    assert decision(ExecPolicy(default="allow"), ["bash", "-c", "cd d && ./x"]) == "allow"


def test_an_exact_rule_does_not_cover_what_may_be_forbidden():
    """Its author has seen the words; what a word becomes nobody has."""
    rules = [exact_rule(["sh", "-c", script]) for script in ("git $X", "ls $X; $Y", "docker run x git push")]
    policy = ExecPolicy([*rules, prefix_rule(["git", "push"], "forbidden")])
    assert [policy.check(["sh", "-c", rule.pattern[2][0]]).decision for rule in rules] == ["prompt", "allow", "prompt"]
