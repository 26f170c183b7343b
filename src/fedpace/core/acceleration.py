"""Momentum for the shared model: Nesterov's, with a restart where a round turns back.

Nesterov, "A method of solving a convex programming problem with convergence rate O(1/k^2)" (1983), with the sequence
that Su, Boyd and Candes (2016) write as k / (k + 3); O'Donoghue and Candes, "Adaptive restart for accelerated gradient
schemes" (2015). The model that clients are sent runs ahead of the one that was averaged, by a part of how far the
average moved last. That part grows with the rounds since the last restart, and there is nothing to tune. Errors are
carried on as well as progress, so that it pays where cohorts represent the population.

Where clients train for long, a plain average may go all of the way to the minimum along the direction in which the
model moves, and whatever is carried on goes past it. So the part is limited by the curvature along the way, which is
measured (`fedpace.server.nesterov`): moves may go half of what a plain average leaves, and no more.
"""

from __future__ import annotations


def carried_part(age: int, along: float, curvature: float = 0.0) -> tuple[float, int]:
    """Return what part of this move the next one carries on, and the rounds since the last restart after it.

    A server keeps, beside the model y that it sends, the lead l = y - x that y has over the averaged model x; 0 at
    first. After a round whose averaged updates are u, with part b and step g = f u (`extrapolation`), the average has
    moved by l + g, and

        l <- b (l + g),        y <- y + g + l.

    Args:
        age: rounds since the last restart.
        along: <u, u + l>; below 0 the round turned back on what was carried into it, and momentum starts anew.
        curvature: h, the part of the way to the minimum along the last moves that the plain average goes; 0 = unknown.
            Momentum makes it h / (1 - b), which may be (1 + h) / 2 at the most.
    """
    since = 0 if along < 0 else age
    bounded = min(max(curvature, 0.0), 1.0)
    return min(since / (since + 3), (1 - bounded) / (1 + bounded)), since + 1
