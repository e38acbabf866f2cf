"""The modules of bench/harness, for tests, and records as bench/compare writes them."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from harness import (  # noqa: F401
    chart,
    engines,
    figures,
    kv_plan,
    measurements,
    models,
    quality,
    quality_chart,
    quality_report,
    report,
    results,
    runner,
    shell,
    synthetic,
    targets,
)


def record(engine, value, number=1, *, model="smollm2", measurement="decode64", setting="", **more):
    return {"model": model, "measurement": measurement, "engine": engine, "setting": setting,
            "round": number, "values": {"value": value, **more}}
