"""Nesterov momentum for the shared model, with a restart when a round moves against the momentum.

Nesterov, "A method of solving a convex programming problem with convergence rate O(1/k^2)" (1983), with the sequence
that Su, Boyd and Candes (2016) write as k / (k + 3); O'Donoghue and Candes, "Adaptive restart for accelerated gradient
schemes" (2015). The server sends clients a model that is ahead of the averaged model by a fraction of the last move of
the average. That fraction grows with the rounds since the last restart; there is nothing to tune. Momentum carries
errors as well as progress, so it helps if cohorts represent the population.

If clients train for long, a plain average may already reach the minimum along the direction of the move, and momentum
would overshoot it. The fraction is therefore limited by the measured curvature along the move
(`fedpace.server.nesterov`): momentum may go at most half of the distance that a plain average leaves.
"""

from __future__ import annotations


def carried_part(age: int, along: float, curvature: float = 0.0) -> tuple[float, int]:
    """Return the momentum coefficient b for this round, and the number of rounds since the last restart after it.

    The server keeps the model y that it sends and the lead l = y - x over the averaged model x, with l = 0 at first.
    Let u be the averaged update of a round and g = f u the step (`extrapolation`). The average then moves by l + g, and

        l <- b (l + g),        y <- y + g + l.

    Args:
        age: rounds since the last restart.
        along: <u, u + l>; below 0 the round moved against the momentum, and the momentum restarts.
        curvature: h, the fraction of the distance to the minimum along the last moves that the plain average covers;
            0 = unknown. Momentum covers h / (1 - b) instead, which is limited to (1 + h) / 2.
    """
    since = 0 if along < 0 else age
    bounded = min(max(curvature, 0.0), 1.0)
    return min(since / (since + 3), (1 - bounded) / (1 + bounded)), since + 1
