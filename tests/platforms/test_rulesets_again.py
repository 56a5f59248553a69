"""Without mounts a sandbox is a list of a few hundred paths; the ruleset made from it is used again by the next run.

A ruleset is about files, not about names: whatever makes a name mean another file has to make a new ruleset.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest
from conftest import ROOT, wait_until

import sandboxed_subprocess as sp
from sandboxed_subprocess import _backends, _paths
from sandboxed_subprocess.testing import must_work, needs

pytestmark = pytest.mark.filterwarnings("ignore::sandboxed_subprocess.SandboxWarning")


@pytest.fixture
def kept():
    """The descriptor in which a ruleset waits."""
    needs("landlock")
    return _backends.detect("landlock")._slot.fd


@pytest.fixture
def box(place):
    """A directory with something denied in it, so that what else is in it is allowed one by one."""
    box = place / "box"
    (box / "secret").mkdir(parents=True)
    (box / "secret" / "key").write_text("key\n")
    (box / "open").write_text("open\n")
    (box / "deep").mkdir()
    (box / "deep" / "file").write_text("deep\n")
    settle(place, box)
    return box


def settle(*directories):
    """A change of a moment ago could have the time of the next one."""
    wait_until(lambda: all(_paths.settled_stamp(str(directory)) != _paths.UNSETTLED for directory in directories))


def cat(box, *names, **options):
    policy = sp.Policy.read_only(backend="landlock", enforcement="best-effort", deny_read=[box / "secret"])
    result = sp.run(["cat", *[str(box / name) for name in names]], policy=policy, stdin=sp.DEVNULL, capture_output=True, text=True, **options)
    return result.stdout


def what(fd):
    return os.readlink(f"/proc/self/fd/{fd}").partition(":")[2]


@pytest.fixture
def marked(kept):
    """Marks the ruleset that is kept, and tells whether it is still that one."""
    def mark():
        fcntl.fcntl(kept, fcntl.F_SETOWN, os.getpid())

    def is_marked():
        return fcntl.fcntl(kept, fcntl.F_GETOWN) == os.getpid()

    return mark, is_marked


def test_a_ruleset_is_used_again(kept, box, marked):
    """Otherwise nothing here is tested."""
    mark, is_marked = marked

    def again():
        assert cat(box, "open", "secret/key") == "open\n"
        mark()
        assert cat(box, "open", "deep/file", "secret/key") == "open\ndeep\n"
        return is_marked() and what(kept) == "[landlock-ruleset]"

    wait_until(again)  # other tests may change a directory above meanwhile


@pytest.mark.parametrize("change", ["new", "replaced", "swapped", "recreated"])
def test_a_name_that_means_another_file_makes_a_new_ruleset(kept, box, marked, change):
    """A new file could not be read; worse, one that was allowed and now lies where it is denied could be."""
    mark, is_marked = marked
    assert cat(box, "open") == "open\n"
    mark()
    if change == "new":
        (box / "later").write_text("later\n")
        names, text = ("later", "open"), "later\nopen\n"
    elif change == "replaced":
        (box / "other").write_text("other\n")
        os.replace(box / "other", box / "open")
        names, text = ("open",), "other\n"
    elif change == "swapped":
        os.rename(box / "secret", box / "was secret")
        os.rename(box / "deep", box / "secret")
        names, text = ("open", "secret/file"), "open\n"
    else:
        os.unlink(box / "open")
        (box / "open").write_text("again\n")
        names, text = ("open",), "again\n"

    def as_it_is_now():
        assert cat(box, *names, "secret/key") == text
        return not is_marked()

    wait_until(as_it_is_now)  # other tests may change a directory above meanwhile


def test_another_policy_does_not_get_the_ruleset(kept, box):
    cat(box, "open")
    policy = sp.Policy.read_only(backend="landlock", enforcement="best-effort", deny_read=[box / "open"])
    result = sp.run(["cat", str(box / "open"), str(box / "secret/key")], policy=policy, capture_output=True, text=True)
    assert result.stdout == "key\n"
    assert cat(box, "open", "secret/key") == "open\n"


@pytest.mark.skipif(not ROOT, reason="mounts")
def test_what_is_mounted_meanwhile_can_be_read(kept, box):
    """The rule is about the directory below it."""
    needs_mount = subprocess.run(["unshare", "-m", "true"], check=False).returncode
    if needs_mount:
        (pytest.fail if "MOUNT" in must_work() else pytest.skip)("nothing can be mounted here")
    code = (
        "import subprocess, sys, warnings; warnings.simplefilter('ignore')\n"
        "import sandboxed_subprocess as sp\n"
        f"box = {str(box)!r}\n"
        "policy = sp.Policy.read_only(backend='landlock', enforcement='best-effort', deny_read=[box + '/secret'])\n"
        "def cat(name): return sp.run(['cat', box + name], policy=policy, capture_output=True, text=True).stdout\n"
        "assert cat('/deep/file') == 'deep\\n'\n"
        "subprocess.run(['mount', '-t', 'tmpfs', 'none', box + '/deep'], check=True)\n"
        "open(box + '/deep/file', 'w').write('mounted\\n')\n"
        "assert cat('/deep/file') == 'mounted\\n', 'mounted'\n"
        "subprocess.run(['umount', box + '/deep'], check=True)\n"
        "assert cat('/deep/file') == 'deep\\n', 'unmounted'\n"
    )
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(sp.__file__))}
    subprocess.run(["unshare", "-m", sys.executable, "-c", code], check=True, env=env, cwd="/")


def test_a_file_as_a_stream_does_not_stay_allowed(kept, box, place):
    """ "> /dev/stdout" needs a rule about the file behind it, which the next run must not have."""
    script = ["sh", "-c", "echo x > /dev/stdout; echo y > " + str(place / "out")]
    policy = sp.Policy.read_only(backend="landlock", enforcement="best-effort", deny_read=[box / "secret"])
    cat(box, "open")
    with open(place / "out", "w") as file:
        sp.run(script[:2] + ["echo x > /dev/stdout"], policy=policy, stdout=file, check=True)
    assert (place / "out").read_text() == "x\n"
    for _ in range(2):
        sp.run(script, policy=policy, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert (place / "out").read_text() == "x\n"


def test_a_run_without_the_callers_streams_cannot_open_them(kept, box, place):
    """A ruleset of a run that had inherited them was used for one that had not: it could write, and read, where it leads."""
    code = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "import sandboxed_subprocess as sp\n"
        f"box = {str(box)!r}\n"
        "policy = sp.Policy.read_only(backend='landlock', enforcement='best-effort', deny_read=[box + '/secret'])\n"
        "def captured(script): return sp.run(['sh', '-c', script], policy=policy, stdin=sp.DEVNULL, capture_output=True, text=True)\n"
        "for _ in range(2):\n"
        "    for _ in range(2): sp.run(['true'], policy=policy)\n"
        "    result = captured(f'echo tampered >> {box}/secret/log; cat {box}/secret/log')\n"
        "    assert result.stdout == '' and result.returncode, result\n"
        "for _ in range(2): captured('true')\n"
        "assert sp.run(['sh', '-c', 'echo x > /dev/stdout'], policy=policy).returncode == 0\n"
    )
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(sp.__file__))}
    with open(box / "secret" / "log", "w") as log:
        subprocess.run([sys.executable, "-c", code], check=True, env=env, stdout=log, cwd="/")
    assert (box / "secret" / "log").read_text() == "x\n"


def test_after_all_descriptors_were_closed(kept, box):
    """Daemons close what they do not know, and the numbers are given to something else."""
    code = (
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "import sandboxed_subprocess as sp\n"
        f"box = {str(box)!r}\n"
        "policy = sp.Policy.read_only(backend='landlock', enforcement='best-effort', deny_read=[box + '/secret'])\n"
        "def cat(): return sp.run(['cat', box + '/open', box + '/secret/key'], policy=policy, capture_output=True, text=True).stdout\n"
        "assert cat() == 'open\\n'\n"
        "os.closerange(3, 100)\n"
        "others = [os.open('/dev/null', os.O_RDWR) for _ in range(60)]\n"
        "before = os.listdir('/proc/self/fd')\n"
        "for _ in range(3): assert cat() == 'open\\n'\n"
        "for fd in others: os.fstat(fd)\n"
        "import select; more = [select.epoll() for _ in range(3)]\n"
        "for fd in others: os.close(fd)\n"
        "more += [select.epoll() for _ in range(60)]\n"
        "for _ in range(3): assert cat() == 'open\\n'\n"
        "for poller in more: poller.poll(0)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(sp.__file__))}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, cwd="/")


def test_a_forked_child_has_its_own(kept, box):
    """Both would be told of a mount by one and the same open file, and each only if it asks first."""
    assert cat(box, "open") == "open\n"
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if cat(box, "open", "secret/key") == "open\n" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert cat(box, "open", "secret/key") == "open\n"


def test_descriptors_do_not_become_more(kept, box):
    for _ in range(3):
        cat(box, "open")
    before = sorted(os.listdir("/proc/self/fd"))
    for number in range(10):
        (box / f"new{number}").write_text("")
        cat(box, "open", f"new{number}")
    assert sorted(os.listdir("/proc/self/fd")) == before
