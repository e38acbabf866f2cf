"""The order of runs.

Each peer first runs once in each of its settings; its two best take part in the rounds, and any
within 3 % of its best. In the rounds all take turns (A B A B ...), and every other round goes backwards, so that
none always runs on the machine that another has warmed up.
"""

from . import shell
from .engines import Unavailable

CLOSE, AT_LEAST = 0.03, 2


def close_to_best(measurement, tried):
    """tried: (setting, value) pairs of one engine. The settings that may be its best."""
    order = sorted(tried, key=lambda pair: pair[1], reverse=measurement.higher_is_better)
    best = order[0][1]
    return [setting for place, (setting, value) in enumerate(order)
            if place < AT_LEAST or abs(value / best - 1) <= CLOSE]


class Runner:
    """Runs what the results do not have yet."""

    def __init__(self, rig, results, rounds):
        self.rig, self.results, self.rounds = rig, results, rounds
        self._unavailable = set()

    def run(self, model, measurement):
        shell.note(f"{model.title}: {measurement.title}")
        contenders = measurement.contenders(self.rig, model)
        shell.warm_page_cache(self.rig.tael.facts(model).path)
        contenders = self._best_settings(model, measurement, contenders)
        for number in range(1, self.rounds + 1):
            for contender in contenders if number % 2 else reversed(contenders):
                self._once(model, measurement, contender, number)

    def _best_settings(self, model, measurement, contenders):
        kept = []
        for engine in dict.fromkeys(contender.engine for contender in contenders):
            mine = [contender for contender in contenders if contender.engine == engine]
            if len(mine) > 1:
                mine = self._tune(model, measurement, mine)
            kept += mine
        return kept

    def _tune(self, model, measurement, contenders):
        tried = []
        for contender in contenders:
            record = self._once(model, measurement, contender, 0)
            if record:
                tried.append((contender.setting, record["values"]["value"]))
        if not tried:
            return []
        settings = close_to_best(measurement, tried)
        return [contender for contender in contenders if contender.setting in settings]

    def _once(self, model, measurement, contender, number):
        """The record of one run: the one that is there, or a new one; None if it is impossible."""
        key = (model.name, measurement.name, contender.engine, contender.setting)
        if key in self._unavailable:
            return None
        there = self.results.find(**dict(zip(("model", "measurement", "engine", "setting"), key)),
                                  round=number)
        if there:
            return there[0]
        try:
            values = contender.run()
        except Unavailable as missing:
            shell.note(f"  left out: {missing}")
            self._unavailable.add(key)
            return None
        when = f"round {number}/{self.rounds}" if number else "searching"
        share = f", {values['share']:.0%} of the roof" if values.get("share") else ""
        shell.note(f"  {when} {contender.engine} {contender.setting}: "
                   f"{values['value']:.4g} {measurement.unit}{share}")
        return self.results.add(*key, number, values)
