"""The model card of a deployment folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onefold.serving.deployment import Deployment, DeviceSettings
from onefold.serving.deployment_files import MODEL
from onefold.vocabulary.quantities import MISSING, duration, joules, number, rate, setting, share, size
from onefold.vocabulary.serving import is_serving_metric
from onefold.vocabulary.variants import COMPRESSION

_COLUMNS = (
    "scenario", "batch", "threads", "graph level", "wait", "latency", "p90", "p99", "throughput", "energy/sample",
    "memory", "source",
)  # fmt: skip


def model_card(deployment: Deployment) -> str:
    """Return the model card as Markdown: configuration, metrics, settings per device, and the sources of numbers."""
    origin = deployment.model
    lines = ["# Model card", ""]
    if origin.get("workload") or origin.get("study"):
        lines += [f"Tuned by Onefold: study {origin.get('study')}, trial {origin.get('trial')}.", ""]
    if origin.get("why"):
        lines += [*(f"- {sentence}" for sentence in origin["why"]), ""]
    for title, key in (("Configuration", "config"), ("On validation data", "metrics"), ("On test data", "test")):
        values = {name: value for name, value in (origin.get(key) or {}).items() if not is_serving_metric(name)}
        if values:
            lines += [f"## {title}", "", "| name | value |", "| --- | --- |"]
            lines += [f"| {name} | {setting(value)} |" for name, value in values.items()] + [""]
    if compression := origin.get(COMPRESSION):
        lines += ["## Compression", "", *_compression_lines(compression), ""]
    if retrained := origin.get("retrained"):
        classes = f", and has {origin['head']['classes']} classes since" if origin.get("head") else ""
        lines += ["## Retrained", "", "On new data, the model was retrained" + classes + ".", ""]
        lines += ["| metric on the new data | before | after |", "| --- | --- | --- |"]
        lines += [f"| {retrained['metric']} | {setting(retrained['before'])} | {setting(retrained['after'])} |", ""]
    for settings in deployment.devices:
        lines += [*_device_lines(settings), ""]
    lines += [
        "## Sources of the numbers",
        "",
        f"With {deployment.runtime} on {deployment.host.title}. `measured`: on the device itself. `emulated`: on that "
        "machine, confined to the device's cores and memory, and scaled by a roofline model. `predicted`: from "
        "other points. Response times of scenarios are simulated from the latencies. Energy names its own source.",
        "",
    ]
    return "\n".join(lines)


def _compression_lines(compression: Mapping[str, Any]) -> Sequence[str]:
    packed, encoding = size(compression["packed_bytes"]), compression["encoding"]
    how = f"compressed: {compression['recipe']}" if compression["settings"] else "not compressed"
    layers = compression.get("layers", ())
    heads = ["", "| layer | precision | change of the outputs | why |", "| --- | --- | --- | --- |"] if layers else []
    return [
        f"The model is {how}. {share(compression['zeros'])} of its weights are zero.",
        f"`{MODEL}` has {size(compression['file_bytes'])}, and {packed} when it is packed ({encoding}).",
        f"The metrics are those of this file{_batch_note(compression)}.",
        *heads,
        *(f"| {each['layer']} | {each['precision']} | {share(each['change'])} | {each['why']} |" for each in layers),
    ]


def _batch_note(compression: Mapping[str, Any]) -> str:
    if "metrics_batch_size" not in compression:  # a card of an earlier version
        return ""
    note = f", in batches of {compression['metrics_batch_size']}"
    if compression.get("ranges_by_batch"):
        note += "; they vary with the batch, whose range of activations is that of the quantization"
    return note


def _device_lines(settings: DeviceSettings) -> Sequence[str]:
    rows = [f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}"]
    for choice in settings.choices:
        served, point = settings.expected(choice.point), choice.point
        energy_j = served.energy_per_sample_j
        cells = (
            choice.scenario, number(point.batch_size), number(point.threads), point.graph_level,
            duration(choice.wait_s), duration(served.latency_s), duration(served.p90_s), duration(served.p99_s),
            rate(served.throughput_per_s),
            MISSING if energy_j is None else f"{joules(energy_j)} ({served.energy.source})",
            size(served.memory_bytes), served.source_text,
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    reasons = [f"- {choice.scenario}: {choice.why}" for choice in settings.choices if choice.why]
    tested = [
        f"- {choice.scenario}: in a load test the mean response time was {duration(choice.confirmed.mean_s)}"
        for choice in settings.choices
        if choice.confirmed is not None
    ]
    notes = [f"- note: {note}" for note in settings.surface.notes]
    return [f"## On {settings.device.title} (`{settings.device.name}`)", "", *rows, "", *reasons, *tested, *notes]
