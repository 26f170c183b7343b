"""Experiments in TOML: every mistake is named with its file, table and key."""

from __future__ import annotations

import copy
import math

import pytest
from experiments import TEXT

from fedpace import make_selector
from fedpace._base.errors import FedpaceError, InputError
from fedpace.config import LabelledScheme, Overrides, load_experiment, parse_experiment
from fedpace.data.digits import Digits
from fedpace.data.quadratic import Quadratic
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Softmax
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular
from fedpace.selectors.random import Random
from fedpace.server.fedadam import Fedadam
from fedpace.server.fedexp import Fedexp
from fedpace.sim.rounds import Fleet
from fedpace.sim.stopping import Stop
from fedpace.sim.torch_trainer import Training


def table():
    return copy.deepcopy(
        {
            "name": "tiny",
            "data": {"name": "quadratic", "clients": 5},
            "model": {"name": "linear"},
            "delays": {"name": "lognormal"},
            "selectors": [{"name": "random", "k": 2}],
        }
    )


def changed(path, value):
    """The table with one entry set; `path` is the keys to it, joined by dots, and 0 is the first selector."""
    found = node = table()
    *way, last = path.split(".")
    for key in way:
        node = node["selectors"][0] if key == "0" else node.setdefault(key, {})
    node[last] = value
    return found


def parse(raw):
    return parse_experiment(raw, "my.toml")


# -- what is read ------------------------------------------------------------------------------------------


def test_everything_is_read(write):
    found = load_experiment(write(TEXT))
    assert found.name == "tiny"
    assert found.seeds == (3, 5)
    assert found.data == Quadratic(clients=5)
    assert found.delays == LognormalDelays(median=20)
    assert found.training == Training(lr=0.05)
    assert found.fleet == Fleet(warmup="lazy")
    assert found.clock.charge_warmup
    assert found.stop == Stop(target=2.95, max_seconds=1e5)
    assert [scheme.label for scheme in found.schemes] == ["random", "unbiased", "delayhet-submodular"]
    assert [scheme.selector for scheme in found.schemes] == [
        Random(k=2),
        Random(k=2, variant="uniform-unbiased"),
        DelayhetSubmodular(target_heterogeneity=0.5),
    ]
    assert found.direction == "down"


def test_the_embedded_default():
    found = load_experiment(None)
    assert isinstance(found.data, Digits)
    assert isinstance(found.model, Softmax)
    assert isinstance(found.delays, LognormalDelays)
    assert found.direction == "up"
    assert {"random", "delayhet-submodular", "delayhet-sampling"} <= {s.selector.name for s in found.schemes}
    assert found.stop.target is not None
    assert all(getattr(scheme.selector, "k", 0) <= found.data.clients for scheme in found.schemes)


def test_what_may_be_left_out():
    found = parse(table())
    assert found.seeds == (0,)
    assert found.training == Training()
    assert found.stop == Stop()


@pytest.mark.parametrize("source", ["default", "text", "least"])
def test_an_experiment_survives_as_a_table(write, source):
    found = {
        "default": lambda: load_experiment(None),
        "text": lambda: load_experiment(write(TEXT)),
        "least": lambda: parse(table()),
    }[source]()
    assert parse(found.as_table()) == found
    assert found.as_table() == parse(found.as_table()).as_table()


@pytest.mark.parametrize(
    ("given", "seeds"), [(1, (0,)), (3, (0, 1, 2)), ([4], (4,)), ([7, 2], (7, 2)), ([0, 10**12], (0, 10**12))]
)
def test_seeds(given, seeds):
    assert parse(changed("seeds", given)).seeds == seeds


# -- files -------------------------------------------------------------------------------------------------


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"expected an experiment in .*none\.toml, but there is no such file"):
        load_experiment(tmp_path / "none.toml")


def test_a_data_file_is_no_experiment_and_the_error_says_what_to_write(tmp_path):
    (tmp_path / "shops.csv").write_text("shop,sales\na,1\n")
    with pytest.raises(
        InputError, match=r'is a data file.*name = "table", path = "shops.csv".*fedpace data show table'
    ):
        load_experiment(tmp_path / "shops.csv")


def test_a_folder(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        load_experiment(tmp_path)


def test_broken_toml(write):
    with pytest.raises(InputError, match=r"experiment\.toml is not TOML: .*line 2"):
        load_experiment(write('name = "x"\nseeds = [1 2]'))


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(InputError, match=r"x\.toml cannot be read"):
        load_experiment(tmp_path / "x.toml")


def test_an_empty_file(write):
    with pytest.raises(InputError, match=r"experiment\.toml lacks 'name': an experiment names its selectors, data"):
        load_experiment(write(""))


# -- unknown keys and names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("sedes", r"^my\.toml has no key 'sedes'\. Did you mean 'seeds'\? Known keys: name, seeds, selectors, data"),
        (
            "training.epoch",
            r"^my\.toml, \[training\] has no key 'epoch'\. Did you mean 'epochs'\? Known keys: epochs, b",
        ),
        ("data.client", r"^my\.toml, \[data\] has no key 'client'\. Did you mean 'clients'\?"),
        ("model.hidden", r"^my\.toml, \[model\] has no key 'hidden'\. Known keys: bias"),
        ("delays.medain", r"^my\.toml, \[delays\] has no key 'medain'\. Did you mean 'median'\?"),
        ("stop.zzz", r"^my\.toml, \[stop\] has no key 'zzz'\. Known keys: target, max_rounds, max_seconds"),
        ("fleet.share", r"^my\.toml, \[fleet\] has no key 'share'\. Did you mean 'shares'\?"),
        ("clock.probe", r"^my\.toml, \[clock\] has no key 'probe'"),
        ("0.kk", r"^my\.toml, \[\[selectors\]\] number 1 has no key 'kk'\. Did you mean 'k'\? Known keys: k, variant"),
    ],
)
def test_unknown_keys(path, words):
    with pytest.raises(FedpaceError, match=words):
        parse(changed(path, 1))


def test_unknown_keys_in_a_file_name_the_file(write):
    with pytest.raises(InputError, match=r"experiment\.toml, \[training\] has no key 'learning_rate'"):
        load_experiment(write(TEXT.replace("lr = 0.05", "learning_rate = 0.05")))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("0.name", "randm", r"number 1: there is no scheme 'randm'\. Did you mean 'random'\? Known: "),
        ("data.name", "quadratc", r"my\.toml, \[data\]: there is no data set 'quadratc'\. Did you mean 'quadratic'\?"),
        ("model.name", "conv9", r"my\.toml, \[model\]: there is no model 'conv9'"),
        ("delays.name", "log-normal", r"my\.toml, \[delays\]: there is no delay model 'log-normal'\. Did you mean"),
        ("0.name", 3, r"number 1: name is 3, but it should be text in quotes"),
    ],
)
def test_unknown_names(path, value, words):
    with pytest.raises(InputError, match=words):
        parse(changed(path, value))


@pytest.mark.parametrize("part", ["name", "data", "model", "delays", "selectors"])
def test_missing_parts(part):
    raw = table()
    del raw[part]
    with pytest.raises(InputError, match=rf"my\.toml lacks '{part}'"):
        parse(raw)


@pytest.mark.parametrize("part", ["data", "model", "delays"])
def test_parts_without_a_name(part):
    with pytest.raises(InputError, match=rf"my\.toml, \[{part}\] lacks its name; known: "):
        parse(table() | {part: {}})


def test_a_selector_without_a_name():
    with pytest.raises(InputError, match=r"my\.toml, \[\[selectors\]\] number 1 lacks its name; known: "):
        parse(table() | {"selectors": [{"k": 2}]})


# -- wrong types and values --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("data.clients", "five", r"my\.toml, \[data\]: clients is 'five', but it should be a whole number"),
        ("data.clients", True, r"my\.toml, \[data\]: clients is True, but it should be a whole number"),
        ("data.clients", 5.0, r"my\.toml, \[data\]: clients is 5\.0, but it should be a whole number"),
        ("data.noise", "low", r"\[data\]: noise is 'low', but it should be a number"),
        ("model.bias", 1, r"\[model\]: bias is 1, but it should be true or false"),
        ("training.lr", "fast", r"\[training\]: lr is 'fast'"),
        ("training.lr", [0.1], r"\[training\]: lr is \[0\.1\]"),
        ("fleet.warmup", "none", r"\[fleet\]: warmup is 'none', but it should be 'full' or 'lazy'"),
        ("0.variant", "wor", r"number 1: variant is 'wor', but it should be 'uniform-wor', 'md' or 'uniform-unbi"),
        ("0.k", "2", r"number 1: k is '2', but it should be a whole number"),
        ("0.label", 3, r"number 1: label is 3, but it should be text in quotes"),
        ("name", 3, r"my\.toml: name is 3, but it should be text in quotes"),
        ("stop.target", "high", r"\[stop\]: target is 'high'"),
    ],
)
def test_wrong_types(path, value, words):
    with pytest.raises(InputError, match=words):
        parse(changed(path, value))


def test_whole_numbers_are_numbers():
    found = parse(changed("training.lr", 1))
    assert found.training.lr == 1


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("data.clients", 0, r"my\.toml, \[data\]: clients of quadratic must be at least 1, but 0 came"),
        ("training.momentum", 1.5, r"my\.toml, \[training\]: momentum of training must lie in \[0, 1\)"),
        ("0.k", -1, r"my\.toml, \[\[selectors\]\] number 1: k of random must be at least 1, or 0 to take all clients"),
        ("stop.max_rounds", 0, r"my\.toml, \[stop\]: max_rounds of stop must be at least 1"),
        ("stop.target", math.nan, r"my\.toml, \[stop\]: target of stop must be a finite number"),
        ("delays.median", -1.0, r"my\.toml, \[delays\]: median of lognormal must be above 0"),
    ],
)
def test_senseless_values(path, value, words):
    with pytest.raises(InputError, match=words):
        parse(changed(path, value))


@pytest.mark.parametrize("section", ["data", "model", "delays", "training", "fleet", "clock"])
def test_a_value_where_a_table_belongs(section):
    with pytest.raises(InputError, match=rf"my\.toml, \[{section}\] must be a table of keys, but 3 came"):
        parse(table() | {section: 3})


@pytest.mark.parametrize("entries", [[], {}, "random", 3])
def test_selectors_must_be_a_list(entries):
    with pytest.raises(
        InputError, match=r"my\.toml: selectors must be a list of tables, \[\[selectors\]\], with at lea"
    ):
        parse(table() | {"selectors": entries})


def test_selectors_must_be_tables():
    with pytest.raises(InputError, match=r"\[\[selectors\]\] number 2 must be a table of keys, but 'random' came"):
        parse(table() | {"selectors": [{"name": "random"}, "random"]})


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        (0, "my.toml: seeds must be at least 1, but 0 came"),
        (-3, "my.toml: seeds must be at least 1"),
        ([], r"seeds must be different integers of at least 0, but \[\] came"),
        ([1, 1], "seeds must be different integers"),
        ([1, -1], "seeds must be different integers"),
        (["1"], r"seeds \(a number of seeds, or a list of them\) is \['1'\]"),
        ([True], r"seeds \(a number of seeds, or a list of them\)"),
        (True, r"seeds \(a number of seeds, or a list of them\) is True"),
        (2.0, r"seeds \(a number of seeds, or a list of them\) is 2.0"),
    ],
)
def test_bad_seeds(seeds, words):
    with pytest.raises(InputError, match=words):
        parse(changed("seeds", seeds))


def test_two_schemes_of_one_label():
    raw = table() | {"selectors": [{"name": "random", "k": 1}, {"name": "random", "k": 2}]}
    with pytest.raises(
        InputError, match=r"my\.toml: two schemes are called 'random': name one once, or give it another label"
    ):
        parse(raw)


@pytest.mark.parametrize("label", ["", " ", ".", "..", "a/b", "a\\b"])
def test_labels_that_cannot_name_a_folder(label):
    with pytest.raises(InputError, match=r"my\.toml: the label .* cannot name a folder"):
        parse(changed("0.label", label))


# -- the server step ---------------------------------------------------------------------------------------


def test_the_scheme_says_how_the_server_steps_unless_the_experiment_does():
    plain = parse(table())
    assert plain.server is None
    assert plain.server_of(plain.schemes[0]).name == "average"
    assert plain.server_of(LabelledScheme("pace", make_selector("pace"))).name == "memory-corrected"
    asked = parse({**table(), "server": {"name": "fedadam", "lr": 0.01}})
    assert asked.server_of(LabelledScheme("pace", make_selector("pace"))) == Fedadam(lr=0.01)


def test_a_scheme_may_have_a_server_step_of_its_own():
    raw = {**table(), "server": "fedavgm"}
    raw["selectors"] = [{"name": "random"}, {"name": "random", "label": "hurried", "server": {"name": "nesterov"}}]
    found = parse(raw)
    assert [found.server_of(scheme).name for scheme in found.schemes] == ["fedavgm", "nesterov"]
    assert parse(found.as_table()) == found


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"name": "fedadm"}, r"my\.toml, \[server\]: there is no server step 'fedadm'\. Did you mean 'fedadam'"),
        ({"name": "fedadam", "rate": 1.0}, r"my\.toml, \[server\] has no key 'rate'"),
        ({"lr": 1.0}, r"my\.toml, \[server\] lacks its name"),
        (3, r"my\.toml, \[server\] must be a table"),
    ],
)
def test_a_server_step_that_cannot_be(server, words):
    with pytest.raises(InputError, match=words):
        parse({**table(), "server": server})


def test_the_command_line_names_a_server_step(write):
    found = load_experiment(write(TEXT), Overrides(server={"name": "fedexp", "power": 0.5}))
    assert found.server == Fedexp(power=0.5)
