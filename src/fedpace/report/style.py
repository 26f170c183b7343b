"""Colours, dashes and marks of the schemes, the same in every figure.

Each scheme of the package has one colour and dash everywhere: `pace-async` is always blue, `pace` is orange, and
`random`, the usual baseline, is grey. Other schemes, and second variants of a scheme in one comparison, take looks that
are still free.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

PALETTE = ("#0072b2", "#ff5a00", "#a50fff", "#b4875a", "#ff2de1", "#d2001e")
"""Found by search: each has a contrast of 3 or more on the light and on the dark page, and any two, the neutral one
included, are told apart with every common colour blindness (tests/report/test_style.py measures both)."""
OURS = 2
"""Number of colours, the first of the palette, that no other scheme shares with `pace-async` and `pace` if it can."""
NEUTRAL = "#7f7f7f"
"""Colour of `random`, which the others are compared with."""
INK, FAINT, BAR = "#222222", "#d9d9d9", "#9aa7b5"
"""Colours of text, of grid lines and of bars."""
DASHES = ("solid", "dash", "dot", "dashdot")
"""Names of dashes, as plotly has them."""
SYMBOLS = {"solid": "circle", "dash": "square", "dot": "diamond", "dashdot": "triangle-up"}
"""Dash -> mark, for figures without lines."""
MAX_BANDED = 6
"""Most schemes for which bands over seeds are drawn: more bands over each other show nothing."""


@dataclass(frozen=True)
class Look:
    """How a scheme is drawn."""

    colour: str
    dash: str

    @property
    def symbol(self) -> str:
        """The mark of the scheme."""
        return SYMBOLS[self.dash]


LOOKS = (
    *(Look(colour, DASHES[0]) for colour in PALETTE),
    *(Look(colour, dash) for dash in DASHES[1:] for colour in PALETTE[OURS:]),
    *(Look(colour, dash) for dash in DASHES[1:] for colour in PALETTE[:OURS]),
)
BASELINE = Look(NEUTRAL, DASHES[0])
SCHEMES = (
    "pace-async", "pace", "fedbuff", "fed-cs", "delayhet-submodular", "delayhet-sampling",
    "oort", "fedasync", "flanp", "divfl", "power-of-choice", "tifl",
    "refl", "pisces", "ca2fl", "haccs", "moment-match", "delayhet-transport",
    "approx-opt-sampling", "optimal-client-sampling", "clustered-sampling", "fed-cbs", "folb", "moment-sampling",
)  # fmt: skip
"""Schemes with a fixed look, in the order of `LOOKS`."""
FIXED = dict(zip(SCHEMES, LOOKS, strict=True)) | {"random": BASELINE}


def scheme_looks(schemes: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """Return the look of each label, given (label, selector) of the schemes in one figure."""
    listed = list(schemes)
    found: dict[str, Look] = {}
    for label, selector in listed:
        if f"{label}(".startswith(f"{selector}(") and selector in FIXED and FIXED[selector] not in found.values():
            found[label] = FIXED[selector]
    for label, _ in listed:
        if label not in found:
            found[label] = _free(label, found)
    return {label: found[label] for label, _ in listed}


def _free(label: str, taken: dict[str, Look]) -> Look:
    """Return the least used look, preferring the least used colour, and other colours than those of `OURS`."""
    used, colours = Counter(taken.values()), Counter(look.colour for look in taken.values())
    start = zlib.crc32(label.encode())

    def cost(look: Look) -> tuple[int, ...]:
        place, ours = LOOKS.index(look), look.colour in PALETTE[:OURS]
        shared = ours and colours[look.colour] > 0
        dash = DASHES.index(look.dash)
        return used[look], shared, colours[look.colour], dash, ours, (place - start) % len(PALETTE)

    return min(LOOKS, key=cost)
