"""The mount plan: which mount goes where, decided in `render_view` and nowhere else. Shared by the tiers that have a view.

A pure function of the plan's rules. Its result is data, in the launcher's vocabulary: a skeleton of directories and files in
one tmpfs, parts of it bound where they are to be seen, places of the host attached, protected or masked.
"""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import os
import stat
from collections.abc import Iterable

from .. import _paths
from .._plan import SOCKET as HOST_SOCKET
from .._plan import Access, Plan, Rule
from ._landlock import IOCTL_DEV, TRUNCATE, WRITE_FILE, Landlock
from ._records import (
    ALIAS,
    ATTACH,
    BASE,
    DEVICES,
    DEVPTS,
    FILE,
    FLAT,
    LINK,
    MASK,
    MKDIR,
    OPTIONAL,
    OURS,
    PINNED,
    PROC,
    PROTECT,
    READONLY,
    RULE,
    SEAL,
    SOCKET,
    SOURCE,
    TBIND,
    Op,
    op,
)

_DEVICES = ("null", "zero", "full", "urandom", "tty")


class _View:
    """Records in the order in which the launcher acts on them."""

    def __init__(self, plan: Plan, write: int) -> None:
        self.plan = plan
        self.write = write
        self.sources: list[Op] = []
        self.made: dict[str, None] = {}
        self.skeleton: list[Op] = []
        self.mounts: list[Op] = []
        self.landlock: list[Op] = []
        # What lies at a path once its record has been acted on: "ro", "rw", or where in the tmpfs it is.
        self.area: dict[str, str] = {"/": "ro"}
        self.inside: dict[str, str] = {}
        self.masks = 0

    def source(self, path: str, flags: int, pin: tuple[int, int] = (0, 0)) -> int:
        self.sources.append(op(SOURCE, flags, 0, *pin, os.fsencode(path)))
        return len(self.sources) - 1

    def mkdir(self, place: str, mode: int = 0o755) -> None:
        """A directory in the tmpfs, and those above it."""
        parts = [part for part in place.split("/") if part]
        for depth in range(1, len(parts) + 1):
            part = "/".join(parts[:depth])
            if part not in self.made:
                self.made[part] = None
                self.skeleton.append(op(MKDIR, mode if depth == len(parts) else 0o755, 0, 0, 0, os.fsencode(part)))

    def file(self, place: str, mode: int, content: bytes = b"", size: int = 0) -> None:
        place = place.lstrip("/")
        if place not in self.made:
            self.mkdir(os.path.dirname(place))
            self.made[place] = None
            self.skeleton.append(op(FILE, mode, 0, len(content), size, os.fsencode(place), raw=content))

    def link(self, place: str, text: str) -> None:
        place = place.lstrip("/")
        if place not in self.made:
            self.mkdir(os.path.dirname(place))
            self.made[place] = None
            self.skeleton.append(op(LINK, 0, 0, 0, 0, os.fsencode(place), os.fsencode(text)))

    def bind(self, place: str, target: str, flags: int = 0) -> None:
        place = place.lstrip("/")
        self.mounts.append(op(TBIND, flags, 0, 0, 0, os.fsencode(place), os.fsencode(target)))

    def attach(self, source: int, target: str, flags: int = 0) -> None:
        self.mounts.append(op(ATTACH, flags, source, 0, 0, os.fsencode(target)))

    def allow(self, path: str, access: int, optional: bool = False) -> None:
        self.landlock.append(op(RULE, OPTIONAL if optional else 0, 0, access, 0, os.fsencode(path)))

    def governing(self, path: str) -> tuple[str, str]:
        """The nearest ancestor with a mount of its own, and what it is."""
        while True:
            path = os.path.dirname(path)
            if path in self.area:
                return path, self.area[path]

    def show(self, path: str, source: int, directory: bool) -> None:
        """Attaches a source where only a skeleton (a mask or a private directory) is, or over what is there."""
        above, area = self.governing(path)
        if area not in ("ro", "rw"):
            place = self.inside[above] + path[len(above) :]
            if directory:
                self.mkdir(place)
            else:
                self.file(place, 0o444)
        self.attach(source, path)


def _kind(path: str) -> int:
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return 0


def render_view(plan: Plan, ll: Landlock) -> list[Op]:
    """Everything but the command, in the order in which it is acted on. `b` of an ATTACH is the number of a SOURCE."""
    v = _View(plan, ll.write)
    view = plan.view
    pins = dict(plan.pins)
    writable = view.private_writable
    hidden = ".sandbox"
    base = "/run" if "/run" in view.private else "/dev"
    v.mounts.append(op(BASE, 0, 0, 0, 0, os.fsencode(base)))
    v.mkdir(f"{hidden}/none", 0)
    v.file(f"{hidden}/empty", 0)

    # /dev: five nodes of the host's, and directories of our own. Read-only mounts: a device can be written through one,
    # but its mode and owner cannot be changed, which a root caller's command could otherwise do on the host. random is
    # the same as urandom since Linux 5.6.
    v.mkdir(f"{hidden}/dev")
    v.mkdir(f"{hidden}/dev/pts")
    v.mkdir(f"{hidden}/dev/shm", 0o1777)
    for name, text in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
                       ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx"), ("random", "urandom")):  # fmt: skip
        v.link(f"{hidden}/dev/{name}", text)
    devices = [f"/dev/{name}" for name in _DEVICES if os.path.exists(f"/dev/{name}")]
    ours = len(devices)
    devices += [path for path in view.devices if os.path.exists(path)]
    shown = []
    for index, path in enumerate(devices):
        directory = _paths.is_directory(path)
        flags = DEVICES | READONLY | (0 if directory else FLAT) | (OURS if index < ours else 0)
        shown.append((path, v.source(path, flags), flags & OURS))
        if directory:
            v.mkdir(f"{hidden}{path}")
        else:
            v.file(f"{hidden}{path}", 0o666)
    # Writable for the sake of /dev/shm: it is private, the nodes in it are mount points, which cannot be replaced, and
    # Landlock leaves only shm.
    v.bind(f"{hidden}/dev", "/dev", 0 if writable else READONLY)
    for path, number, flags in shown:
        v.attach(number, path, flags)
    v.mounts.append(op(DEVPTS, 0, 0, 0, 0, b"/dev/pts"))
    # One rule for all nodes in /dev; it does not cover making new ones.
    v.allow("/dev", ll.write & (WRITE_FILE | IOCTL_DEV | TRUNCATE))
    if writable:
        v.allow("/dev/shm", ll.write & ~IOCTL_DEV)
    v.area["/dev"] = "private"
    v.inside["/dev"] = f"{hidden}/dev"

    # The private directories, and then all rules, parents first: a root may lie in a private directory, and a private
    # directory in a root. Python's sort is stable, so that of equals the private directory comes first.
    if base in view.private:
        v.area[base] = "private"
        v.inside[base] = ""
    areas = [area for area in view.private if area != base]
    has_children = _with_children(plan.rules)
    order: list[tuple[int, str, Rule | None]] = [(_depth(area), area, None) for area in areas]
    order += [(_depth(rule.path), rule.path, rule) for rule in plan.rules]
    order.sort(key=lambda item: item[:2])
    _furnish(v, [base] if base in view.private else [])
    for _, path, rule in order:
        if rule is not None:
            _render_rule(v, rule, pins, rule.path in has_children, ll)
            continue
        v.area[path] = "private"
        if path.endswith("tmp") and view.tmp_source is not None:
            v.area[path] = "mask"  # nothing is shown in it by itself; see below
            v.inside[path] = f"{hidden}/private{len(v.inside)}"
            v.mkdir(v.inside[path], 0o755)
            v.bind(v.inside[path], path)
            continue
        place = v.inside[path] = f"{hidden}/private{len(v.inside)}"
        v.mkdir(place, 0o1777 if path.endswith("tmp") else 0o755)
        if writable and path.endswith("tmp"):
            v.bind(place, path)
            v.allow(path, ll.write & ~IOCTL_DEV)
        else:
            v.bind(place, path, READONLY)
        _furnish(v, [path])
    for path in view.sockets:
        v.mounts.append(op(SOCKET, 0, 0, 0, 0, os.fsencode(path)))
    if view.tmp_source is not None:
        # Last, so that the second name shows the same masks and protections as the first.
        for area in sorted(areas, key=lambda area: _paths.is_within(str(view.tmp_source), area)):
            if area.endswith("tmp"):
                v.mounts.append(op(ALIAS, 0, 0, 0, 0, os.fsencode(view.tmp_source), os.fsencode(area)))
    v.mounts.append(op(PROC, READONLY))
    return [*v.sources, v.mounts[0], *v.skeleton, op(SEAL, 0, 0, 0, 0, os.fsencode(hidden)), *v.mounts[1:], *v.landlock]


def _depth(path: str) -> int:
    return path.count("/") if path != "/" else 0


def _furnish(v: _View, areas: list[str]) -> None:
    """What is visible in a private directory from the start."""
    plan = v.plan
    for path, text in plan.view.links:
        above, area = v.governing(path)
        if area == "private" and above in areas:
            v.link(v.inside[above] + path[len(above) :], text)
    for path in _paths.SHOWN:
        # A link from /etc into /run is common (systemd-resolved); what it leads to has to stay.
        real = _paths.resolve(path).real
        above, area = v.governing(real)
        if area == "private" and above in areas and os.path.exists(real) and real not in v.area:
            directory = _paths.is_directory(real)
            v.show(real, v.source(real, READONLY | (0 if directory else FLAT)), directory)
            v.area[real] = "ro"
    for path in plan.surroundings.private_dirs:
        above, area = v.governing(path)
        if area != "private" or above not in areas:
            continue
        place = v.inside[above] + path[len(above) :]
        v.mkdir(place, 0o700)
        if not path.startswith(("/tmp/", "/var/tmp/")):
            v.bind(place, path)
            v.allow(path, v.write & ~IOCTL_DEV)
    for path, content in plan.composition.files:
        above, area = v.governing(path)
        if area == "private" and above in areas:
            v.file(v.inside[above] + path[len(above) :], 0o444, content)


def _with_children(rules: Iterable[Rule]) -> set[str]:
    """Paths of denied directories below which something is shown again."""
    denied: set[str] = set()
    found: set[str] = set()
    for rule in rules:
        if rule.access is Access.DENY:
            denied.add(rule.path)
        elif denied:
            path = rule.path
            while path != "/":
                path = os.path.dirname(path)
                if path in denied:
                    found.add(path)
    return found


def _render_rule(v: _View, rule: Rule, pins: dict[str, tuple[int, int]], has_children: bool, ll: Landlock) -> None:
    path = rule.path
    _, area = v.governing(path)
    if rule.access is Access.DENY:
        if area in ("private", "mask") or path in v.plan.composition.absent:
            return  # not there in the first place
        v.area[path] = "mask"
        if has_children:
            v.masks += 1
            place = f".sandbox/mask{v.masks}"
            # Searchable, so that what is shown again below can be reached; nothing else is in it.
            v.mkdir(place, 0o555)
            v.inside[path] = place
            v.bind(place, path, READONLY)
        elif rule.show is not None:
            v.masks += 1
            place = f".sandbox/mask{v.masks}"
            v.file(place, rule.show[1], size=rule.show[0])
            v.bind(place, path, READONLY)
        else:
            v.inside[path] = ".sandbox/none"
            # A directory or a file: the launcher looks, since either may have come since this was compiled.
            # A socket may be gone by now. Anything else that was there a moment ago and is not now was moved, by a run
            # beside this one perhaps, to where no mask would be.
            flags = OPTIONAL if rule.why == HOST_SOCKET else 0
            v.mounts.append(op(MASK, flags, 0, 0, 0, b".sandbox/none", b".sandbox/empty", os.fsencode(path)))
    elif (area == "mask" and rule.reveals != "denied") or (area == "private" and not rule.reveals):
        return
    elif rule.rank < 0 and area != "rw":
        return  # a pin keeps what can be written from being moved; it makes nothing writable
    elif rule.access is Access.WRITE:
        if path in v.plan.composition.absent:
            return
        if area == "rw" and rule.pin:
            v.mounts.append(op(PROTECT, 0, 0, 0, 0, os.fsencode(path)))
        elif area != "rw":
            kind = _kind(path)
            pin = pins.get(path)
            if kind == 0:
                return  # a socket, or a part of a git directory, that is gone since
            directory = stat.S_ISDIR(kind)
            flags = 0 if directory else FLAT
            v.show(path, v.source(path, flags | (PINNED if pin else 0), pin or (0, 0)), directory)
        v.area[path] = "rw"
        v.allow(path, ll.write & ~IOCTL_DEV)
    elif area == "rw":
        if path in v.plan.composition.absent:
            return
        v.mounts.append(op(PROTECT, READONLY, 0, 0, 0, os.fsencode(path)))
        v.area[path] = "ro"
    elif area == "ro":
        v.area[path] = "ro"
    else:
        kind = _kind(path)
        if kind == 0 or stat.S_ISLNK(kind):
            return
        v.show(path, v.source(path, READONLY | (0 if stat.S_ISDIR(kind) else FLAT)), stat.S_ISDIR(kind))
        v.area[path] = "ro"


