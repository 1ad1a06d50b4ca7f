"""A user does not wait for the compiler twice."""

import jax
import numpy as np

from swsgp import SWSGPRegressor


def test_tables_and_predictions_of_similar_length_share_compiled_programs(rng):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )

    def work(n_rows):
        X = rng.normal(size=(n_rows, 3))
        model = SWSGPRegressor(n_landmarks=64, max_steps=40, random_state=n_rows).fit(
            X, X[:, 0] + 0.1 * rng.normal(size=n_rows)
        )
        for n in (1, 3, n_rows - 300):
            mean, std = model.predict(X[:n], return_std=True)
            assert mean.shape == std.shape == (n,)
        model.predict_interval(X[: n_rows - 300])

    work(760)
    assert compiled, "nothing is counted"
    before = len(compiled)
    for n_rows in (761, 766, 768):
        work(n_rows)
    assert len(compiled) == before


def test_predictions_of_any_length_share_few_programs(regressor):
    from houses import frame

    X, _ = frame(1000)
    regressor.predict(X[:1000])
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )
    for n in (600, 700, 850, 999):
        regressor.predict(X[:n])
    assert compiled == []
    np.testing.assert_allclose(regressor.predict(X[:600]), regressor.predict(X[:1000])[:600], rtol=1e-12)
