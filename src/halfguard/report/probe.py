"""A probe as a page: findings, and a table of layers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from halfguard.catalogue import entry
from halfguard.records.ranges import LayerRange, ProbeReport, module_label
from halfguard.report.blocks import Block, Heading, Listing, Mono, Page, Table, Text, Tone

_HEADS = (
    "Headroom in bits: how often the largest magnitude can double before FP16 overflows. Forward: outputs "
    "of the layer. Backward: gradients. Lost: the share of gradients that become 0 in FP16, at the current "
    "and the best loss scale. Loss scales: the scales that fit the layer."
)


def probe_page(report: ProbeReport, name: str = "", rows: int | None = None) -> Page:
    """Return the page of a probe; ``name`` is what was probed, ``rows`` limits the layers that are listed."""
    window, count = report.window, len(report.layers)
    fits = f"{window.low:g} to {window.high:g}" if window else "none fits all layers"
    heads = (
        "layer",
        "range",
        "forward, bits",
        "backward, bits",
        "lost now",
        "lost at best",
        "loss scales",
    )
    ordered = sorted(report.layers, key=lambda layer: layer.least_headroom(report.best_scale))
    shown = [_layer(layer, report.best_scale) for layer in ordered[:rows]]
    blocks: list[Block] = [
        Text(
            f"Steps: {report.steps} in {report.precision}; loss {report.losses[0]:.4g} to ",
            f"{report.losses[-1]:.4g}. Layers: {count}.",
        ),
        Text(f"Loss scales: {fits}; best {report.best_scale:g}, current {report.scale:g}."),
        Heading("Layers"),
        Text(_HEADS),
        Table(heads, shown, ["" if row[1] == "fits" else "bad" for row in shown]),
    ]
    if len(shown) < count:
        left = count - len(shown)
        blocks.append(
            Text(f"{left} layers with more headroom are not shown; --html and --json list them.")
        )
    return Page(_title(report, name), [*blocks, *_findings(report)])


def _findings(report: ProbeReport) -> Iterator[Block]:
    yield Heading("Findings")
    if not report.findings:
        yield Text("None.")
    for found in report.findings:
        tone: Tone = "bad" if found.severity == "error" else ""
        yield Text(Mono(found.code), f" {found.message} {found.why}".rstrip(), tone=tone)
    cures = list(dict.fromkeys(found.cure for found in report.findings if found.cure))
    if cures:
        yield Listing(cures)


def _title(report: ProbeReport, name: str) -> str:
    bad = [layer for layer in report.layers if layer.forward_headroom < 0]
    subject = f"{name} in FP16" if name else "This model in FP16"
    errors = [found for found in report.findings if found.severity == "error"]
    if errors and not bad:
        return f"{subject}: {entry(errors[0].code).title.rstrip('.')}"
    if not bad:
        return f"{subject}: {'no layer overflows' if report.window else 'no loss scale fits all layers'}"
    which = (
        module_label(bad[0].module)
        if len(bad) == 1
        else f"{len(bad)} of {len(report.layers)} layers"
    )
    return f"{subject}: {which} overflow{'s' * (len(bad) == 1)}"


def _layer(layer: LayerRange, scale: float) -> list[str]:
    forward, backward = layer.forward_headroom, layer.backward_headroom(scale)
    found = "fits" if layer.fits else "no loss scale fits"
    return [
        Mono(module_label(layer.module)),
        "overflows" if min(forward, backward) < 0 else found,
        *("-" if bits == math.inf else f"{bits:.1f}" for bits in (forward, backward)),
        f"{layer.underflow_now:.1%}",
        f"{layer.underflow_best:.1%}",
        layer.scales,
    ]
