"""The image and the chart, as far as that goes without a builder: they are read and checked, not built."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "chart"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def rendered(name: str) -> dict:
    """Fill in a template as Helm does, for the few forms that the chart uses; anything else is an error."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def found(path: str):
        if path == ".Release.Name":
            return "trial"
        here = {"Values": values}
        for part in path.removeprefix(".").split("."):
            here = here[part]
        return here

    def fill(match: re.Match[str]) -> str:
        words = match.group(1).split()
        if words[0] == "toJson":
            return json.dumps(found(words[1]))
        (path,) = words
        return str(found(path))

    text = re.sub(r"\{\{ (.*?) \}\}", fill, (CHART / "templates" / name).read_text())
    assert "{{" not in text.replace("}}", "")
    return yaml.safe_load(text)


def test_the_image_runs_as_a_user_and_copies_what_exists():
    steps = instructions()
    assert steps[0][0] == "FROM"
    assert all(":" in text and not text.split()[0].endswith(":latest") for kind, text in steps if kind == "FROM")
    last = max(place for place, (kind, _) in enumerate(steps) if kind == "FROM")
    assert "USER" in [kind for kind, _ in steps[last:]]
    assert [text for kind, text in steps if kind == "USER"] == ["10001"]
    for kind, text in steps:
        if kind == "COPY" and not text.startswith("--from"):
            for source in text.split()[:-1]:
                assert (ROOT / source).exists(), source
        if kind in ("ENTRYPOINT", "CMD", "VOLUME"):
            assert isinstance(json.loads(text), list)
        assert kind != "ADD"


def test_the_image_installs_extras_that_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r"'\.\[(.*?)\]'", DOCKERFILE.read_text())
    assert set(named.split(",")) <= set(extras)


def test_the_chart_is_a_server_with_one_writer_and_a_volume():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["apiVersion"] == "v2"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["appVersion"] == version
    server, service = rendered("statefulset.yaml"), rendered("service.yaml")
    assert server["spec"]["replicas"] == 1
    pod = server["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {claim["metadata"]["name"] for claim in server["spec"]["volumeClaimTemplates"]}
    offered = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= offered
    assert container["readinessProbe"]["tcpSocket"]["port"] in offered
    labels = server["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == server["spec"]["selector"]["matchLabels"] == labels
    assert server["spec"]["serviceName"] == service["metadata"]["name"]
