"""The command line: run a command, look at this machine, or watch a demonstration."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from ._cli import check, doctor
from ._errors import CommandRejected, PolicyError, SandboxError
from ._policy import PRESETS, Policy
from ._popen import Popen
from ._report import Progress, Report, Violation
from ._version import __version__

# As env(1), nice(1) and timeout(1) have it.
FAILED, CANNOT_EXECUTE, NOT_FOUND = 125, 126, 127


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sandboxed-subprocess", description="subprocess, sandboxed")
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True)

    run = verbs.add_parser("run", help="run a command in a sandbox; its exit status is the command's own")
    run.add_argument(
        "--policy",
        default="workspace-write",
        metavar="PRESET|FILE",
        help=f"{', '.join(PRESETS)}, or a .toml or .json file (default: workspace-write here)",
    )
    run.add_argument("--write", action="append", default=[], metavar="DIR", help="a further writable directory")
    run.add_argument("--report", action="store_true", help="print the report as JSON on stderr at the end")
    run.add_argument("--progress", action="store_true", help="show time, CPU, memory, processes and bytes, on a terminal")
    _rules_arguments(run)
    run.add_argument("--ask", action="store_true", help="ask on the terminal where the rules say so, instead of refusing")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")

    look_at = verbs.add_parser("check", help="what command rules say of a command: 0 (allow), 10 (prompt) or 20 (forbidden)")
    _rules_arguments(look_at)
    look_at.add_argument("--shell", action="store_true", help="COMMAND is a script for a shell, in one word")
    look_at.add_argument("--json", action="store_true", help="for machines")
    look_at.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")

    look = verbs.add_parser("doctor", help="what works on this machine, what does not, why, and what to do")
    look.add_argument("--json", action="store_true", help="for machines")

    verbs.add_parser("demo", help="attempts, good and evil, in a temporary directory, and what became of them")
    return parser


def _rules_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rules", action="append", default=[], metavar="FILE", help="a file of command rules, once or more")
    parser.add_argument("--heuristics", action="store_true", help="know readers from what destroys")
    parser.add_argument("--default", choices=["allow", "prompt", "forbidden"], help="for what no rule is about (default: prompt)")


def _command(args: argparse.Namespace) -> list[str]:
    return list(args.command[1:] if args.command[:1] == ["--"] else args.command)


def _check(args: argparse.Namespace) -> int:
    command = _command(args)
    if not command or (args.shell and len(command) != 1):
        _say("check: no command given" if not command else "check --shell: a script is one word")
        return 2
    try:
        rules = check.rules(args.rules, args.heuristics, args.default)
        return check.main(rules, command, shell=args.shell, json_output=args.json)
    except (OSError, PolicyError) as error:
        _say(f"check: {error}")
        return FAILED


def _policy(args: argparse.Namespace) -> Policy:
    if args.policy == "workspace-write":
        policy = Policy.workspace_write(os.getcwd())
    elif args.policy in PRESETS:
        policy = Policy.from_preset(args.policy)
    elif os.sep in args.policy or args.policy.endswith((".toml", ".json")):
        policy = Policy.load(args.policy)
    else:
        policy = Policy.from_preset(args.policy)  # raises, and names what there is
    if args.rules or args.heuristics or args.default:
        policy = policy.replace(commands=check.rules(args.rules, args.heuristics, args.default))
    if args.ask:
        from .commands import approve_on_terminal

        policy = policy.replace(approver=approve_on_terminal())
    return policy.with_write(*args.write) if args.write else policy


def _say(text: str) -> None:
    print(f"sandboxed-subprocess: {text}", file=sys.stderr)


def _run(args: argparse.Namespace) -> int:
    command = _command(args)
    if not command:
        _say("no command given")
        return 2
    try:
        policy = _policy(args)
    except FileNotFoundError as error:
        _say(str(error) if error.filename else "the current directory does not exist any more")
        return FAILED
    except (OSError, PolicyError) as error:
        _say(str(error))
        return FAILED
    # Into a pipe or a file such a line would only be in the way.
    progress = args.progress and sys.stderr.isatty()
    if progress:
        policy = policy.replace(on_event=_show, event_interval=0.5)
    try:
        process: Popen[bytes] = Popen(command, policy=policy)
    except FileNotFoundError as error:
        _say(str(error))
        return NOT_FOUND
    except CommandRejected as error:
        _say(error.strerror or str(error))
        return CANNOT_EXECUTE
    except SandboxError as error:
        _say(str(error))
        return FAILED
    except OSError as error:
        _say(str(error))
        return CANNOT_EXECUTE

    # Ctrl-C and Ctrl-\ reach the command from the terminal by themselves; what is sent to us alone is passed on.
    signal.signal(signal.SIGINT, lambda *_: None)
    if sys.platform != "win32":
        signal.signal(signal.SIGQUIT, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda n, _: process.send_signal(n))
    status = process.wait()
    if progress:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    _tell(process.sandbox)
    if args.report:
        print(process.sandbox.to_json(), file=sys.stderr)
    if status < 0:
        # Ends as the command ended, so that a shell says the same about it.
        with contextlib.suppress(OSError):  # SIGKILL cannot be set, and need not be
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        return 128 - status
    return status


def _show(event: Progress | Violation) -> None:
    if isinstance(event, Progress):
        line = (
            f"{event.wall_seconds:.0f} s · CPU {event.cpu_seconds:.1f} s · {_size(event.memory_bytes)} of memory ·"
            f" {event.processes} processes · {_size(event.written_bytes)} written"
        )
        width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        print(f"\r\x1b[K{line[: width - 1]}", end="", file=sys.stderr, flush=True)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _tell(report: Report) -> None:
    """What nobody should have to ask for."""
    if report.approval is not None and report.approval.raised:
        _say(f"raised to a wider policy ({report.approval.raised})")
    if report.limit:
        reached = "" if report.limit_reached is None else f" (it had come to {report.limit_reached:.15g})"
        _say(f"ended by the limit {report.limit}{reached}")
    for violation in report.violations:
        if violation.kind != "planted":
            _say(f"refused: {violation.kind} {violation.detail} ({violation.advice})")
    if report.gaps:
        _say(f"not enforced: {', '.join(report.gaps)}")
    for was, now in report.quarantined:
        _say(f"put out of action: {was} is now {now}")


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        if args.verb == "run":
            return _run(args)
        if args.verb == "check":
            return _check(args)
        if args.verb == "doctor":
            return doctor.main(json_output=args.json)
        if sys.platform == "win32":
            print("demo: there is no backend for Windows yet", file=sys.stderr)
            return 1
        from ._cli import demo

        return demo.main()
    except BrokenPipeError:
        # The reader has seen enough; nothing more is flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + 13
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (PolicyError, OSError) as error:
        _say(f"{args.verb}: {error}")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
