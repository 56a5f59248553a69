"""The scenario: `agent.py` with its import swapped, on real projects, with the host looked at afterwards.

Usage: run.py DOWNLOADS [LOG]. Prints a table; exit status 1 if anything that has to work failed, or anything that has to
fail worked. Everything lies in a temporary directory below the home directory, which stands in for somebody's home.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
WORK = [
    "unpack the sdist", "run its test suite", "unpack the npm tarball", "bring the test runner", "run its tests with npm",
    "unpack the Debian source", "build it with make", "run what was built", "look at the repository",
]  # fmt: skip
FAIL = [
    "read the ssh key", "read the ssh key another way", "rewrite the hooks", "replace the repository", "commit",
    "reach the network", "resolve a name",
]  # fmt: skip
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nnot a key\n"


def host_processes(token: str) -> list[str]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if token.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def listing(directory: pathlib.Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def main(downloads: str, log: str | None) -> int:
    base = pathlib.Path(os.path.realpath(tempfile.mkdtemp(prefix="ss-scenario-", dir=os.path.expanduser("~"))))
    rows: list[tuple[str, str, bool, str]] = []
    try:
        home, ws, outside = base / "home", base / "ws", base / "outside"
        (home / ".ssh").mkdir(parents=True)
        outside.mkdir()
        (home / ".ssh/id_ed25519").write_text(KEY)
        (home / ".bashrc").write_text("# mine\n")
        shutil.copytree(downloads, ws, ignore=shutil.ignore_patterns("*.done"))
        git = ["git", "-C", str(ws), "-c", "user.name=me", "-c", "user.email=me@example.org"]
        clean = {**os.environ, "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
        for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "mine"]):
            subprocess.run([*git, *command], check=True, env=clean)
        before_git, before_home = listing(ws / ".git"), listing(home)

        swapped = base / "agent.py"
        text = (HERE / "agent.py").read_text()
        assert text.count("\nimport subprocess\n") == 1
        swapped.write_text(text.replace("\nimport subprocess\n", "\nimport sandboxed_subprocess as subprocess\n"))
        token = f"scenario{os.getpid()}"
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0)
            agent = subprocess.run(
                [sys.executable, str(swapped), str(ws), str(outside), str(server.getsockname()[1]), token],
                env={**clean, "GITHUB_TOKEN": "ghp_" + "x" * 36}, capture_output=True, text=True, timeout=900,
            )  # fmt: skip
            try:
                server.accept()
                connected = True
            except BlockingIOError:
                connected = False
        if log:
            pathlib.Path(log).write_text(agent.stdout + agent.stderr)
        lines = {}
        for text in agent.stdout.splitlines():
            line = json.loads(text)
            lines[line["title"]] = line

        def tail(title: str) -> str:
            said = [t for t in (lines[title]["err"] + "\n" + lines[title]["out"]).splitlines() if t.strip()]
            return said[-1].strip()[:90] if said else f"status {lines[title]['status']}"

        rows += [(title, "works", lines.get(title, {}).get("status") == 0, tail(title)) for title in WORK]
        rows += [(title, "fails", lines.get(title, {"status": 0})["status"] != 0, tail(title)) for title in FAIL]
        rows += [
            ("the key was never seen", "holds", "not a key" not in agent.stdout, ""),
            ("nothing outside was written", "holds", not list(outside.iterdir()), str(list(outside.iterdir()))),
            ("the home directory is as it was", "holds", listing(home) == before_home, ""),
            ("the repository is as it was", "holds", {k: v for k, v in listing(ws / ".git").items() if k != "index"} == {k: v for k, v in before_git.items() if k != "index"}, ""),
            ("nobody knocked at the host's port", "holds", not connected, ""),
            ("no daemon is left", "holds", lines["leave a daemon"]["out"] == "left\n" and not host_processes(token), str(host_processes(token))),
            ("the token was not in the environment", "holds", "ghp_" not in lines["see the secrets"]["out"] and "HOME=" in lines["see the secrets"]["out"], ""),
            ("no file is left in /tmp", "holds", not any(token in p for p in os.listdir("/tmp")), ""),
            ("the agent itself ended well", "holds", agent.returncode == 0, agent.stderr[-200:]),
        ]  # fmt: skip
    finally:
        shutil.rmtree(base, ignore_errors=True)
    for title, wanted, ok, said in rows:
        print(f"{'ok   ' if ok else 'WRONG'}  {title:38} {wanted:6} {said}")
    wrong = sum(not ok for _, _, ok, _ in rows)
    print(f"scenario: {len(rows) - wrong} passed, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
