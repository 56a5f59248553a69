"""`limits.output_bytes`: a flood is read to its end, its head and tail are kept, and what is missing is told."""

from __future__ import annotations

import asyncio
import re
import resource
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sandboxed_subprocess as sp
from sandboxed_subprocess import aio
from sandboxed_subprocess._output import Kept

PY = sys.executable
MARK = re.compile(rb"\n\[\.\.\. (\d+) bytes dropped \.\.\.\]\n")


def parts(data):
    """Head, number of bytes that are said to be missing, tail."""
    head, count, tail = MARK.split(data)
    return head, int(count), tail


def test_what_fits_is_untouched(run, policy):
    """To the byte; and there is nothing to tell."""
    result = run("printf 1234567890; printf 12345 >&2", shell=True, policy=policy.replace(output_bytes=10), text=False)
    assert (result.stdout, result.stderr, result.sandbox.output_dropped) == (b"1234567890", b"12345", ())


def test_head_and_tail_are_kept_of_each_stream(run, policy):
    """The beginning says what it was, the end how it ended; the command is neither blocked nor ended."""
    code = "import sys\nfor s in (sys.stdout, sys.stderr):\n    s.write('BEGIN' + 'x' * 5_000_000 + 'END')\nprint('!', end='')"
    result = run([PY, "-c", code], policy=policy.replace(output_bytes=10_000), text=False)
    assert result.returncode == 0
    for data, end, size in ((result.stdout, b"END!", 5_000_009), (result.stderr, b"END", 5_000_008)):
        head, count, tail = parts(data)
        assert head.startswith(b"BEGINxx") and tail.endswith(b"xx" + end)
        assert len(data) <= 10_000 and len(head) + count + len(tail) == size
    told = dict(result.sandbox.output_dropped)
    assert told == {"stdout": parts(result.stdout)[1], "stderr": parts(result.stderr)[1]}


def test_a_single_stream_too(run, policy):
    """The stdlib reads one stream alone in another way."""
    result = run(["seq", "100000"], policy=policy.replace(output_bytes=1000), capture_output=False, stdout=sp.PIPE, text=True, timeout=None)
    assert result.stdout.startswith("1\n2\n") and result.stdout.endswith("99999\n100000\n") and len(result.stdout) <= 1000
    assert result.sandbox.output_dropped[0][0] == "stdout"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_small_limit_has_no_room_for_a_note(run, policy, size):
    """The report still tells."""
    result = run(["seq", "1000"], policy=policy.replace(output_bytes=size), text=False)
    whole = b"".join(b"%d\n" % n for n in range(1, 1001))
    assert result.stdout == whole[: size // 2] + whole[len(whole) - (size - size // 2) :]
    assert result.sandbox.output_dropped == (("stdout", len(whole) - size),)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-32", "shift_jis", "latin-1"])
def test_text_is_not_cut_inside_a_character(run, policy, encoding):
    """What was valid stays valid."""
    text = "ä" if encoding == "latin-1" else "日"
    for size in range(400, 408):
        code = f"import sys; sys.stdout.buffer.write(('{text}' * 1000).encode('{encoding}'))"
        result = run([PY, "-c", code], policy=policy.replace(output_bytes=size), text=None, encoding=encoding)
        assert result.stdout.count(text) > 50 and set(re.sub(r"\n\[.*\]\n", "", result.stdout)) == {text}


@pytest.mark.parametrize("flood", ["yes", "sh -c 'yes >&2 & yes'"])
def test_a_flood_does_not_take_the_memory_nor_the_time(run, policy, flood):
    """Elsewhere: gigabytes, and a timeout that never comes because the reader is too busy."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.monotonic()
    with pytest.raises(sp.TimeoutExpired) as expired:
        run(flood, shell=True, timeout=1, policy=policy.replace(output_bytes=1_000_000, terminate_grace=0.1))
    assert time.monotonic() - begin < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10
    assert 900_000 < len(expired.value.stdout) <= 1_000_000 and dict(expired.value.sandbox.output_dropped)["stdout"] > 0


def test_communicate_keeps_to_it(ws, policy):
    """Also in pieces: after a timeout, what was read before counts."""
    policy = policy.replace(output_bytes=1000)
    with sp.Popen(["sh", "-c", "seq 1000; sleep 0.4; echo end"], stdout=sp.PIPE, policy=policy, cwd=ws) as process:
        with pytest.raises(sp.TimeoutExpired) as expired:
            process.communicate(timeout=0.2)
        assert MARK.search(expired.value.stdout)
        out, _ = process.communicate()
    assert out.startswith(b"1\n2\n") and out.endswith(b"1000\nend\n") and len(out) <= 1000
    with sp.Popen(["cat"], stdin=sp.PIPE, stdout=sp.PIPE, policy=policy, cwd=ws) as process:
        out, _ = process.communicate(b"x" * 100_000)
    assert len(out) <= 1000 and parts(out)[1] == process.sandbox.output_dropped[0][1]
    assert len(sp.check_output(["seq", "10000"], policy=policy, cwd=ws)) <= 1000
    assert len(sp.getoutput("seq 10000", policy=policy)) <= 1000


def test_a_process_of_asyncio_keeps_to_it(ws, policy, aloop):
    """communicate() does; the streams themselves are the caller's."""

    async def main():
        process = await sp.create_subprocess_exec("seq", "10000", stdout=sp.PIPE, policy=policy.replace(output_bytes=1000), cwd=ws)
        out, err = await process.communicate()
        assert len(out) <= 1000 and err is None and parts(out)[1] == process.sandbox.output_dropped[0][1]
        process = await sp.create_subprocess_exec("seq", "10000", stdout=sp.PIPE, policy=policy.replace(output_bytes=1000), cwd=ws)
        assert len(await process.stdout.read()) == 48894
        await process.wait()

    aloop(main)


def test_without_a_sandbox_too():
    """It is the reader's promise, not the sandbox's."""
    policy = sp.Policy.danger_full_access(output_bytes=1000)
    assert len(sp.run(["seq", "10000"], policy=policy, stdout=sp.PIPE, check=True).stdout) <= 1000
    result = asyncio.run(aio.run(["seq", "10000"], policy=policy, stdout=sp.PIPE))
    assert len(result.stdout) <= 1000 and result.sandbox.output_dropped


@given(st.lists(st.binary(max_size=50)), st.integers(1, 600))
def test_however_it_arrives(chunks, limit):
    """The pieces in which it is read must not matter."""
    whole = b"".join(chunks)
    kept = Kept(limit)
    for chunk in chunks:
        kept.append(chunk)
    if len(whole) <= limit:
        assert kept.joined() == whole and kept.dropped == 0
        return
    shown = kept.joined()
    assert len(shown) <= limit
    head, tail = (shown[: limit // 2], shown[limit // 2 :]) if limit < 256 else (parts(shown)[0], parts(shown)[2])
    assert whole.startswith(head) and whole.endswith(tail) and len(head) + kept.dropped + len(tail) == len(whole)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-7", "gb18030", "big5", "iso2022_jp", "hz", "cp037"])
def test_no_encoding_is_too_odd(run, policy, encoding):
    """Cut as bytes, these could not be decoded, or gave other characters: the limit alone made a run fail."""
    text = {"utf-16": "\U0001f600", "cp037": "a", "utf-8-sig": "日", "utf-7": "日", "gb18030": "\U0001f600"}.get(encoding, "日")
    for size in (300, 301, 302, 303, 10):
        code = f"import sys; sys.stdout.buffer.write(('{text}' * 1000).encode('{encoding}'))"
        result = run([PY, "-c", code], policy=policy.replace(output_bytes=size), text=None, encoding=encoding)
        assert set(re.sub(r"\n\[\.\.\. \d+ bytes dropped \.\.\.\]\n", "", result.stdout)) == {text}
        assert size - 64 < len(result.stdout) <= size and dict(result.sandbox.output_dropped)["stdout"] > 0


def test_what_cannot_be_decoded_is_an_error_all_the_same(run, policy):
    """As without a limit; and errors= is for that."""
    script = "printf '\\377'; seq 1000"
    with pytest.raises(UnicodeDecodeError):
        run(script, shell=True, policy=policy.replace(output_bytes=100), text=None, encoding="utf-8")
    result = run(script, shell=True, policy=policy.replace(output_bytes=100), text=None, encoding="utf-8", errors="replace")
    assert result.stdout.startswith("�1\n2\n") and result.stdout.endswith("\n1000\n") and len(result.stdout) == 100
    result = run("printf '\\377'; seq 1000", shell=True, policy=policy.replace(output_bytes=100), text=None, errors="surrogateescape")
    assert result.stdout.startswith("\udcff1\n")


def test_a_second_communicate_leaves_the_report_alone(ws, policy, aloop):
    """It found nothing, and said that nothing had been dropped."""

    async def main():
        process = await sp.create_subprocess_exec("seq", "10000", stdout=sp.PIPE, policy=policy.replace(output_bytes=1000), cwd=ws)
        await process.communicate()
        dropped = process.sandbox.output_dropped
        assert await process.communicate() == (b"", None) and process.sandbox.output_dropped == dropped != ()

    aloop(main)


def test_a_timeout_in_the_middle_of_a_character(ws, policy, loop):
    """There may be more to come: the partial output is bytes, and no error."""
    policy = policy.replace(output_bytes=1000, terminate_grace=0)
    script = "printf 'a\\303'; sleep 0.5; printf '\\244b'"
    for run in (sp.run, lambda *args, **kwargs: loop(lambda: aio.run(*args, **kwargs))):
        with pytest.raises(sp.TimeoutExpired) as expired:
            run(["sh", "-c", script], timeout=0.2, stdout=sp.PIPE, encoding="utf-8", policy=policy, cwd=ws)
        assert expired.value.stdout == b"a\xc3"
        assert run(["sh", "-c", script], stdout=sp.PIPE, encoding="utf-8", policy=policy, cwd=ws).stdout == "aäb"
    with sp.Popen(["sh", "-c", script], stdout=sp.PIPE, encoding="utf-8", policy=policy, cwd=ws) as process:
        with pytest.raises(sp.TimeoutExpired):
            process.communicate(timeout=0.2)
        assert process.communicate() == ("aäb", None)
    with pytest.raises(UnicodeDecodeError):
        sp.run(["printf", "a\\303"], stdout=sp.PIPE, encoding="utf-8", policy=policy, cwd=ws)
