# SPDX-License-Identifier: Apache-2.0
"""Where steps turn from good to bad: every pattern of short rows, without processes."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import pytest
from stepwell._program.turning import Search, Verdict

GOOD, BAD, SKIPPED = Verdict.GOOD, Verdict.BAD, Verdict.SKIPPED


def searched(steps: Sequence[int], verdicts: Mapping[int, Verdict]) -> tuple[Search, list[int]]:
    """The search at its end, and the steps that it asked for."""
    search = Search(steps)
    asked: list[int] = []
    while (step := search.next()) is not None:
        assert search.left <= len(steps) - 2 - len(asked)
        asked.append(step)
        search.tell(step, verdicts[step])
    assert search.left == 0
    return search, asked


def rows() -> Iterator[tuple[Sequence[int], dict[int, Verdict]]]:
    """All verdicts on up to seven steps between a good and a bad one, upwards and downwards."""
    for count in range(8):
        for pattern in itertools.product(Verdict, repeat=count):
            for numbers in (range(10, 10 * (count + 3), 10), range(count + 2, 0, -1)):
                steps = list(numbers)
                yield steps, dict(zip(steps, (GOOD, *pattern, BAD), strict=True))


def test_the_border_is_between_a_good_and_a_bad_step() -> None:
    for steps, verdicts in rows():
        search, asked = searched(steps, verdicts)
        assert len(set(asked)) == len(asked) and not {steps[0], steps[-1]} & set(asked)
        assert verdicts[search.last_good] is GOOD and verdicts[search.first_bad] is BAD
        good, bad = steps.index(search.last_good), steps.index(search.first_bad)
        assert good < bad
        assert search.skipped == steps[good + 1:bad]
        assert all(verdicts[step] is SKIPPED for step in search.skipped)


def test_it_is_the_only_border_where_there_is_one() -> None:
    for steps, verdicts in rows():
        told = [step for step in steps if verdicts[step] is not SKIPPED]
        turns = [(one, other) for one, other in itertools.pairwise(told)
                 if verdicts[one] is not verdicts[other]]
        if len(turns) == 1:
            search, _ = searched(steps, verdicts)
            assert (search.last_good, search.first_bad) == turns[0]


def test_as_few_steps_as_there_can_be() -> None:
    for count in (*range(40), 100, 999, 1000):
        steps = range(count + 2)
        counts = []
        for first_bad in range(1, count + 2) if count < 100 else (1, 2, count // 2, count + 1):
            verdicts = {step: BAD if step >= first_bad else GOOD for step in steps}
            search, asked = searched(steps, verdicts)
            assert (search.last_good, search.first_bad) == (first_bad - 1, first_bad)
            counts.append(len(asked))
        assert max(counts) <= math.ceil(math.log2(count + 1))


def test_steps_that_cannot_be_told_side_by_side_cost_little() -> None:
    steps = range(1002)
    for begin in range(0, 900, 50):  # a tenth of the steps
        unknown = range(begin + 1, begin + 101)
        for first_bad in (1, 300, 500, 750, 1001):
            verdicts = {step: SKIPPED if step in unknown else BAD if step >= first_bad else GOOD
                        for step in steps}
            verdicts[0], verdicts[1001] = GOOD, BAD
            search, asked = searched(steps, verdicts)
            if not search.skipped:
                assert len(asked) <= 30
            else:
                assert search.skipped == list(unknown)


def test_every_step_is_skipped() -> None:
    search, asked = searched(range(5), dict.fromkeys(range(5), SKIPPED))
    assert sorted(asked) == search.skipped == [1, 2, 3]
    assert (search.last_good, search.first_bad) == (0, 4)


def test_nothing_between() -> None:
    search = Search([7, 3])
    assert search.next() is None and search.skipped == []
    assert (search.last_good, search.first_bad) == (7, 3)


def test_what_makes_no_sense() -> None:
    for steps in ([], [3], [3, 4, 3]):
        with pytest.raises(ValueError, match="at least two"):
            Search(steps)
    search = Search(range(5))
    for step in (0, 4):
        with pytest.raises(ValueError, match="is not open"):
            search.tell(step, GOOD)
    search.tell(2, SKIPPED)
    with pytest.raises(ValueError, match="is not open"):
        search.tell(2, BAD)
