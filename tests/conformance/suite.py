"""Runs CPython's `test.test_subprocess` with this package in the place of `subprocess`, or `test.test_asyncio.test_subprocess`
with its functions in the place of asyncio's. Prints JSON, the last line.

    python suite.py {subprocess|asyncio} POLICY DIRECTORY [test ...]

POLICY is a preset. Under "workspace-write" the directory is the only root, and /tmp is shared: the suite's files lie there.
A program of its own, because the suite has to import the module under the name `subprocess`, before anything else does.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).parent


def counted(function, calls):
    def call(*args):
        calls.append(1)
        return function(*args)

    return call


def main() -> int:
    which, policy_name, directory, *names = sys.argv[1:]
    sys.path[0] = str(HERE.parent.parent)
    import sandboxed_subprocess as sp

    del sys.path[0]
    os.chdir(directory)
    if policy_name == "workspace-write":
        policy = sp.Policy.workspace_write(directory, tmp="shared")
    else:
        policy = sp.Policy.from_preset(policy_name)
    sp.set_default_policy(policy)
    launches = []
    import unittest

    if which == "subprocess":
        sys.modules["subprocess"] = sp
        sp._popen.prepare = counted(sp._popen.prepare, launches)
        from test import test_subprocess

        assert test_subprocess.subprocess is sp
    else:
        import asyncio

        for module in (asyncio, asyncio.subprocess):
            module.create_subprocess_exec = sp.create_subprocess_exec
            module.create_subprocess_shell = sp.create_subprocess_shell
        from sandboxed_subprocess import _asyncio

        _asyncio.prepare = counted(_asyncio.prepare, launches)
        from test.test_asyncio import test_subprocess
    sys.path.insert(0, str(HERE))
    import skips

    del sys.path[0]
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names, test_subprocess) if names else loader.loadTestsFromModule(test_subprocess)
    chosen = unittest.TestSuite()
    left_out = {}

    def walk(part):
        for test in part:
            if isinstance(test, unittest.TestSuite):
                walk(test)
                continue
            why = skips.reason(test.id(), policy_name)
            if why is None:
                chosen.addTest(test)
            else:
                left_out[test.id()] = why

    walk(suite)
    begin = time.monotonic()
    result = unittest.TextTestRunner(verbosity=2).run(chosen)
    bad = {test.id(): text for test, text in [*result.failures, *result.errors]}
    print(
        json.dumps(
            {
                "ran": result.testsRun,
                "sandboxed": len(launches),
                "seconds": round(time.monotonic() - begin, 1),
                "bad": bad,
                "unexpected": [test.id() for test in result.unexpectedSuccesses],
                "skipped": {test.id(): why for test, why in result.skipped},
                "left_out": left_out,
            }
        )
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
