"""How far beyond the average of the clients' models the shared model may go.

Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation" (ICLR 2023): clients that
disagree each overshoot in their own direction, so that the average u = sum a_i u_i of their updates is too short. The
step that the clients' disagreement allows is at most max(1, sum a_i |u_i|^2 / (2 |u|^2)) times as long. It needs no
constant, and is 1 where clients agree. The paper takes a_i = 1/k; here they are the cohort's weights.

Momentum (`acceleration`) lengthens steps too: where rounds agree on a direction, it goes 1 / (1 - part) times as far in
it. That counts as part of what is allowed.
"""

from __future__ import annotations


def extrapolation(mean_square: float, square: float, power: float, *, carried: float = 0.0) -> float:
    """Return the factor of the step.

    Args:
        mean_square: sum_i a_i |u_i|^2, a summing to 1.
        square: |sum_i a_i u_i|^2.
        power: of the largest factor: 0 = the plain average, 1 = FedExP.
        carried: the part of each move that the next one carries on.
    """
    if square <= 0:
        return 1.0
    longest = float(max(1.0, mean_square / (2.0 * square)) ** power)
    return max(1.0, longest * (1.0 - carried))
