"""How many clients are worth having at work where work has a price."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.selectors.pace_async import best_in_flight, spaced_numbers


@given(st.integers(1, 5000))
def test_numbers_go_up_to_the_most(most):
    found = spaced_numbers(most)
    assert found[0] == 1
    assert found[-1] == most
    assert all(one < other for one, other in itertools.pairwise(found))


def chosen(price, delays):
    errors = 1 / np.arange(1.0, len(delays) + 1)  # clients that err independently, by as much as they agree on
    return best_in_flight(price, np.sort(delays), errors, fewest=2)


def test_work_that_costs_nothing_is_done_by_all():
    assert chosen(0.0, np.ones(40)) == 40


def test_equal_clients_are_as_many_as_the_definition_says():
    # (1 + p n) / (1 - 1 / n) is least where p (n - 1)^2 = 1 + p
    price = 0.01
    best = min(range(2, 41), key=lambda n: (1 + price * n) / (1 - 1 / n))
    assert abs(chosen(price, np.ones(40)) - best) <= 3


@given(st.lists(st.floats(0.1, 100), min_size=3, max_size=60), st.floats(0, 10), st.floats(1, 100))
def test_a_higher_price_never_puts_more_to_work(delays, price, times):
    delays = np.array(delays)
    assert chosen(price * times, delays) <= chosen(price, delays)


def test_errors_that_no_number_brings_below_one_put_everybody_to_work():
    assert best_in_flight(1.0, np.ones(10), np.full(10, 2.0), fewest=2) == 10


@pytest.mark.parametrize("count", [1, 2])
def test_a_step_needs_its_fewest(count):
    assert chosen(1e9, np.ones(count)) == count


@pytest.mark.parametrize("price", [1e300, 1.7e308])
def test_a_price_beyond_all_numbers_puts_the_fewest_to_work(price):
    assert best_in_flight(price, np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.4, 0.3]), 2) == 2
