"""A saved model over the partitions of a Dask table, as docs/scaling.md has it."""

import importlib
import re
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest

import swsgp

SCALING = Path(__file__).parent.parent / "docs" / "scaling.md"


@pytest.fixture
def recipe():
    """The program in the document."""
    return re.search(r"```python\n(.*?map_partitions.*?)```", SCALING.read_text(encoding="utf-8"), re.DOTALL).group(1)


def test_the_recipe_predicts_every_partition_as_one_table_would(tmp_path, monkeypatch, recipe):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"area": rng.uniform(20, 200, 600), "age": rng.uniform(0, 90, 600)})
    price = 3 * rows["area"] - rows["age"] + rng.normal(size=600)
    swsgp.SWSGPRegressor(n_inducing=50, max_steps=20).fit(rows[:300], price[:300]).save("price.swsgp")
    Path("houses").mkdir()
    for i in range(3):
        rows[300 + 100 * i : 400 + 100 * i].to_parquet(f"houses/{i}.parquet")
    Path("recipe.py").write_text(recipe)
    monkeypatch.syspath_prepend(str(tmp_path))
    # In processes of their own, as on a cluster.
    with dask.config.set(scheduler="processes", num_workers=2):
        importlib.import_module("recipe").main()
    found = pd.concat([pd.read_parquet(path) for path in sorted(Path("predictions").glob("*.parquet"))])
    mean, std = swsgp.load("price.swsgp").predict(rows[300:], return_std=True)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(found["std"], std, rtol=1e-4)
    np.testing.assert_array_equal(found["area"], rows["area"][300:])
