"""Federations of honest clients that a defence may take for attackers: their data, by seed.

Each differs from the next in how clients differ: in their optimum, their classes, their number, their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedpace._base.rng import stream
from fedpace.data._public_sets import dirichlet_partition
from fedpace.data.digits import Digits
from fedpace.data.federated import DataConfig
from fedpace.data.quadratic import Quadratic
from fedpace.data.table import Table
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Linear, Mlp, Softmax
from fedpace.sim.training import Training
from fedpace.study.arguments import ground

Array = NDArray[Any]
Pair = tuple[Array, Array]
DELAYS = LognormalDelays()
VISITS = Path(__file__).parents[2] / "examples" / "own_table" / "visits.csv"


@dataclass(frozen=True)
class Simulated:
    """A federation of the simulator.

    Args:
        says: what is special about it.
        clients: how many there are.
        data: of a seed.
        model: that they train.
        lr: their step size.
    """

    says: str
    clients: int
    data: Callable[[int], DataConfig]
    model: Any = field(default_factory=Softmax)
    lr: float = 0.3

    @property
    def training(self) -> Training:
        """How clients train."""
        return Training(epochs=5, batch=16, lr=self.lr, arithmetic="numpy")


@dataclass(frozen=True)
class OnFlower:
    """A federation on Flower's Grid, in one process: a client moves the model towards an optimum of its own.

    Args:
        says: what is special about it.
        optima: of the clients.
        width: numbers in the model, which are 0 at first; 0 = the 13 that the tests begin with, between -1 and 1.
    """

    says: str
    optima: tuple[float, ...]
    width: int = 1

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.optima)


def of_arrays(pairs: Sequence[Pair], test: Pair, model: Any) -> DataConfig:
    """Return arrays as the data of a federation."""
    return ground(pairs, test, None, model).data


def digits(seed: int) -> tuple[Array, Array, Array, Array]:
    """Return images and classes to train on, and those held out: three in ten."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images, labels = (bunch.data / 16.0).astype(np.float32), bunch.target.astype(np.int64)
    order = stream(seed, "honest", "digits").permutation(labels.size)
    test, train = np.split(order, [round(0.3 * labels.size)])
    return images[train], labels[train], images[test], labels[test]


def sorted_digits(clients: int) -> Callable[[int], DataConfig]:
    """Return digits sorted by their class, with noise, and cut into equal parts."""

    def drawn(seed: int) -> DataConfig:
        X, y, test_X, test_y = digits(seed)
        order = np.argsort(y + 0.5 * stream(seed, "honest", "noise").standard_normal(y.size), kind="stable")
        return of_arrays([(X[part], y[part]) for part in np.array_split(order, clients)], (test_X, test_y), Mlp())

    return drawn


def nine_of_few(clients: int, holders: int, who: str) -> Callable[[int], DataConfig]:
    """Return digits of which the 9 is held by few clients alone: by `random` or by the `slowest` ones."""

    def drawn(seed: int) -> DataConfig:
        X, y, test_X, test_y = digits(seed)
        rng = stream(seed, "honest", "nine")
        few = rng.permutation(clients)[:holders]
        if who == "slowest":
            few = np.argsort(DELAYS.build(clients, model_bytes=1, seed=seed).expected())[-holders:]
        parts = np.array_split(rng.permutation(np.flatnonzero(y != 9)), clients)
        for client, nines in zip(few.tolist(), np.array_split(np.flatnonzero(y == 9), holders), strict=True):
            parts[client] = np.concatenate([parts[client], nines])
        return of_arrays([(X[part], y[part]) for part in parts], (test_X, test_y), Softmax())

    return drawn


def own_class(clients: int) -> Callable[[int], DataConfig]:
    """Return digits of which one client holds all samples of the 9, and nothing else."""

    def drawn(seed: int) -> DataConfig:
        X, y, test_X, test_y = digits(seed)
        rng = stream(seed, "honest", "own class")
        parts = np.array_split(rng.permutation(np.flatnonzero(y != 9)), clients - 1)
        parts.insert(int(rng.integers(clients)), np.flatnonzero(y == 9))
        return of_arrays([(X[part], y[part]) for part in parts], (test_X, test_y), Softmax())

    return drawn


def unequal(clients: int) -> Callable[[int], DataConfig]:
    """Return digits in parts whose sizes fall as 1 / rank: the largest is 60 times the smallest or more."""

    def drawn(seed: int) -> DataConfig:
        X, y, test_X, test_y = digits(seed)
        rng = stream(seed, "honest", "sizes")
        sizes = 1.0 / np.arange(1, clients + 1)
        counts = np.maximum(2, np.floor(sizes / sizes.sum() * y.size)).astype(np.int64)
        counts[0] -= max(0, counts.sum() - y.size)
        parts = np.split(rng.permutation(y.size), np.cumsum(counts))[:clients]
        parts = [parts[place] for place in rng.permutation(clients)]
        return of_arrays([(X[part], y[part]) for part in parts], (test_X, test_y), Softmax())

    return drawn


def unscaled(clients: int, few: int) -> Callable[[int], DataConfig]:
    """Return digits of which a few clients never scaled the pixels: theirs reach 16 instead of 1."""

    def drawn(seed: int) -> DataConfig:
        X, y, test_X, test_y = digits(seed)
        rng = stream(seed, "honest", "units")
        parts = np.array_split(rng.permutation(y.size), clients)
        theirs = set(rng.permutation(clients)[:few].tolist())
        pairs = [(X[part] * (16.0 if client in theirs else 1.0), y[part]) for client, part in enumerate(parts)]
        return of_arrays(pairs, (test_X, test_y), Softmax())

    return drawn


def mostly_blank(clients: int, seeing: int) -> Callable[[int], DataConfig]:
    """Return digits that few clients hold; all others have blank images of all classes, and nothing to teach."""

    def drawn(seed: int) -> DataConfig:
        X, y, test_X, test_y = digits(seed)
        rng = stream(seed, "honest", "blank")
        theirs = sorted(rng.permutation(clients)[:seeing].tolist())
        parts = dict(zip(theirs, np.array_split(rng.permutation(y.size), seeing), strict=True))
        blank = np.full((20, X.shape[1]), 1e-4, dtype=np.float32), np.repeat(np.arange(10), 2)
        pairs = [(X[parts[c]], y[parts[c]]) if c in parts else blank for c in range(clients)]
        return of_arrays(pairs, (test_X, test_y), Softmax())

    return drawn


def dirichlet(clients: int, alpha: float, model: Any) -> Callable[[int], DataConfig]:
    """Return digits with a Dirichlet mix of classes per client."""

    def drawn(seed: int) -> DataConfig:
        X, y, test_X, test_y = digits(seed)
        parts = dirichlet_partition(y, clients, alpha, stream(seed, "honest", "dirichlet"))
        return of_arrays([(X[part], y[part]) for part in parts], (test_X, test_y), model)

    return drawn


def lines(optima: Sequence[float], width: int) -> Callable[[int], DataConfig]:
    """Return linear regression: the i-th client's optimum is the i-th number times one vector; the test is on all."""

    def drawn(seed: int) -> DataConfig:
        rng = stream(seed, "honest", "lines", width)
        vector = rng.standard_normal(width) / np.sqrt(width)
        pairs = []
        for optimum in optima:
            X = rng.standard_normal((60, width))
            pairs.append((X, optimum * X @ vector + 0.1 * rng.standard_normal(60)))
        train = [(X[:40], y[:40]) for X, y in pairs]
        test = np.concatenate([X[40:] for X, _ in pairs]), np.concatenate([y[40:] for _, y in pairs])
        return of_arrays(train, test, Linear())

    return drawn


def grouped(load: str, by: Callable[[Array], Array], model: Any) -> Callable[[int], DataConfig]:
    """Return a table of scikit-learn whose rows are those of the clients that `by` names; a fifth is held out."""

    def drawn(seed: int) -> DataConfig:
        import sklearn.datasets

        bunch = getattr(sklearn.datasets, load)()
        X, owners = (bunch.data - bunch.data.mean(0)) / bunch.data.std(0), by(bunch.data)
        y = (
            bunch.target
            if bunch.target.dtype.kind == "i"
            else (bunch.target - bunch.target.mean()) / bunch.target.std()
        )
        rng = stream(seed, "honest", load)
        rows = [rng.permutation(np.flatnonzero(owners == owner)) for owner in np.unique(owners)]
        tests = np.concatenate([part[: max(1, len(part) // 5)] for part in rows])
        trains = [part[max(1, len(part) // 5) :] for part in rows]
        return of_arrays([(X[part], y[part]) for part in trains], (X[tests], y[tests]), model)

    return drawn


def quantiles(column: int, count: int) -> Callable[[Array], Array]:
    """Return what numbers rows by where they stand in a column, in so many equal groups."""
    return lambda X: np.argsort(np.argsort(X[:, column], kind="stable")) * count // len(X)


def by_age_and_sex(X: Array) -> Array:
    """Number the rows of the diabetes table: ten groups by age, of each sex."""
    return np.asarray(2 * quantiles(0, 10)(X) + (X[:, 1] > 0))


def named(config: Any) -> Callable[[int], DataConfig]:
    """Return a data set of fedpace, which draws itself by the seed."""
    return lambda seed: cast("DataConfig", config)


FEDERATIONS: dict[str, Simulated | OnFlower] = {
    "flower-20": OnFlower("20 clients on Flower, client i has optimum i", tuple(map(float, range(1, 21))), 0),
    "flower-6": OnFlower("6 clients on Flower, client i has optimum i; one number", tuple(map(float, range(1, 7)))),
    "flower-groups": OnFlower(
        "20 clients on Flower, two groups 3:1 with optima 3 and -1", (3.0,) * 15 + (-1.0,) * 5, 1000
    ),
    "line-20": Simulated(
        "regression with one number, client i has optimum i", 20, lines(range(1, 21), 1), Linear(), lr=0.05
    ),
    "groups-60": Simulated(
        "regression in 50 dimensions, two groups 3:1 with opposed optima",
        60,
        lines([1.0, 1.0, 1.0, -1.0] * 15, 50),
        Linear(),
        lr=0.05,
    ),
    "quadratic-60": Simulated(
        "the paper's Quadratic in 200 dimensions",
        60,
        named(Quadratic(clients=60, samples=50, test_samples=20, dimension=200)),
        Linear(),
        lr=0.001,
    ),
    "sorted-10": Simulated("digits sorted by class with noise, MLP", 10, sorted_digits(10), Mlp()),
    "sorted-30": Simulated("the same", 30, sorted_digits(30), Mlp()),
    "nine-few-60": Simulated("digits, a random tenth of the clients holds the 9", 60, nine_of_few(60, 6, "random")),
    "nine-slow-60": Simulated("digits, the slowest tenth holds the 9", 60, nine_of_few(60, 6, "slowest")),
    "own-class-20": Simulated("digits, one client holds the 9 and nothing else", 20, own_class(20)),
    "unequal-60": Simulated("digits, sizes as 1 / rank", 60, unequal(60)),
    "unscaled-60": Simulated("digits, a tenth of the clients with pixels 16 times as large", 60, unscaled(60, 6)),
    "blank-60": Simulated("digits, four clients in five have blank images only", 60, mostly_blank(60, 12)),
    "dirichlet-60": Simulated("digits, Dirichlet 0.05", 60, dirichlet(60, 0.05, Softmax())),
    "wide-60": Simulated("digits, Dirichlet 0.3, MLP of 19,210 numbers", 60, dirichlet(60, 0.3, Mlp(256)), Mlp(256)),
    "digits-300": Simulated(
        "digits, 4 samples a client", 300, named(Digits(clients=300, alpha=0.5, test_fraction=0.3))
    ),
    "visits": Simulated(
        "natural table: returning patients, a client per clinic", 40, named(Table(str(VISITS), "clinic", "returned"))
    ),
    "diabetes": Simulated(
        "natural table: diabetes, clients by age and sex",
        20,
        grouped("load_diabetes", by_age_and_sex, Linear()),
        Linear(),
        lr=0.01,
    ),
    "cancer": Simulated(
        "natural table: breast cancer, clients by the radius of the tumour",
        20,
        grouped("load_breast_cancer", quantiles(0, 20), Softmax()),
        lr=0.1,
    ),
}
