"""The plan says of every row whether it is filled."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.capi import RefusedError, plan

small = st.integers(0, 60)
spans = st.lists(st.tuples(small, st.integers(1, 30)).map(lambda s: (s[0], s[0] + s[1])), max_size=5)


@given(n=small, sink=small, tail=st.integers(1, 60), min_prompt=small, exact=spans)
def test_rows_that_are_filled(n, sink, tail, min_prompt, exact):
    expected = [
        n >= min_prompt and sink <= row < n - tail and not any(p0 <= row < p1 for p0, p1 in exact) for row in range(n)
    ]
    ranges = plan(n, sink, tail, min_prompt, exact)
    assert [any(p0 <= row < p1 for p0, p1 in ranges) for row in range(n)] == expected
    assert all(p0 < p1 for p0, p1 in ranges)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ranges))


@pytest.mark.parametrize(
    ("sink", "tail", "min_prompt", "exact"),
    [(-1, 64, 0, []), (4, -1, 0, []), (4, 64, -1, []), (4, 64, 0, [(10, 5)]), (4, 64, 0, [(-5, 5)])],
)
def test_bad_parameters_are_refused(sink, tail, min_prompt, exact):
    with pytest.raises(RefusedError):
        plan(300, sink, tail, min_prompt, exact)


def test_a_plan_of_too_many_ranges_is_refused():
    exact = [(2 * i, 2 * i + 1) for i in range(40)]
    assert len(plan(200, 0, 64, 0, exact, n_max=41)) == 40
    with pytest.raises(RefusedError):
        plan(200, 0, 64, 0, exact, n_max=39)
