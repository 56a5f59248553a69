"""Command rules at work: what runs, who is asked, what is remembered, and what the report says of it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import stat
import subprocess
import sys
import threading

import pytest
from conftest import needs_package

import sandboxed_subprocess as sp
from sandboxed_subprocess import Answer, CommandRejected, ExecPolicy, TrustStore, aio, exact_rule, prefix_rule

RULES = ExecPolicy(
    [
        prefix_rule(["echo"]),
        prefix_rule(["touch"], "prompt", "it writes"),
        prefix_rule(["rm"], "forbidden", "move it to trash/"),
    ]
)


@pytest.fixture
def ruled(policy):
    return policy.replace(commands=RULES, trust=TrustStore())


def test_what_is_allowed_runs_in_its_sandbox_all_the_same(run, ruled, outside):
    """Allow means no question; it never means no sandbox."""
    rules = ruled.replace(commands=RULES.with_rules(prefix_rule(["touch", str(outside / "x")]), prefix_rule(["cp"])))
    result = run(["echo", "hi"], policy=ruled)
    assert result.stdout == "hi\n" and result.sandbox.approval.by == "rules" and result.sandbox.approval.answer is None
    assert run(["cp", "/etc/hostname", outside / "x"], policy=rules).returncode != 0
    assert not (outside / "x").exists()
    assert run(["echo", "hi"], policy=ruled.replace(commands=None)).sandbox.approval is None


def test_what_is_forbidden_does_not_run(run, ruled, ws):
    """And says which rule, and why, as the permission error that callers catch already."""
    (ws / "x").write_text("kept")
    for args, options in ((["rm", "x"], {}), ("echo a; rm x", {"shell": True}), (["sh", "-c", "rm x"], {}), (["env", "rm", "x"], {})):
        with pytest.raises(CommandRejected, match="trash") as caught:
            run(args, policy=ruled, **options)
        assert isinstance(caught.value, PermissionError) and isinstance(caught.value, sp.SandboxError)
        assert caught.value.errno == 13 and caught.value.justification == "move it to trash/" and '["rm"]' in caught.value.rule
        assert caught.value.filename == ("/bin/sh" if options else args[0])
    assert (ws / "x").read_text() == "kept"


def test_without_an_approver_a_prompt_is_a_refusal(run, ruled, ws):
    """Nobody to ask is not a yes."""
    with pytest.raises(CommandRejected, match="approver="):
        run(["touch", "made"], policy=ruled)
    with pytest.raises(CommandRejected, match="no rule"):
        run(["true"], policy=ruled)
    assert list(ws.iterdir()) == []


@pytest.mark.parametrize("answer, runs", [("once", True), (True, True), (Answer("once"), True), ("deny", False), (False, False), (None, False),
                                          ("yes", False), (1, False), (Answer("deny", reason="not today"), False)])  # fmt: skip
def test_the_approver_decides_and_what_is_no_answer_is_no(run, ruled, ws, answer, runs):
    """A function that forgets its return says None."""
    asked = []

    def approver(request):
        asked.append(request)
        return answer

    policy = ruled.replace(approver=approver)
    if runs:
        result = run(["touch", "made"], policy=policy)
        assert result.sandbox.approval.by == "approver" and result.sandbox.approval.answer == "once"
        run(["touch", "made"], policy=policy)
        assert len(asked) == 2  # once is once
    else:
        with pytest.raises(CommandRejected):
            run(["touch", "made"], policy=policy)
    assert (ws / "made").exists() == runs
    request = asked[0]
    assert request.argv == ("touch", "made") and request.cwd == str(ws) and request.justification == "it writes"
    assert request.rules == ('prefix_rule(["touch"], decision="prompt", justification="it writes")',)
    assert f"write: {ws}" in request.permits and "network: none" in request.permits and request.upgrade is None
    assert str(request.suggested_rule) == 'prefix_rule(["touch", "made"], decision="allow")'
    assert [part.argv for part in request.parts] == [("touch", "made")]


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError(), KeyError("y"), CommandRejected(13, "z")])
def test_an_approver_that_fails_means_no(run, ruled, ws, error):
    """A time-out of whoever is asked is one, too."""

    def approver(request):
        raise error

    with pytest.raises(CommandRejected, match=type(error).__name__):
        run(["touch", "made"], policy=ruled.replace(approver=approver))
    assert not (ws / "made").exists()


def test_control_c_at_the_question_goes_through(run, ruled, ws):
    """It is no answer: whoever presses it wants out."""

    def approver(request):
        raise KeyboardInterrupt

    with pytest.raises(BaseException) as caught:
        run(["touch", "made"], policy=ruled.replace(approver=approver))
    assert isinstance(caught.value, KeyboardInterrupt) or "KeyboardInterrupt" in repr(caught.value)
    assert not (ws / "made").exists()


def test_for_the_session_means_this_vector_in_this_directory_under_this_policy(run, ruled, ws):
    """What was approved in one place is another command in another."""
    asked = []
    policy = ruled.replace(approver=lambda request: asked.append(request) or "session")
    (ws / "sub").mkdir()
    for options in ({}, {}, {"cwd": ws / "sub"}, {"policy": policy.replace(git="commit")}):
        run(["touch", "made"], **{"policy": policy, **options})
    assert len(asked) == 3
    run(["touch", "other"], policy=policy)
    assert len(asked) == 4
    # Another file of that name, and another environment that can make it run something else, were not asked about.
    tools = ws.parent / "tools"
    tools.mkdir()
    (tools / "touch").symlink_to("/bin/true")
    run(["touch", "made"], policy=policy, env={"PATH": f"{tools}:{os.environ['PATH']}"})
    run(["touch", "made"], policy=policy, env={**os.environ, "GCONV_PATH": "x"})
    assert len(asked) == 6
    del asked[4:]
    again = run(["touch", "other"], policy=policy)
    assert again.sandbox.approval.by == "trust" and len(asked) == 4
    policy.trust.clear()
    run(["touch", "other"], policy=policy)
    assert len(asked) == 5


def test_equal_policies_of_a_process_share_what_was_approved(run, policy, ws):
    """A policy is data: made anew for each call it is still the same."""
    asked = []

    def again():
        return policy.replace(commands=RULES, approver=lambda request: asked.append(request) or "session")

    run(["touch", "made-once"], policy=again())
    run(["touch", "made-once"], policy=again())
    assert len(asked) == 1


def test_a_rule_for_the_session_covers_what_it_says_and_nothing_more(run, ruled, ws):
    """An amendment is as narrow as its words, and never lifts what is forbidden or cannot be looked into."""
    asked = []
    answers = iter([Answer("session", prefix_rule(["touch", "a"])), *["deny"] * 9])
    policy = ruled.replace(approver=lambda request: asked.append(request.argv) or next(answers))
    run(["touch", "a", "b"], policy=policy)
    assert run(["touch", "a", "c"], policy=policy).sandbox.approval.by == "trust"
    assert run("echo x; touch a d", shell=True, policy=policy).sandbox.approval.by == "trust"
    for args in (["touch", "b"], ["./touch", "a"], ["touch a"]):
        with pytest.raises((CommandRejected, FileNotFoundError)):
            run(args, policy=policy)
    for script in ("touch a; rm a", "touch a; $X", "touch a; true", "touch a > y", "touch a $(true)"):
        with pytest.raises(CommandRejected):
            run(script, shell=True, policy=policy)
    assert sorted(path.name for path in ws.iterdir()) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("rule, runs", [('prefix_rule(["touch", "a"])', True), ("prefix_rule([])", False), ("x", False), ("", False),
                                        ('prefix_rule(["touch"], decision="deny")', False)])  # fmt: skip
def test_an_approver_may_give_its_rule_as_text(run, ruled, ws, rule, runs):
    """As it is shown, and saved. A text that is no rule is no approval."""
    policy = ruled.replace(approver=lambda request: ("session", rule))
    if runs:
        run(["touch", "a"], policy=policy)
        assert run(["touch", "a", "b"], policy=policy.replace(approver=None)).sandbox.approval.by == "trust"
    else:
        with pytest.raises(CommandRejected):
            run(["touch", "a"], policy=policy)
    assert (ws / "a").exists() == runs


def test_a_rule_that_was_approved_under_one_policy_is_none_under_another(run, ruled, ws):
    """One store for two policies: what may run where nothing can be reached is not yet what may run where everything can."""
    store = TrustStore()
    policy = ruled.replace(trust=store, approver=lambda request: Answer("session", prefix_rule(["touch"])))
    run(["touch", "a"], policy=policy)
    assert run(["touch", "b"], policy=policy.replace(approver=None)).sandbox.approval.by == "trust"
    with pytest.raises(CommandRejected):
        run(["touch", "c"], policy=policy.replace(approver=None, git="commit"))


def test_what_is_approved_always_is_saved_and_holds_elsewhere(run, ruled, place, ws):
    """In a file that commands cannot write, under a lock, and read again when another process has written it."""
    asked = []
    file = place / "approved.json"
    policy = ruled.replace(trust=TrustStore(file), approver=lambda request: asked.append(request.argv) or "always")
    result = run(["touch", "made"], policy=policy)
    assert result.sandbox.approval.rule == 'prefix_rule(["touch", "made"], decision="allow")'
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    later = ruled.replace(trust=TrustStore(file), approver=lambda request: "deny")
    assert run(["touch", "made"], policy=later).sandbox.approval.by == "trust"
    # A script with several parts has no rule that would cover it: it is saved as it is.
    run("touch a; touch b", shell=True, policy=policy)
    other = TrustStore(file)
    assert run("touch a; touch b", shell=True, policy=later.replace(trust=other)).sandbox.approval.by == "trust"
    with pytest.raises(CommandRejected):
        run("touch a; touch c", shell=True, policy=later.replace(trust=other))
    assert len(json.loads(file.read_text())["commands"]) == 1 and len(asked) == 2
    assert not list(place.glob("*.new"))


def test_a_file_of_approvals_that_cannot_be_trusted_is_an_error(run, ruled, place, ws):
    """Written by others, or by a command, it says what they want."""
    for content in ("{", "[]", '{"version": 2, "commands": [], "rules": []}', '{"version": 1}',
                    '{"version": 1, "commands": [{"argv": 3}], "rules": []}'):  # fmt: skip
        (place / "approved.json").write_text(content)
        with pytest.raises(sp.PolicyError, match=r"approved\.json"):
            run(["touch", "a"], policy=ruled.replace(trust=TrustStore(place / "approved.json")))
    (place / "approved.json").write_text('{"version": 1, "commands": [], "rules": []}')
    (place / "approved.json").chmod(0o666)
    with pytest.raises(sp.PolicyError, match="others can write"):
        run(["touch", "a"], policy=ruled.replace(trust=TrustStore(place / "approved.json")))
    with pytest.raises(sp.PolicyError, match="where a command can write"):
        run(["touch", "a"], policy=ruled.replace(trust=TrustStore(ws / "approved.json")))
    assert list(ws.iterdir()) == []


def test_many_processes_save_at_once_and_nothing_is_lost(place, ruled):
    """Two agents, one file: written without a lock, the last one wins."""
    code = (
        "import sys, sandboxed_subprocess as sp\n"
        "from sandboxed_subprocess.commands._trust import Key\n"
        "store = sp.TrustStore(sys.argv[1])\n"
        "for i in range(10): store.add(Key(('touch', f'{sys.argv[2]}-{i}'), None, '/', 'p'), always=True)\n"
    )
    file = place / "approved.json"
    running = [subprocess.Popen([sys.executable, "-c", code, file, str(n)]) for n in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert len(json.loads(file.read_text())["commands"]) == 40


def test_a_vector_that_a_rule_allows_to_the_last_word_is_allowed_with_all_that_is_in_it(run, ruled, ws):
    """The rule's author has seen the script; what other rules forbid stays forbidden."""
    script = "touch made && ls"
    rules = ExecPolicy([exact_rule(["/bin/sh", "-c", script]), exact_rule(["/bin/sh", "-c", "rm made"]), prefix_rule(["rm"], "deny")])
    assert run(script, shell=True, policy=ruled.replace(commands=rules)).returncode == 0
    with pytest.raises(CommandRejected):
        run("rm made", shell=True, policy=ruled.replace(commands=rules))
    with pytest.raises(CommandRejected):
        run(script + " ", shell=True, policy=ruled.replace(commands=rules))
    assert (ws / "made").exists()


def test_what_is_executed_is_what_was_asked_about(run, ruled, ws, world):
    """Arguments that change between the question and the start would run what nobody approved."""
    args = ["touch", "good"]

    class Path:
        said = iter(["good", "evil", "evil", "evil"])

        def __fspath__(self):
            return next(self.said)

    def approver(request):
        args[1] = "evil"
        environment["X"] = "evil"
        return "once"

    environment = {"PATH": os.environ["PATH"], "X": "good"}
    run(args, policy=ruled.replace(approver=approver), env=environment)
    run(["touch", Path()], policy=ruled.replace(approver=lambda request: "once"))
    run((word for word in ("touch", "good2")), policy=ruled.replace(approver=lambda request: "once"))
    assert sorted(path.name for path in ws.iterdir()) == ["good", "good2"]


def test_a_program_that_is_put_in_the_way_meanwhile_is_not_run(run, ruled, place, ws):
    """Found anew after the question, an earlier directory of the PATH has the word."""
    first, second = place / "first", place / "second"
    for directory in (first, second):
        directory.mkdir()
    tool = second / "tool"
    tool.write_text("#!/bin/sh\necho real\n")
    tool.chmod(0o755)

    def approver(request):
        (first / "tool").write_text("#!/bin/sh\necho planted\n")
        (first / "tool").chmod(0o755)
        return "once"

    result = run(["tool"], policy=ruled.replace(approver=approver), env={"PATH": f"{first}:{second}:/bin"})
    assert result.stdout == "real\n"


def test_a_program_that_was_not_there_is_not_one_that_a_command_has_put_there(run, ruled, ws):
    """Approved by its name, when nothing of that name existed, it would be whatever comes first."""

    def approver(request):
        (ws / "tool").write_text("#!/bin/sh\necho planted\n")
        (ws / "tool").chmod(0o755)
        return "once"

    for path in (f"{ws}:/bin", f"{ws}"):
        (ws / "tool").unlink(missing_ok=True)
        with pytest.raises(FileNotFoundError) as caught:
            run(["tool"], policy=ruled.replace(approver=approver), env={"PATH": path})
        assert caught.value.filename == "tool"


def test_a_program_that_an_earlier_command_could_have_written_is_not_trusted_by_its_name(run, policy, tier, ws, monkeypatch):
    """A read-only policy has no writable root; the workspace of the run before it is none the less one."""
    bin = ws / "bin"
    bin.mkdir()
    script = f"printf '#!/bin/sh\\necho FAKE\\n' > {bin}/date; chmod +x {bin}/date"
    assert run(["sh", "-c", script], policy=policy).returncode == 0
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    reading = sp.Policy.read_only(backend=tier, commands=ExecPolicy([prefix_rule(["date"])]))
    with pytest.raises(CommandRejected):
        run(["date"], policy=reading, cwd="/")


def test_an_asynchronous_approver_is_awaited(ruled, ws):
    """It may ask in a browser; the loop goes on meanwhile."""
    async def main():
        ticks = []

        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0)

        async def approver(request):
            await asyncio.sleep(0.01)
            return "once"

        task = asyncio.create_task(tick())
        policy = ruled.replace(approver=approver)
        result = await aio.run(["touch", "one"], policy=policy, cwd=ws)
        process = await sp.create_subprocess_exec("touch", "two", policy=policy, cwd=ws)
        await process.wait()
        async with aio.stream(["touch", "three"], policy=policy, cwd=ws) as events:
            async for _ in events:
                pass
        task.cancel()
        assert len(ticks) > 5
        return result

    assert asyncio.run(main()).sandbox.approval.answer == "once"
    assert sorted(path.name for path in ws.iterdir()) == ["one", "three", "two"]


def test_an_ordinary_approver_does_not_block_the_loop(ruled, ws):
    """`input()` in it would stop every other task."""
    needs_package("trio")
    import trio

    async def on_asyncio():
        gate = threading.Event()
        policy = ruled.replace(approver=lambda request: gate.wait(20) and "once")
        task = asyncio.create_task(aio.run(["touch", "a"], policy=policy, cwd=ws))
        await asyncio.sleep(0)
        gate.set()  # only a loop that goes on gets here
        return (await task).returncode

    async def on_trio():
        gate = threading.Event()
        policy = ruled.replace(approver=lambda request: gate.wait(20) and "once")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: aio.run(["touch", "b"], policy=policy, cwd=ws))
            await trio.lowlevel.checkpoint()
            gate.set()
        return 0

    assert asyncio.run(on_asyncio()) == trio.run(on_trio) == 0
    assert sorted(path.name for path in ws.iterdir()) == ["a", "b"]


def test_an_asynchronous_approver_in_a_synchronous_call_is_an_error_before_anything_runs(ruled, ws):
    """A coroutine is true: taken for an answer it would be a yes."""

    async def approver(request):
        return "once"

    class Asynchronous:
        async def __call__(self, request):
            return "once"

    for one in (approver, Asynchronous(), lambda request: approver(request)):
        with pytest.raises(sp.PolicyError, match=r"aio\.run"):
            sp.run(["touch", "made"], policy=ruled.replace(approver=one), cwd=ws)
    assert list(ws.iterdir()) == []


def test_a_call_that_is_cancelled_at_the_question_runs_nothing(ruled, ws):
    """And the answer that comes later is nobody's."""

    async def main():
        async def approver(request):
            asked.set()
            await asyncio.sleep(60)
            return "once"

        asked = asyncio.Event()
        task = asyncio.create_task(aio.run(["touch", "made"], policy=ruled.replace(approver=approver), cwd=ws))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert list(ws.iterdir()) == []


@pytest.mark.parametrize("on", ["asyncio", "trio"])
def test_who_is_cancelled_does_not_wait_for_a_person(ruled, ws, on):
    """An ordinary function cannot be stopped: waited for, it would keep a cancelled call, and then the whole loop, from ending."""
    needs_package("trio")
    import trio

    gate, asked = threading.Event(), threading.Event()

    def approver(request):
        asked.set()
        gate.wait(60)
        return "once"

    policy = ruled.replace(approver=approver)

    async def on_asyncio():
        task = asyncio.create_task(aio.run(["touch", "made"], policy=policy, cwd=ws))
        while not asked.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def on_trio():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: aio.run(["touch", "made"], policy=policy, cwd=ws))
            while not asked.is_set():
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()

    try:
        asyncio.run(on_asyncio()) if on == "asyncio" else trio.run(on_trio)
        assert not gate.is_set() and list(ws.iterdir()) == []
    finally:
        gate.set()
        for thread in threading.enumerate():
            if "approver" in thread.name:
                thread.join()
    assert list(ws.iterdir()) == []


def test_the_time_of_the_question_is_not_the_commands(ruled, ws):
    """A person who thinks for a minute should not find a command that has timed out."""

    async def main():
        async def approver(request):
            await asyncio.sleep(0.3)
            return "once"

        return await aio.run(["touch", "made"], policy=ruled.replace(approver=approver), cwd=ws, timeout=0.25)

    try:
        assert asyncio.run(main()).returncode == 0
    except sp.TimeoutExpired:  # a machine on which a plain command takes that long; but it was started
        assert (ws / "made").exists()


# -- raising -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def reading(ws, tier):
    """Read-only, and may be raised."""
    return sp.Policy.read_only(backend=tier, upgrade_to=sp.Policy.workspace_write(ws, backend=tier), trust=TrustStore())


def test_a_command_that_writes_is_raised_where_the_rules_allow_it(run, reading, ws):
    """So that an agent reads by default, and writes where somebody has said so."""
    policy = reading.replace(commands=ExecPolicy([prefix_rule(["mkdir"]), prefix_rule(["ls"])]))
    result = run(["mkdir", "made"], policy=policy)
    assert result.returncode == 0 and (ws / "made").is_dir()
    assert f"write: {ws}" in result.sandbox.approval.raised
    quiet = run(["ls"], policy=policy)
    assert quiet.sandbox.approval.raised is None


def test_a_default_that_allows_raises_nothing(run, reading, ws):
    """Nobody has spoken of the command: allowed is allowed to run as it was asked for, read-only."""
    result = run(["mkdir", "made"], policy=reading.replace(commands=ExecPolicy(default="allow")))
    assert result.returncode != 0 and not (ws / "made").exists()
    assert result.sandbox.approval.raised is None and "not raised" in result.sandbox.approval.note


@pytest.mark.parametrize("commands", [None, ExecPolicy(default="allow"), ExecPolicy()])
def test_the_approver_raises_and_sees_to_what(run, reading, ws, commands):
    """One question, for the command and for the wider policy."""
    asked = []
    policy = reading.replace(commands=commands, approver=lambda request: asked.append(request) or "once")
    result = run(["mkdir", "made"], policy=policy)
    assert result.returncode == 0 and result.sandbox.approval.raised and len(asked) == 1
    assert asked[0].upgrade == policy.upgrade_to and f"write: {ws}" in asked[0].permits
    with pytest.raises(CommandRejected):
        run(["mkdir", "other"], policy=policy.replace(approver=lambda request: "deny", trust=TrustStore()))
    assert not (ws / "other").exists()


def test_nothing_is_raised_to_no_sandbox(ws):
    """A wider sandbox is a decision; none at all is another one."""
    with pytest.raises(sp.PolicyError, match="no sandbox"):
        sp.Policy.read_only(upgrade_to=sp.Policy.danger_full_access())


# -- where there is no sandbox, and where there is a terminal ---------------------------------------------------------------


def test_rules_hold_without_a_sandbox_too(ws):
    """`danger-full-access` is no sandbox; the rules were never part of it."""
    policy = sp.Policy.danger_full_access(commands=RULES)
    assert sp.run(["echo", "a"], policy=policy, capture_output=True).stdout == b"a\n"
    with pytest.raises(CommandRejected):
        sp.run(["rm", "x"], policy=policy)
    with pytest.raises(CommandRejected):
        asyncio.run(aio.run(["rm", "x"], policy=policy))
    assert sp.run(["echo", "a"], policy=policy, stdout=subprocess.DEVNULL).sandbox.approval.by == "rules"


def test_rules_hold_on_every_loop_without_a_sandbox_too(loop):
    """uvloop has no `executable=`, by which the file that was checked is the file that runs."""
    policy = sp.Policy.danger_full_access(commands=RULES)

    async def main():
        with pytest.raises(CommandRejected):
            await aio.run(["rm", "x"], policy=policy)
        return await aio.run(["echo", "a"], policy=policy, capture_output=True)

    assert loop(main).stdout == b"a\n"


def test_the_files_of_rules_cannot_be_written(run, policy, ws, monkeypatch):
    """A command that can is allowed everything the next time."""
    file = ws / "team.rules"
    file.write_text('prefix_rule(["sh", "-c", "echo more >> team.rules; rm -f team.rules; mv team.rules x"])\nprefix_rule(["cp"])\n')
    rules = ExecPolicy.load(file) | ExecPolicy(default="prompt")
    before = file.read_text()
    allowed = rules.with_rules(prefix_rule(["echo"]), prefix_rule(["rm"]), prefix_rule(["mv"]), prefix_rule([">"]))
    run("echo more >> team.rules; rm -f team.rules; mv team.rules x", shell=True, policy=policy.replace(commands=allowed))
    assert file.read_text() == before
    monkeypatch.chdir(ws)
    assert ExecPolicy.load("team.rules").files == (str(file),)


def ask(command, answer, ws, *options):
    """Runs the CLI on a terminal of its own, and types."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(ws)
        os.execv(sys.executable, [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-m", "sandboxed_subprocess", "run",
                                  "--ask", *options, "--", *command])  # fmt: skip
    shown = b""
    typed = False
    while True:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
        if not typed and b"[N]o: " in shown:
            os.write(fd, answer)
            typed = True
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


@pytest.mark.parametrize("answer, runs", [(b"y\n", True), (b"s\n", True), (b"\n", False), (b"n\n", False), (b"yup\n", False)])
def test_on_a_terminal_the_question_is_one_screen_and_no_is_the_default(ws, tier, answer, runs):
    """Return, pressed without reading, must not run anything."""
    status, shown = ask(["touch", "ma\x1bde"], answer, ws, "--heuristics")
    assert "touch" in shown and "ma\\x1bde" in shown and "write: " in shown and "network: none" in shown and "[N]o" in shown
    assert (status == 0) == runs and bool(list(ws.iterdir())) == runs
    assert status in (0, 126)


def test_the_command_line_checks(ws):
    """Exit codes for hooks: allow, prompt, forbidden; a file that is wrong is neither."""
    (ws / "r").write_text('prefix_rule(["ls"])\nprefix_rule(["rm"], decision="deny", justification="no")\n')
    (ws / "bad").write_text("prefix_rule([])")

    def check(*args):
        return subprocess.run([sys.executable, "-m", "sandboxed_subprocess", "check", *args], capture_output=True, text=True, cwd=ws)

    assert check("--rules", "r", "--", "ls", "-l").returncode == 0
    assert check("--rules", "r", "--", "cat", "x").returncode == 10
    found = check("--rules", "r", "--", "sh", "-c", "ls; rm x")
    assert found.returncode == 20 and "r:2" in found.stdout and "because" in found.stdout and "no" in found.stdout
    assert check("--rules", "r", "--shell", "ls | ls").returncode == 0
    assert check("--default", "forbidden", "--", "x").returncode == 20
    assert check("--heuristics", "--", "git", "log").returncode == 0
    assert json.loads(check("--rules", "r", "--json", "--", "rm", "x").stdout)["decision"] == "forbidden"
    bad = check("--rules", "bad", "--", "ls")
    assert bad.returncode == 125 and "bad:1" in bad.stderr
    assert check("--rules", "none", "--", "ls").returncode == 125 and check("--rules", "r").returncode == 2


def test_check_command_asks_what_run_asks(run, ruled, ws):
    """Two answers to one question would be worse than none."""
    for args, options in ((["echo"], {}), (["rm"], {}), (["true"], {}), ("echo; rm", {"shell": True})):
        decision = sp.check_command(args, ruled, cwd=ws, **options).decision
        try:
            run(args, policy=ruled, **options)
            ran = True
        except CommandRejected:
            ran = False
        assert ran == (decision == "allow")
    assert sp.check_command(["rm"], "read-only").decision == "allow"
