"""Figures from results: medians, ratios, shares of the roofline."""

import statistics

from .engines import IK, LLAMA, TAEL
from .measurements import MEASUREMENTS


def median_of(records, key):
    values = [record["values"][key] for record in records
              if record["values"].get(key) is not None]
    return statistics.median(values) if values else None


def rounds_of(records, model, measurement):
    return [record for record in records if record["round"] > 0 and record["model"] == model
            and record["measurement"] == measurement]


def best_of_engine(measurement, records):
    """An engine's figure: the best of its settings' medians, with what it was."""
    by_setting = {}
    for record in records:
        by_setting.setdefault(record["setting"], []).append(record)
    medians = {setting: median_of(own, "value") for setting, own in by_setting.items()}
    value = measurement.best(medians.values())
    setting = next(name for name, median in medians.items() if median == value)
    own = [record["values"]["value"] for record in by_setting[setting]]
    return {"value": value, "setting": setting, "rounds": len(own), "low": min(own),
            "high": max(own)}


def row(measurement, records):
    """Figures of one model in one measurement."""
    by_engine = {}
    for record in records:
        by_engine.setdefault(record["engine"], []).append(record)
    engines = {name: best_of_engine(measurement, own) for name, own in by_engine.items()}
    figures = {"engines": engines}
    ours = by_engine.get(TAEL, [])
    for key in ("share", "gbps", "read_gbps", "gmacs", "peak_gmacs", "without_kv", "kv_bytes",
                "upper", "lower"):
        value = median_of(ours, key)
        if value is not None:
            figures[key] = value
    add_ratios(measurement, engines, figures)
    return figures


def add_ratios(measurement, engines, figures):
    """Ratios of medians: above 1 Tael has the larger figure, whichever is better."""
    if TAEL not in engines:
        return
    ours = engines[TAEL]["value"]
    peers = {name: engines[name]["value"] for name in (LLAMA, IK) if name in engines}
    if LLAMA in peers:
        figures["ratio"] = ours / peers[LLAMA]
    if IK in peers:
        figures["ratio_ik"] = ours / peers[IK]
    if peers:
        figures["ratio_best"] = ours / measurement.best(peers.values())


def summary(records):
    """{model: {measurement: figures}}, in the order of the records."""
    table = {}
    for model in dict.fromkeys(record["model"] for record in records):
        rows = {}
        for name, measurement in MEASUREMENTS.items():
            own = rounds_of(records, model, name)
            if own:
                rows[name] = row(measurement, own)
        add_depth(rows)
        checks = [record["values"] for record in records
                  if record["model"] == model and record["measurement"] == "outputs"]
        if checks:
            rows["outputs"] = checks[-1]
        table[model] = rows
    return table


def add_depth(rows):
    """How much of the speed at a short context is left at a long one."""
    short = rows.get("decode64", {}).get("engines", {})
    for engine, deep in rows.get("decode2048", {}).get("engines", {}).items():
        if engine in short:
            deep["keeps"] = deep["value"] / short[engine]["value"]
    ours = rows.get("decode2048", {}).get("engines", {}).get(TAEL, {})
    if "keeps" in ours:
        rows["decode2048"]["keeps"] = ours["keeps"]
