"""The page of a training: one HTML file, without scripts and without a network; all texts are escaped."""

from __future__ import annotations

import html
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_tpu_ext.output.display import duration, memory_size, percent, rounded

Points = list[tuple[float, float]]

_COLORS = ("#3a76b8", "#d9822b", "#8a57b0", "#3a9b6f", "#c0453b", "#b39700", "#5b8aa6", "#8c8c8c")
_MOST_ROWS = 30
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 480, 170, 56, 24  # of a picture, and of its margins
_WORTH_SHOWING = 0.002  # of the time
_SHORT = 24  # letters in a cell, which stay in one line
_BYTES = ("in_use", "peak", "limit", "bytes")
_STYLE = """
:root { color-scheme: light dark; --text: #1d2329; --faint: #68727d; --line: #d5dae0; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e8ec; --faint: #98a3ae; --line: #3a424b; --page: #15191d; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  margin: 0 auto; max-width: 860px; padding: 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; overflow-wrap: anywhere; } .faint { color: var(--faint); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; }
th, td { border-bottom: 1px solid var(--line); }
td table td, td table th { border: 0; }
.bar { display: flex; height: 2rem; border-radius: 4px; overflow: hidden; margin: .5rem 0; }
.number { white-space: nowrap; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; }
svg { width: 100%; max-width: 600px; height: auto; } svg text { fill: var(--faint); font-size: 13px; }
svg .axis { stroke: var(--line); } svg polyline { fill: none; stroke-width: 2; }
"""


def page(run: Mapping[str, Any], state: str) -> str:
    """Return the page of a run that `read_run` returned; `state` says how it ended."""
    reports = dict(run["reports"])
    goodput = reports.pop("Goodput", None)
    history = run["history"]
    arguments = ", ".join(f"{name} {value}" for name, value in run["arguments"].items() if value is not None)
    body = [
        f"<h1>Training: {_text(state)}</h1>",
        f"<p>{_text(duration(run['wall_seconds']))}, {len(history)} epochs; fit: {_text(arguments)}</p>",
        f"<p>{_text(run['hardware'])}</p>",
        f'<p class="faint">started {time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run["started"]))}; '
        f"{_text(', '.join(' '.join(one) for one in run['versions'].items()))}</p>",
    ]
    if goodput:
        body += _section("Where the time went", _goodput(goodput))
    if run["plan"]:
        body += _section("The plan, and what came", _plan(run, goodput or {}))
    for title, chosen in _PICTURES.items():
        lines = _lines(history, chosen)
        body += _section(title, _picture(lines)) if lines else []
    for name, report in reports.items():
        body += _section(name, _value("", report))
    columns = list(dict.fromkeys(key for one in history for key in one["logs"]))
    rows = [[one["epoch"] + 1, *(one["logs"].get(key) for key in columns)] for one in history[-_MOST_ROWS:]]
    body += _section("Every epoch", table(["epoch", *columns], [[_scalar("", one) for one in row] for row in rows]))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Training: {_text(state)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table of texts, escaped."""
    return _table(header, [[_text(cell) for cell in row] for row in rows])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(content: str) -> str:
    short = ' class="number"' if content[:1].isdigit() and len(content) < _SHORT else ""
    return f"<td{short}>{content}</td>"


def _text(value: object) -> str:
    return html.escape(str(value))


def _section(title: str, body: str) -> list[str]:
    return [f"<h2>{_text(title)}</h2>", body]


def _goodput(report: Mapping[str, Any]) -> str:
    seconds = _seconds(report)
    total = sum(seconds.values()) or 1.0
    colors = dict(zip(seconds, itertools.cycle(_COLORS), strict=False))
    parts = [
        f'<i style="width:{100 * one / total:.2f}%;background:{colors[name]}" title="{_text(name)}"></i>'
        for name, one in seconds.items()
    ]
    keys = {name: f'<span class="key" style="background:{colors[name]}"></span>{_text(name)}' for name in seconds}
    rows = [[keys[name], duration(one), percent(one / total)] for name, one in seconds.items()]
    advice = f"<p>{_text(report['advice'])}</p>" if report.get("advice") else ""
    return f'<div class="bar">{"".join(parts)}</div>{advice}{_table(["", "time", "part"], rows)}'


def _seconds(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds by bucket, the largest first, and the smallest in one."""
    seconds = sorted(report.get("seconds", {}).items(), key=lambda item: -item[1])
    least = _WORTH_SHOWING * sum(one for _, one in seconds)
    rest = sum(one for _, one in seconds if one < least)
    return {**{name: one for name, one in seconds if one >= least}, **({"all others": rest} if rest else {})}


def _plan(run: Mapping[str, Any], goodput: Mapping[str, Any]) -> str:
    planned, came = run["plan"].get("buckets", {}), _seconds(goodput)
    rows = [
        [name, *(duration(one[name]) if name in one else "" for one in (planned, came))]
        for name in dict.fromkeys([*planned, *came])
    ]
    return table(
        ["", "planned", "came"], [*rows, ["all", duration(sum(planned.values())), duration(run["wall_seconds"])]]
    )


def _lines(history: Sequence[Mapping[str, Any]], chosen: Callable[[str], bool]) -> dict[str, Points]:
    """Return the points of each chosen key."""
    found: dict[str, Points] = {}
    for one in history:
        for key, value in one["logs"].items():
            if chosen(key) and value is not None:
                found.setdefault(key, []).append((one["epoch"] + 1, value))
    return found


def _picture(lines: Mapping[str, Points]) -> str:
    """Return a picture of lines over epochs."""
    xs, ys = ([point[axis] for points in lines.values() for point in points] for axis in (0, 1))
    left, right, low, high = min(xs), max(xs), min([0.0, *ys]), max(ys)
    width, height = (right - left) or 1.0, (high - low) or 1.0

    def at(x: float, y: float) -> str:
        across = _LEFT + (x - left) / width * (_WIDTH - _LEFT - 8)
        return f"{across:.1f},{8 + (high - y) / height * (_HEIGHT - _BOTTOM - 8):.1f}"

    drawn, keys = [], []
    for (name, points), color in zip(lines.items(), itertools.cycle(_COLORS), strict=False):
        places = [at(*point) for point in points]
        drawn.append(f'<polyline points="{" ".join(places)}" stroke="{color}"/>')
        for place in places if len(places) <= _MOST_ROWS else ():
            x, y = place.split(",")
            drawn.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{color}"/>')
        last = rounded(points[-1][1])
        keys.append(f'<span class="key" style="background:{color}"></span>{_text(name)} {last} ')
    floor = _HEIGHT - _BOTTOM
    drawn.append(f'<path class="axis" d="M{_LEFT},8V{floor}H{_WIDTH - 8}" fill="none"/>')
    drawn.append(f'<text x="{_LEFT - 8}" y="16" text-anchor="end">{rounded(high)}</text>')
    drawn.append(f'<text x="{_LEFT - 8}" y="{floor}" text-anchor="end">{rounded(low)}</text>')
    drawn.append(f'<text x="{_LEFT}" y="{_HEIGHT - 6}">epoch {left:.0f}</text>')
    drawn.append(f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 6}" text-anchor="end">{right:.0f}</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(drawn)}</svg><p>{" ".join(keys)}</p>'


def _value(name: str, value: Any) -> str:
    """Return what a callback found, as HTML: an object as two columns, a list of objects as a table."""
    if isinstance(value, dict):
        rows = [[_text(key.replace("_", " ")), _value(key, one)] for key, one in value.items() if one not in ([], {})]
        return _table(["", ""], rows)
    if not isinstance(value, list):
        return _text(_scalar(name, value))
    more = f'<p class="faint">and {len(value) - _MOST_ROWS} more</p>' if len(value) > _MOST_ROWS else ""
    if value and all(isinstance(one, dict) for one in value):
        columns = list(dict.fromkeys(key for one in value for key in one))
        rows = [[_value(key, one.get(key)) for key in columns] for one in value[:_MOST_ROWS]]
        return _table([key.replace("_", " ") for key in columns], rows) + more
    return ", ".join(_value(name, one) for one in value[:_MOST_ROWS]) + more


def _scalar(name: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _BYTES:
        return memory_size(value)
    if name.endswith("seconds"):
        return duration(value)
    return percent(value) if name.endswith("fraction") else rounded(value)


_PICTURES: dict[str, Callable[[str], bool]] = {
    "Throughput": lambda key: key in ("throughput/samples_per_sec", "throughput/tokens_per_sec"),
    "Loss": lambda key: key == "loss" or key == "val_loss",
    "Waiting for data": lambda key: key == "input/wait_fraction",
    "Memory in GiB": lambda key: key.startswith("device_memory/"),
}
