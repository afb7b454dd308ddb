"""Charts of one section of the report: the points of latency by axis, of fast_p and of the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .charts import OTHERS, PALETTE, Rows, Spec, drawn, file_name
from .page_data import Section
from .results import FAST_GRID


def charts(section: Section) -> Iterator[tuple[str, Spec]]:
    """The charts of a section with their file names: latency by axis, fast_p, roofline."""
    points = list(_points(section))
    names = drawn_solutions(section.columns)[: len(PALETTE)]
    place = f"{section.definition}, {section.hardware}"
    for axis, sizes in section.columns["axes"].items():
        rows = [{**row, "x": sizes[row["w"]]} for row in points if sizes[row["w"]] is not None]
        if rows:
            scale = "log" if all(row["x"] > 0 for row in rows) else "symlog"
            title = f"Latency against {axis}: {place}"
            beside = list(_references(section.columns, sizes))
            spec = drawn("latency", title, rows, names, references=beside, x_title=axis, x_scale=scale)
            yield file_name(section.definition, section.hardware, "latency", axis), spec
    if section.columns["fast"]:
        rows = [
            {"p": p, "share": share, "solution": name, "k": _key(section.columns, index)}
            for index, name in enumerate(section.columns["solutions"])
            if name in drawn_solutions(section.columns)
            for p, share in zip(FAST_GRID, section.columns["fast"][index], strict=True)
        ]
        spec = drawn("fast", f"fast_p: {place}", rows, names)
        yield file_name(section.definition, section.hardware, "fast_p"), spec
    if rows := [row for row in points if row["y"] is not None]:
        x_title, y_title = roofline_titles(section.columns)
        rows = [{**row, "x": row["intensity"]} for row in rows]
        roof = _roof(section.columns, [row["x"] for row in rows])
        spec = drawn("roofline", f"Roofline: {place}", rows, names, roof=roof, x_title=x_title, y_title=y_title)
        yield file_name(section.definition, section.hardware, "roofline"), spec


def roofline_titles(columns: Mapping[str, Any]) -> tuple[str, str]:
    """The titles of the axes of a roofline; without operations only the memory bound is known."""
    if "operations" in columns:
        return "operations per byte", "TFLOP/s"
    return "bytes moved", "GB/s"


def drawn_solutions(columns: Mapping[str, Any]) -> list[str]:
    """The solutions that have a latency, in order; only these are in legends."""
    latencies = columns.get("us", [])
    places = {place for place, us in zip(columns["solution"], latencies, strict=False) if us is not None}
    return [name for place, name in enumerate(columns["solutions"]) if place in places]


def _key(columns: Mapping[str, Any], solution: int) -> str:
    """The name under which a solution has its colour."""
    name = str(columns["solutions"][solution])
    return name if name in drawn_solutions(columns)[: len(PALETTE)] else OTHERS


def _references(columns: Mapping[str, Any], sizes: Sequence[int | None]) -> Iterator[dict[str, Any]]:
    """The latencies of the reference and the baselines against an axis."""
    for name, latencies in {"reference": columns.get("reference", []), **columns.get("baselines", {})}.items():
        for workload, us in enumerate(latencies):
            if us is not None and sizes[workload] is not None:
                yield {"x": sizes[workload], "us": us, "solution": name}


def _points(section: Section) -> Iterator[dict[str, Any]]:
    """The traces that passed, as rows for charts."""
    columns = section.columns
    absent = [None] * len(columns["workload"])
    us, low, high = (columns.get(name, absent) for name in ("us", "low", "high"))
    for index, (workload, solution) in enumerate(zip(columns["workload"], columns["solution"], strict=True)):
        if us[index] is not None:
            name = columns["solutions"][solution]
            row = {"w": workload, "us": us[index], "low": low[index], "high": high[index]}
            row |= _on_roofline(columns, workload, us[index])
            yield row | {"solution": name, "k": _key(columns, solution)}


def _on_roofline(columns: Mapping[str, Any], workload: int, us: float) -> dict[str, float | None]:
    moved = columns["bytes"][workload] if "bytes" in columns else None
    if "operations" not in columns:
        return {"intensity": moved, "y": moved / us / 1e3 if moved else None}
    done = columns["operations"][workload]
    if not moved or not done:
        return {"intensity": None, "y": None}
    return {"intensity": done / moved, "y": done / us / 1e6}


def _roof(columns: Mapping[str, Any], xs: Sequence[float]) -> Rows:
    """The corners of the roof, as far as it is known."""
    bandwidth, rate = columns["bandwidth"], columns["rate"]
    if not bandwidth:
        return []
    low, high = min(xs), max(xs)
    if "operations" not in columns:
        return [{"x": x, "y": bandwidth / 1e9} for x in (low / 2, high * 2)]
    corner = rate / bandwidth
    low = low / 2 if corner > low * 1.001 else low  # a side of the roof is known where a workload touches it
    high = high * 2 if corner < high * 0.999 else high
    corners = sorted({low, high, corner} if low < corner < high else {low, high})
    return [{"x": x, "y": min(bandwidth * x, rate) / 1e12} for x in corners]
