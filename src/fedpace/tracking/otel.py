"""OpenTelemetry: the last value of every quantity as a gauge `fedpace.NAME`, and the number of rounds as a counter.

If the program has set a meter provider, this uses it, and the program decides where metrics go. Otherwise metrics are
sent to an OTLP endpoint over HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from fedpace._base.options import FINITE, Above
from fedpace.tracking._base import Entry, Sink, TrackedRun, Tracker

UNITS = {"seconds": "s", "bytes_down": "By", "bytes_up": "By"}


@dataclass(frozen=True)
class Otel(Tracker):
    """OpenTelemetry metrics, with the attributes `fedpace.run` and `fedpace.experiment`.

    Args:
        endpoint: URL of the collector's metrics, such as `http://host:4318/v1/metrics`; empty =
            `OTEL_EXPORTER_OTLP_ENDPOINT`, or localhost. Not used if the program has set a meter provider.
        every: seconds between two exports.
    """

    name: ClassVar[str] = "otel"
    needs: ClassVar[tuple[str, ...]] = ("opentelemetry.sdk.metrics", "opentelemetry.exporter.otlp.proto.http")
    extra: ClassVar[str] = "otel"

    endpoint: str = ""
    every: Annotated[float, Above(0), FINITE] = 10.0

    def open(self, run: TrackedRun) -> Sink:
        """Create the instruments; OpenTelemetry itself has no runs, so `key` is the name of the run."""
        return _Run(self, run)


class _Run:
    def __init__(self, tracker: Otel, run: TrackedRun) -> None:
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider

        self.key = run.name
        self._provider: Any = metrics.get_meter_provider()
        self._ours = not isinstance(self._provider, MeterProvider)
        if self._ours:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

            exporter = OTLPMetricExporter(endpoint=tracker.endpoint or None)
            reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1000 * tracker.every)
            self._provider = MeterProvider([reader])
        self._meter = self._provider.get_meter("fedpace")
        self._rounds = self._meter.create_counter("fedpace.rounds", unit="{round}", description="rounds or steps made")
        self._gauges: dict[str, Any] = {}
        self._attributes = {
            "fedpace.run": run.name,
            "fedpace.experiment": run.experiment,
            "fedpace.scheme": str(run.config.get("scheme", "")),
        }

    def log(self, entries: Sequence[Entry]) -> None:
        self._rounds.add(sum(entry.number > 0 for entry in entries), self._attributes)
        latest = {name: value for entry in entries for name, value in entry.values.items()}
        for name, value in latest.items():
            if name not in self._gauges:
                unit = UNITS.get(name, UNITS["seconds"] if name.endswith("_seconds") else "")
                self._gauges[name] = self._meter.create_gauge(f"fedpace.{name}", unit=unit)
            self._gauges[name].set(value, self._attributes)

    def close(self, status: str) -> None:
        if self._ours:
            self._provider.shutdown()
        else:
            self._provider.force_flush()
