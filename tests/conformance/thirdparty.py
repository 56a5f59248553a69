"""Runs other people's test suites with this package in the place of `subprocess`, and compares with the plain module.

    python thirdparty.py DOWNLOADS [name ...]

DOWNLOADS is a directory for the sources, virtual environments and results; it must not lie below /tmp, which the commands
share with the host. It is filled where something is missing, and used again. The package that is tested is the one that
this interpreter imports as `sandboxed_subprocess`.

Each suite runs twice, on freshly unpacked sources: plain, and with every command confined to those sources and /tmp. Exits
with 1 if a test passes plain, fails sandboxed, and does not stand in EXPECTED; or if no command was sandboxed at all. Of the
table, "around" counts commands that modules started which had imported `subprocess` before the swap.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from typing import Any, NamedTuple


class Suite(NamedTuple):
    """A package whose tests are run."""

    version: str
    tests: str  # arguments for pytest, as in a shell
    needs: str = ""  # requirements of the tests, split at spaces
    pytest: str = "pytest==8.4.2"
    seconds: int = 900  # for one run
    fields: dict[str, Any] | None = None  # of the policy, as Policy.from_dict takes them, where nearly all tests need them


# For suites whose commands talk with servers in the tests' own process, on its loopback, all the time.
_NETWORK = {"network": {"danger": "UNRESTRICTED_NETWORK"}}

# Tests that run in neither mode: they send signals to the number that a command calls its pid, which is one of the sandbox's
# namespace. On the host, it belongs to somebody else.
_EXECNET_OUT = (
    "--deselect testing/test_gateway.py::TestPopenGateway::test_waitclose_on_remote_killed"
    " --deselect testing/test_termination.py::test_endmarker_delivery_on_remote_killterm"
)
_DULWICH_OUT = "--deselect tests/compat/test_client.py::DulwichTCPClientTest"

SUITES = {
    "subprocess-tee": Suite("0.4.2", "test", "enrich"),
    "trio": Suite("0.35.0", "src/trio/_tests/test_subprocess.py", "astor trustme pyopenssl async_generator"),
    "anyio": Suite("4.16.0", "tests/test_subprocesses.py", "trio pytest-mock trustme psutil", "pytest==9.2.0"),
    "honcho": Suite("2.0.0", "tests", "jinja2 mock"),
    "EasyProcess": Suite("1.1", "tests", "pyvirtualdisplay"),
    "plumbum": Suite("2.0.2", "tests", "pytest-asyncio pytest-mock pytest-cov psutil paramiko"),
    "execnet": Suite("2.1.2", f"testing {_EXECNET_OUT}", fields=_NETWORK),
    "pytest-xdist": Suite("3.8.0", "testing", "filelock setproctitle"),
    "pytest": Suite(
        "9.2.0",
        "testing/test_pytester.py testing/acceptance_test.py testing/test_faulthandler.py",
        "attrs hypothesis mock pexpect pyyaml requests setuptools xmlschema",
    ),
    "setuptools-scm": Suite("10.3.4", "testing_scm", "build"),
    "build": Suite(
        "1.6.1",
        "--reruns=0 -m 'not network' tests",
        "filelock pytest-mock pytest-rerunfailures setuptools wheel virtualenv",
    ),
    "nox": Suite("2026.10.20", "tests", "coverage"),
    "dulwich": Suite(
        "1.2.21",
        f"tests/compat tests/porcelain tests/test_client.py tests/test_hooks.py {_DULWICH_OUT}",
        fields=_NETWORK,
    ),
}

_DAEMONS = "a daemon is to outlive the command that started it, and here nothing does; its pid is the namespace's"
_MARKERS = "compares all variables that the command sees with the caller's; the markers (SANDBOXED_SUBPROCESS_*) are added"
_HIDDEN = "looks for other processes of the host, which are not visible inside"
_PIDS = "wants pids to be the host's, or different in two commands; each sandbox counts its own"
_SESSION = "wants the session's number to be the caller's; the command has no controlling terminal, so its session is another"
_PIP = "pip asks an index; network=UNRESTRICTED_NETWORK allows it"
_ENVIRONMENT = "sets PYTHONPATH or PYTEST_ADDOPTS in os.environ for the command; environment.include allows them"

# Tests that pass plain and not sandboxed, and why. A key that ends in "*" is the beginning of node ids.
EXPECTED: dict[str, dict[str, str]] = {
    "anyio": {"tests/test_subprocesses.py::test_process_new_session_sid*": _SESSION},
    "execnet": {
        "testing/test_multi.py::TestMultiChannelAndGateway::test_multichannel_receive_queue_for_two_subprocesses": _PIDS,
        "testing/test_termination.py::test_termination_on_remote_channel_receive": _PIDS,
    },
    "nox": {
        "tests/test_main.py::test_noxfile_script_mode": _PIP,
        "tests/test_main.py::test_noxfile_script_mode_exec": _PIP,
    },
    "plumbum": {
        "tests/test_env.py::TestEnv::test_change_env": _MARKERS,
        "tests/test_env.py::TestEnv::test_dictlike": _MARKERS,
        "tests/test_local.py::TestLocalMachine::test_local_daemon": _DAEMONS,
        "tests/test_local.py::TestLocalMachine::test_pgrep": _HIDDEN,
        "tests/test_local.py::TestLocalMachine::test_run_nohup": _DAEMONS,
        "tests/test_nohup.py::TestNohupLocal::test_closed_filehandles": _DAEMONS,
        "tests/test_nohup.py::TestNohupLocal::test_slow": _DAEMONS,
    },
    "pytest-xdist": {
        "testing/acceptance_test.py::test_config_initialization": _ENVIRONMENT,
        "testing/test_looponfail.py::TestRemoteControl::test_ignore_sys_path_hook_entry": _ENVIRONMENT,
    },
    "setuptools-scm": {"testing_scm/test_regressions.py::test_pip_download": _PIP},
}

# For the virtual environments: what our package imports, and an end for a test that waits for what a sandbox hides.
OUR_NEEDS = ["pytest-timeout==2.4.0", "pyseccomp>=0.1.2", "landlock>=1.0.0.dev5", "psutil>=5.9", "tomli>=2", "tomli-w>=1"]


# -- inside: one run of one suite, in the package's virtual environment -----------------------------------------------------


def swap(root: str, package: str, fields: str) -> dict[str, int]:
    """Puts our module in the place of `subprocess`, and returns what is counted from now on."""
    sys.path.insert(0, package)
    import sandboxed_subprocess as sp

    sys.path.remove(package)
    sp.set_default_policy(sp.Policy.from_dict({"write": [root], "tmp": "shared", **json.loads(fields)}))
    sp.run(["true"], check=True)  # the first one also asks the host what it can do, which is not to be counted
    counts = {"sandboxed": 0, "around": 0}
    launchers = set()
    prepare, fork_exec = sp._popen.prepare, sp._fork_exec

    def counted_prepare(*args: Any) -> Any:
        counts["sandboxed"] += 1
        prepared = prepare(*args)
        launchers.add(os.fsencode(prepared[0].executable))
        return prepared

    def counted_fork_exec(*args: Any) -> Any:
        # The second argument is where the program may lie. A launcher has one place only.
        counts["around"] += args[1][0] not in launchers
        return fork_exec(*args)

    sp._popen.prepare = counted_prepare
    sp._fork_exec = counted_fork_exec  # sets the one of the standard library, which is the one that is called
    sys.modules["subprocess"] = sp
    return counts


class Recorder:
    """A pytest plugin that writes down how each test ended, at once: a run that hangs says where."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "w", buffering=1, encoding="utf-8")  # noqa: SIM115

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        print(json.dumps(["start", nodeid]), file=self.file)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            outcome = "passed"
        elif report.failed:
            outcome = "failed"
        elif report.skipped:
            outcome = "skipped"
        else:
            return
        text = "" if outcome == "passed" else str(report.longrepr)
        print(json.dumps([outcome, report.nodeid, text]), file=self.file)


def inside(kind: str, root: str, package: str, result: str, fields: str, pytest_arguments: list[str]) -> int:
    """Before pytest is imported: it, too, has tools that start commands."""
    counts = swap(root, package, fields) if kind == "sandboxed" else {}
    sys.path[0] = root  # what `python -m pytest` does
    sys.argv = ["pytest", *pytest_arguments]
    import pytest

    recorder = Recorder(result)
    status = pytest.main(pytest_arguments, plugins=[recorder])
    print(json.dumps(["end", int(status), counts]), file=recorder.file)
    return 0


# -- outside -----------------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    tests: dict[str, str]
    texts: dict[str, str]
    counts: dict[str, int]
    problem: str  # why the run as a whole is not to be trusted, or ""


def download(name: str, suite: Suite, downloads: pathlib.Path) -> pathlib.Path:
    """The path of the source archive, alone in a directory, since its name may be spelled in several ways."""
    place = downloads / "sdist" / f"{name}-{suite.version}"
    if not any(place.glob("*.tar.gz")):
        pip = [sys.executable, "-m", "pip", "-qq", "download", "--no-deps", "--no-binary", name, "--dest", str(place)]
        subprocess.run([*pip, f"{name}=={suite.version}"], check=True)
    return next(place.glob("*.tar.gz"))


def environment(name: str, suite: Suite, place: pathlib.Path) -> pathlib.Path:
    """The Python of a virtual environment in which the package is installed."""
    python = place / "venv" / "bin" / "python"
    done = place / "venv" / "complete"
    wanted = [*OUR_NEEDS, *suite.needs.split(), f"{name}=={suite.version}"]
    if name != "pytest":
        wanted.append(suite.pytest)
    if not done.exists() or done.read_text(encoding="utf-8").split("\n") != wanted:
        shutil.rmtree(place / "venv", ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
        subprocess.run([str(python), "-m", "pip", "-qq", "install", *wanted], check=True)
        done.write_text("\n".join(wanted), encoding="utf-8")
    return python


def unpack(archive: pathlib.Path, place: pathlib.Path) -> pathlib.Path:
    """What the first run leaves behind must not change the second: each has sources of its own, in the same place."""
    work = place / "work"
    shutil.rmtree(work, ignore_errors=True)
    with tarfile.open(archive) as file:
        if hasattr(tarfile, "data_filter"):
            file.extractall(work, filter="data")
        else:
            file.extractall(work)
    (root,) = work.iterdir()
    return root


def run(name: str, suite: Suite, kind: str, root: pathlib.Path, python: pathlib.Path, place: pathlib.Path, package: str,
        chosen: list[str], fields: dict[str, Any]) -> Outcome:  # fmt: skip
    result = place / f"{kind}.jsonl"
    result.unlink(missing_ok=True)
    home = place / "home"
    home.mkdir(exist_ok=True)
    (home / ".gitconfig").write_text("[user]\n\tname = T\n\temail = t@example.org\n[init]\n\tdefaultBranch = master\n")
    arguments = ["-q", "-p", "no:cacheprovider", "--timeout=30", *(chosen or shlex.split(suite.tests))]
    variables = {"HOME": str(home), "PATH": f"{python.parent}:{os.environ['PATH']}", "LANG": "C.UTF-8", "TERM": "dumb"}
    with open(place / f"{kind}.log", "wb") as log:
        process = subprocess.Popen(
            [str(python), __file__, "--inside", kind, str(root), package, str(result), json.dumps(fields), *arguments],
            cwd=root, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(suite.seconds)
            problem = ""
        except subprocess.TimeoutExpired:
            problem = f"not finished after {suite.seconds} s"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    return read_outcome(result, problem)


def read_outcome(result: pathlib.Path, problem: str) -> Outcome:
    tests: dict[str, str] = {}
    texts: dict[str, str] = {}
    counts: dict[str, int] = {}
    last = ""
    ended = False
    for line in result.read_text(encoding="utf-8").splitlines() if result.exists() else []:
        what, *rest = json.loads(line)
        if what == "start":
            last = rest[0]
            tests.setdefault(last, "not finished")
        elif what == "end":
            ended = True
            counts = rest[1]
            if rest[0] not in (0, 1):
                problem = problem or f"pytest's exit status is {rest[0]}"
        else:
            # A test may pass, and its teardown fail.
            if tests.get(rest[0]) != "failed":
                tests[rest[0]] = what
            texts[rest[0]] = texts.get(rest[0], "") + rest[1]
    if not ended:
        problem = f"{problem or 'the run died'}, last in {last or 'no test'}"
    return Outcome(tests, texts, counts, problem)


def reason_key(name: str, test: str) -> str | None:
    for key in EXPECTED.get(name, {}):
        if test == key or (key.endswith("*") and test.startswith(key[:-1])):
            return key
    return None


def compare(name: str, plain: Outcome, sandboxed: Outcome) -> tuple[dict[str, str], list[str]]:
    """The expected differences with their reasons, and the unexpected ones."""
    expected: dict[str, str] = {}
    unexpected: list[str] = []
    for test, outcome in plain.tests.items():
        if outcome != "passed" or sandboxed.tests.get(test) == "passed":
            continue
        key = reason_key(name, test)
        if key is None:
            unexpected.append(test)
        else:
            expected[test] = EXPECTED[name][key]
    return expected, unexpected


def passed(outcome: Outcome) -> int:
    return sum(value == "passed" for value in outcome.tests.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("downloads", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(SUITES))
    parser.add_argument("-t", "--test", action="append", default=[], help="run this only (pytest's notation); needs one name")
    parser.add_argument("-p", "--policy", type=json.loads, help="fields of the policy as JSON, in the place of the suite's")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that run() ends what it started
    for name in options.names:
        if name not in SUITES:
            parser.error(f"there is no suite {name!r}: one of {', '.join(SUITES)}")
    downloads = options.downloads.resolve()
    if downloads.is_relative_to("/tmp"):
        parser.error("DOWNLOADS lies below /tmp, which the commands can write to")
    spec = importlib.util.find_spec("sandboxed_subprocess")
    if spec is None or spec.origin is None:
        parser.error("sandboxed_subprocess cannot be imported from here")
    package = str(pathlib.Path(spec.origin).parent.parent)

    header = ("package", "passed plain", "passed sandboxed", "commands", "around", "expected", "unexpected")
    rows: list[tuple[str, ...]] = [header]
    notes: list[str] = []
    bad = False
    for name in options.names or SUITES:
        suite = SUITES[name]
        place = downloads / name
        archive = download(name, suite, downloads)
        python = environment(name, suite, place)
        outcomes = {}
        fields = (suite.fields or {}) if options.policy is None else options.policy
        for kind in ("plain", "sandboxed"):
            root = unpack(archive, place)
            outcomes[kind] = run(name, suite, kind, root, python, place, package, options.test, fields)
            print(f"{name}: {kind}: {passed(outcomes[kind])} passed", file=sys.stderr, flush=True)
        plain, sandboxed = outcomes["plain"], outcomes["sandboxed"]
        expected, unexpected = compare(name, plain, sandboxed)
        commands = sandboxed.counts.get("sandboxed", 0)
        rows.append(
            (f"{name} {suite.version}", str(passed(plain)), str(passed(sandboxed)), str(commands),
             str(sandboxed.counts.get("around", 0)), str(len(expected)), str(len(unexpected)))
        )  # fmt: skip
        for test, outcome in plain.tests.items():
            if outcome not in ("passed", "skipped"):
                notes.append(f"{name}: fails plain: {test}")
        for test, why in expected.items():
            notes.append(f"{name}: expected: {test}: {why}")
        for key in [] if options.test else EXPECTED.get(name, {}):
            if not any(reason_key(name, test) == key for test in expected):
                notes.append(f"{name}: differs no more: {key}")
        for test in unexpected:
            text = sandboxed.texts.get(test, "").strip().splitlines()
            notes.append(f"{name}: UNEXPECTED: {test}: {text[-1] if text else 'no result'}")
        for kind, outcome in outcomes.items():
            if outcome.problem:
                notes.append(f"{name}: {kind}: {outcome.problem}")
        bad = bad or bool(unexpected) or not commands or any(outcome.problem for outcome in outcomes.values())
    print("\n".join(notes))
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for row in rows:
        print("  ".join(cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip())
    return 1 if bad else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(inside(*sys.argv[2:7], sys.argv[7:]))
    sys.exit(main())
