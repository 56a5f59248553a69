"""Laws of path rules: what a policy says of a path does not depend on the order in which it was written."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxed_subprocess import _paths
from sandboxed_subprocess._plan import Access, deny, protect, readable, sort_rules, writable

names = st.sampled_from(["a", "b", "c", "d"])
paths = st.lists(names, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))
makers = st.sampled_from([deny, protect, readable, writable])
rules = st.lists(st.builds(lambda make, path: make(path, "x"), makers, paths), max_size=12)


def decide(ordered, path):
    best = None
    for rule in ordered:
        if _paths.is_within(path, rule.path):
            best = rule
    return best


@given(rules, paths, st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_the_most_specific_rule_decides_whatever_the_order(found, path, shuffler):
    """Mounts applied in the order of a list hide a workspace or open a secret; ours are sorted."""
    again = list(found)
    shuffler.shuffle(again)
    first, second = decide(sort_rules(found), path), decide(sort_rules(again), path)
    assert (first and (first.path, first.access)) == (second and (second.path, second.access))
    if first is not None:
        assert all(len(r.path) <= len(first.path) for r in found if _paths.is_within(path, r.path))


@given(rules, paths)
@settings(max_examples=300, deadline=None)
def test_at_one_path_denied_beats_protected_beats_writable_beats_readable(found, path):
    """A contradiction is decided for safety, and always in the same way."""
    rank = {deny: 3, protect: 2, writable: 1, readable: 0}
    everything = [make(path, "x") for make in rank] + found
    random.Random(0).shuffle(everything)
    assert decide(sort_rules(everything), path).access is Access.DENY
    assert decide(sort_rules([writable(path, "x"), protect(path, "x")]), path).access is Access.READ


@given(rules, paths)
@settings(max_examples=300, deadline=None)
def test_one_more_denial_never_opens_anything(found, path):
    """Adding to deny_read can only take away."""
    before, after = sort_rules(found), sort_rules([*found, deny(path, "x")])
    for probe in {path, path + "/a", path + "/a/b", *(r.path for r in found)}:
        old = decide(before, probe)
        new = decide(after, probe)
        assert new is None or (new.access <= (old.access if old else Access.READ))


@given(rules)
@settings(max_examples=200, deadline=None)
def test_parents_come_before_children(found):
    """A mount on a parent that came later would cover the child's."""
    ordered = sort_rules(found)
    for index, rule in enumerate(ordered):
        assert not any(_paths.is_within(earlier.path, rule.path) for earlier in ordered[:index])
