"""Names to classes: the package's own, then plug-ins; misses, collisions and broken plug-ins say what is wrong."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

import fedpace
from fedpace._base import registry
from fedpace._base.errors import InputError
from fedpace.selectors.random import Random

CATALOGUES = [registry.selectors, registry.delays, registry.datasets, registry.models]


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    """Installs a distribution: a module and its entry points, as pip would lay them out."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written = []

    def install(dist, entry_points, module="", source=""):
        info = tmp_path / f"{dist}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        if module:
            (tmp_path / f"{module}.py").write_text(source)
            written.append(module)

    yield install
    for module in written:
        sys.modules.pop(module, None)


SCHEME = """
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Mine:
    name: ClassVar[str] = "mine"
    needs: ClassVar[frozenset] = frozenset()
    k: int = 3
"""


@pytest.mark.parametrize("catalogue", CATALOGUES, ids=lambda c: c.kind)
def test_every_name_gives_the_class_of_that_name(catalogue):
    names = catalogue.names()
    assert names == sorted(set(names))
    assert names
    for name in names:
        assert catalogue[name].name == name
        assert catalogue[name].__module__.rsplit(".", 1)[1] in (name.replace("-", "_"), "builtin")


def test_the_components_of_the_first_issue_are_there():
    assert {"random", "delayhet-submodular", "delayhet-sampling"} <= set(registry.selectors.names())
    assert {"synthetic", "lognormal"} <= set(registry.delays.names())
    assert {"quadratic", "digits"} <= set(registry.datasets.names())
    assert {"linear", "softmax", "mlp"} <= set(registry.models.names())


def test_helpers_are_no_components():
    assert not {"base", "partition", "federated", "estimator", "propagation"} & {
        name for catalogue in CATALOGUES for name in catalogue.names()
    }


def test_making_one():
    assert registry.selectors.make("random", k=4) == Random(k=4)
    assert fedpace.make_selector("random", k=4, variant="md") == Random(k=4, variant="md")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delayhet-submodlar", "Did you mean 'delayhet-submodular'?"),
        ("delayhet_sampling", "Did you mean 'delayhet-sampling'?"),
        ("Random", "Did you mean 'random'?"),
        ("_cohorts", ""),
        ("../random", "Did you mean 'random'?"),
        ("random.Random", ""),
        ("", ""),
    ],
)
def test_a_miss_lists_what_there_is(name, hint):
    with pytest.raises(InputError) as caught:
        registry.selectors[name]
    text = str(caught.value)
    assert text.startswith(f"there is no scheme {name!r}.")
    assert hint in text
    assert "Known: " in text
    assert "delayhet-sampling, delayhet-submodular" in text


def test_kinds_name_themselves():
    for catalogue, kind in zip(CATALOGUES, ("scheme", "delay model", "data set", "model"), strict=True):
        with pytest.raises(InputError, match=f"there is no {kind} 'zzz'"):
            catalogue["zzz"]


def test_a_plug_in_is_found_listed_and_made(plug_in):
    plug_in("mine", "[fedpace.selectors]\nmine = mine_scheme:Mine\n", "mine_scheme", SCHEME)
    assert "mine" in registry.selectors.names()
    assert "mine" not in registry.delays.names()
    made = fedpace.make_selector("mine", k=7)
    assert (made.name, made.k) == ("mine", 7)


def test_a_plug_in_is_not_imported_to_be_listed(plug_in):
    plug_in("slow", "[fedpace.delays]\nslow = slow_delays:Slow\n", "slow_delays", "raise SystemExit")
    assert "slow" in registry.delays.names()
    assert registry.delays["lognormal"].name == "lognormal"


def test_a_plug_in_with_the_name_of_a_built_in(plug_in):
    plug_in("mine", "[fedpace.selectors]\nrandom = mine_scheme:Mine\n", "mine_scheme", SCHEME)
    with pytest.raises(InputError, match="'random' is part of fedpace, but mine_scheme:Mine registers the same name"):
        registry.selectors["random"]
    assert registry.selectors["delayhet-submodular"].name == "delayhet-submodular", "the others live"


def test_two_plug_ins_of_one_name(plug_in):
    plug_in("mine", "[fedpace.selectors]\nmine = mine_scheme:Mine\n", "mine_scheme", SCHEME)
    plug_in("yours", "[fedpace.selectors]\nmine = your_scheme:Yours\n")
    with pytest.raises(InputError, match=r"two plug-ins are called 'mine': .*mine_scheme:Mine.*remove one"):
        registry.selectors["mine"]


def test_one_plug_in_seen_twice_is_one(plug_in):
    """A package on the path by two ways, as an editable install may be."""
    plug_in("mine", "[fedpace.selectors]\nmine = mine_scheme:Mine\n", "mine_scheme", SCHEME)
    plug_in("mine.too", "[fedpace.selectors]\nmine = mine_scheme:Mine\n")
    assert registry.selectors["mine"].name == "mine"


@pytest.mark.parametrize(
    ("target", "source", "words"),
    [
        ("bad_plug:Mine", "import no_such_module_anywhere", "No module named 'no_such_module_anywhere'"),
        ("bad_plug:Missing", SCHEME, "has no attribute 'Missing'"),
        ("bad_plug:Mine", "Mine = 3 / 0", "division by zero"),
        ("bad_plug:Mine", "def broken(:", "invalid syntax"),
        ("nowhere_to_be_found:Mine", SCHEME, "No module named 'nowhere_to_be_found'"),
        ("bad_plug:Mine", SCHEME.replace('"mine"', '"other"'), "calls itself 'other'"),
        ("bad_plug:Mine", "def Mine(): pass", "calls itself None"),
    ],
)
def test_a_broken_plug_in_is_named(plug_in, target, source, words):
    plug_in("bad", f"[fedpace.selectors]\nmine = {target}\n", "bad_plug", source)
    with pytest.raises(InputError) as caught:
        registry.selectors["mine"]
    text = str(caught.value)
    assert text.startswith(f"the plug-in {target} for the scheme 'mine' is broken: ")
    assert words in text
    assert registry.selectors["random"] is Random, "the others live"


@dataclass(frozen=True)
class Outside:
    name: ClassVar[str] = "random"


def test_a_class_that_a_module_merely_imports_is_not_its_own(monkeypatch):
    import fedpace.selectors.random as module

    monkeypatch.setattr(module, "Another", Outside, raising=False)
    assert registry.selectors["random"] is Random


@pytest.mark.parametrize("kind", ["selectors", "delays", "datasets", "models", "servers"])
def test_classes_are_called_as_they_are_registered(kind):
    """Each word of the name with one capital letter, whatever papers write: `fed-cs` is FedCs."""
    catalogue = getattr(registry, kind)
    for name in catalogue.names():
        expected = "".join(word.capitalize() for word in name.split("-")) + ("Delays" if kind == "delays" else "")
        assert catalogue[name].__name__ == expected
