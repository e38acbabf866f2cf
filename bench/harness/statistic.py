"""Statistics that Python does not have."""

import random
import statistics


def median_interval(values, resamples=2000, level=0.95):
    """Bootstrap interval of a median: what medians of resampled values do in 95 of 100 cases."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values)))
                     for _ in range(resamples))
    outside = int(resamples * (1 - level) / 2)
    return medians[outside], medians[resamples - 1 - outside]
