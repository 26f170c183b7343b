"""What an import costs: `import fedpace` needs NumPy and SciPy only, and loads none of the rest."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = [
    "torch",
    "flwr",
    "ray",
    "pydantic",
    "rich",
    "typer",
    "sklearn",
    "matplotlib",
    "plotly",
    "datasets",
    "faiss",
    "scipy.sparse",
]

SHOW = f"""
import json, sys
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""


def loaded_by(statement):
    """Heavy packages that a fresh interpreter has loaded after `statement`, with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", statement + SHOW],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "statement",
    [
        "import fedpace",
        "import fedpace; fedpace._base.registry.selectors.names(); fedpace._base.registry.delays.names()",
        "import fedpace.testing",
        "import fedpace.numerics, fedpace.moments",
        "import fedpace.delays.lognormal, fedpace.delays.synthetic",
        "import fedpace.data.quadratic, fedpace.data.digits",
        "import fedpace.selectors.random",
        "import fedpace.selectors.delayhet_submodular",
        "import fedpace.selectors.delayhet_sampling",
        "import fedpace.core.session",
    ],
)
def test_nothing_heavy_is_loaded(statement):
    assert loaded_by(statement) == []


def test_a_whole_session_needs_nothing_heavy():
    assert (
        loaded_by(
            "import fedpace\n"
            "from fedpace.testing import check_selector\n"
            "check_selector(fedpace.make_selector('delayhet-submodular'), rounds=2)\n"
        )
        == []
    )


def test_the_simulator_loads_torch_when_it_trains_with_it_and_no_pictures():
    assert loaded_by("import fedpace.sim.rounds") == []
    assert loaded_by("import fedpace.sim.numpy_trainer") == []
    assert loaded_by("import fedpace.sim.torch_trainer") == ["torch"]


def test_data_sets_are_checked_without_torch():
    assert loaded_by("from fedpace.testing import check_dataset, check_selector") == []
    assert loaded_by("from fedpace.testing import check_model") == ["torch"]


def test_every_public_name_is_there():
    import fedpace

    for name in fedpace.__all__:
        assert hasattr(fedpace, name), name


def test_the_simulator_is_loaded_when_it_is_named():
    assert loaded_by("import fedpace; assert 'simulate' in dir(fedpace); assert callable(fedpace.make_selector)") == []
    assert loaded_by("import fedpace; fedpace.simulate") == ["rich"]
    assert "torch" not in loaded_by("import fedpace; fedpace.registry.models.names()")


def test_modules_that_documents_name_need_no_import_of_their_own():
    """`fedpace.planning.plan_cohort` and `fedpace.testing.check_model` stand in documents beside `import fedpace`."""
    import fedpace

    for part in ("numerics", "moments", "planning", "testing"):
        assert getattr(fedpace, part) is sys.modules[f"fedpace.{part}"]
    assert loaded_by("import fedpace; fedpace.planning; fedpace.testing; fedpace.moments") == []


def test_help_does_not_load_the_core():
    """What a server needs is loaded when a command has a server to run."""
    listed = "import json, sys\nfrom fedpace.cli import app\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, timeout=120, check=True)
    loaded = set(json.loads(done.stdout))
    assert not loaded & {"fedpace.core.coordinator", "fedpace.core.types", "fedpace.records.run", "fedpace.moments"}


def test_other_names_are_not_there():
    import fedpace

    with pytest.raises(AttributeError, match="simulat'"):
        _ = fedpace.simulat


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["compare", "--help"], ["data", "show", "--help"]])
def test_help_loads_nothing_that_trains_or_draws(arguments):
    """`fedpace --help` must answer at once: only what parses and prints is loaded."""
    run = (
        "import sys\nfrom fedpace.cli import app\n"
        f"try:\n    app({arguments!r})\nexcept SystemExit:\n    pass\nprint()\n"
    )
    done = subprocess.run([sys.executable, "-c", run + SHOW], capture_output=True, text=True, timeout=120, check=True)
    assert set(json.loads(done.stdout.splitlines()[-1])) <= {"typer", "rich"}
