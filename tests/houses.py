"""Tables and settings for tests of estimators."""

import numpy as np
import pandas as pd

# Enough for a fair model of the data below. The plainest kernel takes half the time to compile.
FAST = {"max_steps": 128, "batch_size": 64, "early_stopping": False, "kernel": "rbf"}


def frame(n=300, seed=0):
    """Inputs with a text column and a constant one, and a target in thousands."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "size": rng.uniform(20, 200, n),
            "flat": np.full(n, 7),
            "noise": rng.normal(size=n),
            "city": rng.choice(["Oslo", "Bergen", "Tromsø"], n),
        }
    )
    base = X["city"].map({"Oslo": 900.0, "Bergen": 300.0, "Tromsø": 0.0})
    y = 2000 + 800 * np.sin(X["size"] / 40) + base + rng.normal(0, 60, n)
    return X, pd.Series(y.to_numpy(), name="price")
