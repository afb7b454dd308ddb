"""Charts as Vega-Lite specifications. The page draws them in a browser, `save_png` into files.

A specification is data; the points come separately, as rows with these fields:

- ``latency``: x (the axis), us, low, high, k, solution, and words for the tooltip; references as x, us, solution
- ``fast``: p, share, k, solution
- ``roofline``: x, y, k, solution, and words for the tooltip; the roof's corners as x, y

``k`` is the solution's name if it has a colour, else `OTHERS`.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_schema import FibError
from fib_schema.display import escape_values, finite_values
from fib_schema.files import write_output

OTHERS = "other solutions"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5fc7", "#8c6d31")
"""Source: Okabe and Ito's colours, which most people with a colour vision deficiency tell apart; two added."""
GREY = "#9a9a9a"
VEGA_LITE = "6.4"

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

_MANTISSA = "round(datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9)))"
_FEW = f"indexof([1, 2, 5], {_MANTISSA}) < 0 ? '' : "  # a logarithmic axis has a tick for every digit
_LATENCY_LABELS = (
    f"{_FEW}datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + ' s' : "
    "datum.value >= 1e3 ? format(datum.value / 1e3, '~g') + ' ms' : format(datum.value, '~g') + ' µs'"
)
_NUMBERS = f"{_FEW}format(datum.value, datum.value >= 1 ? '~s' : '~g')"


@attrs.frozen
class ChartsUnavailable(FibError, ImportError):
    """Charts were requested, and vl-convert is not installed."""

    def __str__(self) -> str:
        return "charts need vl-convert-python; install it with: pip install 'fib-bench[report]'"


def _colour(**more: object) -> Spec:
    return {"field": "k", "type": "nominal", "scale": {"domain": [], "range": []}, "legend": None, **more}


def _tooltip(*fields: str) -> list[Spec]:
    return [{"field": field, "type": "nominal"} for field in fields]


def _log(field: str, title: str | None, *, base: int = 10, **axis: object) -> Spec:
    scale = {"type": "log", "base": base, "nice": False, "padding": 12}
    return {"field": field, "type": "quantitative", "scale": scale, "title": title, "axis": axis}


_PEERS = {"condition": {"test": f"datum.k === '{OTHERS}'", "value": 0.35}, "value": 0.9}

SPECS: Mapping[str, Spec] = {
    "latency": {
        "data": {"name": "points"},
        "height": 300,
        "encoding": {
            "x": _log("x", None, base=2, format=",~r", grid=False),
            "color": _colour(),
            "opacity": _PEERS,
        },
        "layer": [
            {
                "mark": {"type": "line", "strokeWidth": 1.75},
                "encoding": {
                    "y": {**_log("us", "latency", labelExpr=_LATENCY_LABELS), "aggregate": "median"},
                    "detail": {"field": "solution", "type": "nominal"},
                },
            },
            {
                "name": "intervals",
                "transform": [{"filter": "isValid(datum.low)"}],
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {
                    "y": {"field": "low", "type": "quantitative"},
                    "y2": {"field": "high"},
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 34},
                "encoding": {
                    "y": {"field": "us", "type": "quantitative"},
                    "tooltip": _tooltip("solution", "latency", "interval", "speedup", "axes", "workload"),
                },
            },
            {
                "data": {"name": "references"},
                "mark": {"type": "line", "strokeWidth": 1.5, "point": {"size": 24, "color": GREY}},
                "encoding": {
                    "y": {"field": "us", "type": "quantitative", "aggregate": "median"},
                    "detail": {"field": "solution", "type": "nominal"},
                    "color": {"value": GREY},
                    "opacity": {"value": 1},
                    "strokeDash": {
                        "condition": {"test": "datum.solution === 'reference'", "value": [6, 3]},
                        "value": [2, 3],
                    },
                    "tooltip": _tooltip("solution"),
                },
            },
        ],
    },
    "fast": {
        "data": {"name": "points"},
        "height": 300,
        "layer": [
            {
                "mark": {"type": "line", "interpolate": "step-before", "strokeWidth": 1.75},
                "encoding": {
                    "x": _log(
                        "p",
                        "speedup over the reference greater than p",
                        labelExpr=f"{_FEW}format(datum.value, '~g')",
                        grid=False,
                    ),
                    "y": {
                        "field": "share",
                        "type": "quantitative",
                        "title": "share of workloads",
                        "scale": {"domain": [0, 1]},
                        "axis": {"format": "%"},
                    },
                    "color": _colour(),
                    "opacity": _PEERS,
                    "detail": {"field": "solution", "type": "nominal"},
                    "tooltip": _tooltip("solution", "p", "share", "area"),
                },
            },
            {
                "data": {"values": [{"p": 1}]},
                "mark": {"type": "rule", "strokeDash": [4, 4], "color": GREY},
                "encoding": {"x": {"field": "p", "type": "quantitative"}},
            },
        ],
    },
    "roofline": {
        "data": {"name": "points"},
        "height": 300,
        "encoding": {
            "x": _log("x", "", labelExpr=_NUMBERS, grid=False),
            "y": _log("y", "", labelExpr=_NUMBERS),
        },
        "layer": [
            {
                "data": {"name": "roof"},
                "mark": {"type": "line", "color": GREY, "strokeWidth": 2},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 40},
                "encoding": {
                    "color": _colour(),
                    "opacity": _PEERS,
                    "tooltip": _tooltip("solution", "attained", "latency", "axes", "workload"),
                },
            },
        ],
    },
}
"""The page patches width, colours, titles of axes and the scale of x; `drawn` does so for a file."""

COMPARISON_SPEC: Spec = {
    "data": {"name": "points"},
    "height": 320,
    "encoding": {
        "x": _log("us", "latency before", labelExpr=_LATENCY_LABELS, grid=False),
        "color": {
            "field": "verdict",
            "type": "nominal",
            "scale": {"domain": ["slower", "same", "faster"], "range": [PALETTE[1], GREY, PALETTE[2]]},
            "legend": {"title": None, "orient": "bottom"},
        },
    },
    "layer": [
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6},
            "encoding": {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 40},
            "encoding": {
                "y": _log("ratio", "after / before", labelExpr="format(datum.value, '~g')"),
                "tooltip": _tooltip("definition", "solution", "axes", "change", "verdict"),
            },
        },
        {
            "mark": {"type": "rule", "strokeDash": [4, 4], "color": GREY},
            "encoding": {"y": {"datum": 1}, "x": None, "color": {"value": GREY}},
        },
    ],
}
"""Points have ratio, low, high (the interval), us (the latency before) and words for the tooltip."""


def drawn(kind: str, title: str, rows: Rows, solutions: Sequence[str], **more: Any) -> Spec:
    """A specification with its points.

    Args:
        kind: One of `SPECS`.
        title: The title.
        rows: The points.
        solutions: Those with a colour, in order.
        **more: ``roof``, ``references`` (rows), ``x_title``, ``y_title``, and ``x_scale``: ``log`` or ``symlog``.
    """
    spec = copy.deepcopy(SPECS[kind])
    spec |= {"title": {"text": title, "anchor": "start"}, "width": 720, "background": "white", "config": _config()}
    spec["datasets"] = {"points": list(rows), **{name: list(more.get(name, ())) for name in ("roof", "references")}}
    names = [*solutions, OTHERS] if any(row["k"] == OTHERS for row in rows) else list(solutions)
    for encoding in [spec.get("encoding", {}), *(layer.get("encoding", {}) for layer in spec["layer"])]:
        if "color" in encoding:
            encoding["color"]["scale"] = {"domain": names, "range": [*PALETTE[: len(solutions)], GREY]}
            encoding["color"]["legend"] = {"title": None, "orient": "bottom", "columns": 2, "labelLimit": 340}
        for channel in ("x", "y"):
            if channel in encoding and (text := more.get(f"{channel}_title")) is not None:
                encoding[channel]["title"] = text
        if "x" in encoding and more.get("x_scale") == "symlog":
            encoding["x"]["scale"] = {"type": "symlog"}
    has_intervals = any(row.get("low") for row in rows)
    spec["layer"] = [
        layer
        for layer in spec["layer"]
        if (layer.get("name") != "intervals" or has_intervals)
        and spec["datasets"].get(layer.get("data", {}).get("name"), True)  # Vega warns of layers without points
    ]
    return spec


def save_png(spec: Spec, path: Path) -> int:
    """Draw a chart into a file; an existing one is replaced atomically. Returns the size in bytes.

    Raises:
        ChartsUnavailable: vl-convert is not installed.
        OSError: It could not be written.
    """
    image: bytes = _vl_convert().vegalite_to_png(finite_values(escape_values(spec)), vl_version=VEGA_LITE, scale=2)
    write_output(path, image)
    return len(image)


@functools.cache
def bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that needs no network.

    Raises:
        ChartsUnavailable: vl-convert is not installed.
    """
    script: str = _vl_convert().javascript_bundle(vl_version=VEGA_LITE)
    return script


def file_name(*words: str) -> str:
    """A valid file name for a chart."""
    return "-".join(re.sub(r"[^\w.]+", "_", word).strip("._") or "_" for word in words) + ".png"


def _config() -> Spec:
    font = "Helvetica, Arial, sans-serif"
    axis = {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "gridColor": "#e6e6e6"}
    return {"font": font, "view": {"stroke": None}, "axis": axis}


def _vl_convert() -> Any:
    try:
        import vl_convert
    except ImportError as error:
        raise ChartsUnavailable from error
    return vl_convert
