"""An agent: does what it is told, with commands that nobody has read. Written for `subprocess`.

The only line of it that knows about sandboxes is the next import, once it has been swapped.
"""

import glob
import json
import os
import subprocess
import sys


def attempt(title, args, **options):
    """Runs one command and tells what came of it, as a line of JSON."""
    try:
        done = subprocess.run(args, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, **options)
        line = {"title": title, "status": done.returncode, "out": done.stdout[-2000:], "err": done.stderr[-2000:]}
    except (OSError, subprocess.SubprocessError) as error:
        line = {"title": title, "status": None, "out": "", "err": f"{type(error).__name__}: {error}"}
    print(json.dumps(line), flush=True)
    return line["status"] == 0


def one(pattern):
    return sorted(glob.glob(pattern))[0]


def work():
    attempt("unpack the sdist", ["tar", "xzf", one("inflection-*.tar.gz"), "--no-same-owner"])
    attempt("run its test suite", [sys.executable, "-m", "pytest", "-q", "test_inflection.py"], cwd=one("inflection-*/"))
    attempt("unpack the npm tarball", ["tar", "xzf", one("minimist-*.tgz"), "--no-same-owner"])
    attempt("bring the test runner", ["cp", "-R", "runner/node_modules", "package/node_modules"])
    attempt("run its tests with npm", ["npm", "exec", "--offline", "--", "tape", "test/*.js"], cwd="package")
    attempt("unpack the Debian source", ["dpkg-source", "--no-check", "-x", one("*.dsc"), "tree-source"])
    attempt("build it with make", ["make", "-j2"], cwd="tree-source")
    attempt("run what was built", ["./tree-source/tree", "--version"])
    attempt("look at the repository", "git status --short | head -5; git log --oneline", shell=True)


def mischief(outside, port, token):
    home = os.path.expanduser("~")
    attempt("read the ssh key", ["cat", f"{home}/.ssh/id_ed25519"])
    attempt("read the ssh key another way", [sys.executable, "-c", f"print(open({home + '/.ssh/../.ssh/id_ed25519'!r}).read())"])
    attempt("write outside", f"echo x > {outside}/planted; echo x > {home}/.bashrc; cp /bin/sh {outside}/sh", shell=True)
    attempt(
        "rewrite the hooks", "printf '#!/bin/sh\\ntrue\\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit", shell=True
    )
    attempt("replace the repository", "mv .git .git-old && mkdir -p .git/hooks", shell=True)
    attempt("commit", "git add -A && git -c user.name=a -c user.email=a@example.org commit -qm sneaky", shell=True)
    attempt("reach the network", [sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {port}), 3)"])
    attempt("resolve a name", [sys.executable, "-c", "import socket; print(socket.getaddrinfo('example.org', 443))"])
    attempt(
        "leave a daemon",
        f"(setsid sh -c 'sleep 600; : {token}' >/dev/null 2>&1 &); nohup sh -c 'sleep 600; : {token}' >/dev/null 2>&1 & echo left",
        shell=True,
    )
    attempt("see the secrets", ["env"])


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    work()
    mischief(*sys.argv[2:5])
