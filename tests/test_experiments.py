"""The experiments of the paper, each in small: that they run, go on where they stopped, and say what they did."""

import json
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from swsgp.data.sets import STAND_INS, DataSet
from swsgp.errors import DataError, DataFolderError, NumericalError, SettingError
from swsgp.experiments import (
    catalogue,
    deep,
    joint_covariance,
    large_m,
    local_gps,
    m_and_h,
    metric,
    posterior_1d,
    prior,
    running_time,
    systems,
)
from swsgp.experiments.study import Study, markdown, spread
from swsgp.gp.active import PerPoint


@pytest.fixture
def small(monkeypatch):
    """Small data sets in the place of all of them."""

    def file_of(name, folder):
        return {"sha256": "1", **({"stand_in": STAND_INS[name]} if name in STAND_INS else {})}

    def load(name):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(300, 3))
        y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=300)
        if name in ("eeg", "credit", "spam", "airline", "mnist"):
            y = (y > 0) * 1.0
        return DataSet(name, ("a", "b", "c"), x, 10 * y if name == "powerplant" else y)

    monkeypatch.setattr(systems, "load_set", load)
    monkeypatch.setattr(systems, "_file_of", file_of)


def run(module, name, folder):
    study = Study(name, folder, "quick", Console(quiet=True))
    module.run(study)
    return [json.loads(line) for line in (folder / name / "quick.jsonl").read_text().splitlines()]


def test_a_study_goes_on_where_it_stopped(tmp_path):
    study = Study("some", tmp_path, "quick", Console(quiet=True))
    asked = []

    def compute(case):
        asked.append(case["i"])
        if len(asked) == 3:
            raise KeyboardInterrupt
        return {"square": case["i"] ** 2}

    cases = [{"i": i} for i in range(4)]
    assert [run["square"] for run in study.runs(cases, compute)] == [0, 1]
    found = Study("some", tmp_path, "quick", Console(quiet=True)).runs(cases, compute)
    assert [run["square"] for run in found] == [0, 1, 4, 9]
    assert asked == [0, 1, 2, 2, 3]
    assert {"case", "seed", "square", "device", "seconds", "versions"} == set(found[0])
    # Another case is another run, and the other level has a file of its own.
    study.runs([{"i": 1, "more": True}], compute)
    assert asked[-1] == 1
    assert not (tmp_path / "some" / "full.jsonl").exists()


def test_a_study_keeps_what_failed_and_leaves_out_what_is_not_there(tmp_path):
    def compute(case):
        if case["i"] == 1:
            raise NumericalError("too wild")
        if case["i"] == 2:
            raise DataFolderError("there is no such set.")
        return {"met_not_finite": case["i"] == 3}

    cases = [{"i": i} for i in range(5)]
    for _ in range(2):
        study = Study("some", tmp_path, "quick", Console(quiet=True))
        assert [run["case"]["i"] for run in study.runs(cases, compute)] == [0, 3, 4]
        assert study.missing == {"there is no such set.": 1}
        study.write_table("| a |\n")
    # Nothing but what is in the log, where nothing is to be computed.
    study = Study("some", tmp_path, "quick", Console(quiet=True), computes=False)
    assert [run["case"]["i"] for run in study.runs([*cases, {"i": 9}], compute)] == [0, 3, 4]
    lines = [json.loads(line) for line in (tmp_path / "some" / "quick.jsonl").read_text().splitlines()]
    assert [line.get("failed") for line in lines] == [None, "too wild", None, None]
    assert (tmp_path / "some" / "quick.md").read_text() == (
        "| a |\n\nFailed: i 1: too wild. It is run again when its line is taken out of quick.jsonl.\n\n1 of 5 runs are "
        "missing. 1 since there is no such set.\n\n1 of 3 runs met values that are not finite, and went on with more "
        "jitter and half the rate.\n"
    )
    with pytest.raises(DataError, match="there is no such set"):
        Study("other", tmp_path, "quick", Console(quiet=True)).runs([{"i": 2}], compute)


@pytest.mark.parametrize(
    "error", [np.linalg.LinAlgError("no factor"), RuntimeError("no memory\nat all"), MemoryError()]
)
def test_a_run_that_another_library_gives_up_has_failed(tmp_path, error):
    def compute(case):
        if case["i"]:
            raise error
        return {}

    study = Study("some", tmp_path, "quick", Console(quiet=True))
    assert len(study.runs([{"i": 0}, {"i": 1}], compute)) == 1
    failed = json.loads((tmp_path / "some" / "quick.jsonl").read_text().splitlines()[1])["failed"]
    assert failed == f"{type(error).__name__}: {error}".split("\n")[0]


def test_predictions_that_are_no_numbers_have_no_scores(small, monkeypatch):
    data = systems.fold("powerplant", 0, 5)
    predictor = systems.Predictor(systems.untrained(data, PerPoint(4), 16))
    assert systems.score(data, predictor)["rmse"] > 0
    monkeypatch.setattr(systems.Predictor, "assess_numbers", lambda self, x, y: (np.full(len(x), np.nan),) * 6)
    with pytest.raises(NumericalError, match="predicts values that are not finite"):
        systems.score(data, predictor)


def test_a_run_is_one_however_a_stand_in_was_described_and_wherever_it_ran(tmp_path):
    def runs(words):
        study = Study("some", tmp_path, "quick", Console(quiet=True))
        return study.runs([{"data": "a", "stand_in": words}], lambda case: {"value": 1.0})

    (first,) = runs("some flights")
    log = tmp_path / "some" / "quick.jsonl"
    log.write_text(log.read_text() + json.dumps({**first, "device": "another", "value": 2.0}) + "\n")
    (second,) = runs("other words")
    assert (second["value"], second["case"]["stand_in"]) == (2.0, "other words")


def test_a_log_that_was_cut_off_loses_its_last_run_alone_and_other_damage_is_named(tmp_path):
    def runs():
        return Study("some", tmp_path, "quick", Console(quiet=True)).runs([{"i": 1}, {"i": 2}], lambda case: dict(case))

    first = runs()
    log = tmp_path / "some" / "quick.jsonl"
    log.write_text(log.read_text()[:-20])
    second = runs()
    assert second[0] == first[0]
    assert second[1]["case"] == {"i": 2}
    assert len(log.read_text().splitlines()) == 2
    log.write_text("{}\n" + log.read_text())
    with pytest.raises(DataError, match=r"line 1 of .*quick.jsonl is not a run"):
        runs()


def test_an_interruption_ends_all_experiments_and_missing_data_end_one(tmp_path, monkeypatch):
    def experiment(error):
        def run(study):
            def compute(case):
                if case["i"]:
                    raise error
                return {}

            study.runs([{"i": 0}, {"i": 1}], compute)

        return SimpleNamespace(TITLE="some", run=run)

    modules = {"a": experiment(DataFolderError("no a.")), "b": experiment(KeyboardInterrupt()), "c": None}
    monkeypatch.setattr(catalogue, "NAMES", tuple(modules))
    monkeypatch.setattr(catalogue, "module", lambda name: modules[name])
    with pytest.raises(KeyboardInterrupt):
        catalogue.reproduce("all", "quick", None, tmp_path, Console(quiet=True))
    assert len((tmp_path / "b" / "quick.jsonl").read_text().splitlines()) == 1
    with pytest.raises(DataError, match=r"not everything could be run. a: no a."):
        catalogue.reproduce("a", "quick", None, tmp_path, Console(quiet=True))


def test_tables_are_markdown_with_the_papers_numbers_beside_ours():
    assert markdown(("a", "b"), [(1, "x")]) == "| a | b |\n|---|---|\n| 1 | x |\n"
    assert spread([1.0, 3.0], 1) == "2.0 ± 1.4"
    assert spread([1.0]) == "1.000"
    assert systems.beside(2.0, 1.5, {"data": "a"}) == ("1.5", "+0.500")
    assert systems.beside(2.0, 1.5, {"data": "a", "stand_in": "others"}) == ("1.5", "")


def test_folds_share_no_row_and_are_scaled_by_their_training_rows(small):
    folds = [systems.fold("powerplant", i, 5) for i in range(5)]
    assert sum(len(one.x_test) for one in folds) == 300
    for one in folds:
        assert len(one.x) + len(one.x_test) == 300
        assert one.y.mean() == pytest.approx(0.0, abs=1e-9)
        assert one.y.std() == pytest.approx(1.0)
        assert one.unit == pytest.approx(7, abs=1.5)
    assert systems.fold("protein", 0, 5).unit == 1.0
    everything = np.concatenate([one.x_test * 1.0 for one in folds])
    assert len(np.unique(np.round(everything[:, 0], 9))) > 290


def test_classes_are_classes_where_rows_come_sorted_by_them(monkeypatch):
    rows = DataSet("spam", ("a",), np.zeros((3000, 1)), np.repeat([1.0, 0.0], 1500))
    monkeypatch.setattr(systems, "load_set", lambda name: rows)
    assert systems.fold("spam", 0, 10).is_classes


def test_scores_are_in_the_units_of_the_target(small):
    data = systems.fold("powerplant", 0, 5)
    trained = systems.sparse(data, PerPoint(4), 16, steps=300, learning_rate=0.02)
    scores = systems.score(data, systems.Predictor(trained.model))
    assert 0.3 < scores["rmse"] < 4
    assert scores["nll"] == pytest.approx(np.log(scores["rmse"]) + 1.42, abs=0.6)
    assert scores["nll"] - scores["nll_paper"] == pytest.approx(0.4595, abs=1e-4)


def test_local_gps(small, tmp_path, monkeypatch):
    monkeypatch.setitem(local_gps.LEVELS, "quick", local_gps.Level(1, 20, 0.01, 4, 20, 5))
    monkeypatch.setattr(local_gps, "DATA", ("powerplant",))
    runs = run(local_gps, "local-gps", tmp_path)
    assert len(runs) == 4
    table = (tmp_path / "local-gps" / "quick.md").read_text()
    assert "| powerplant | Inductive GPs | 1 |" in table
    assert "38.38" in table
    assert "4 of 20 rows, 5 steps" in table
    assert (tmp_path / "local-gps" / "quick.pdf").stat().st_size > 500
    assert "fewer and faster than the paper" in table


def test_m_and_h_with_folds_that_train_alone_or_together(small, tmp_path, monkeypatch):
    level = m_and_h.Level((("powerplant", "kin8nm"),), (32,), 1, 20, 0.01)
    monkeypatch.setitem(m_and_h.LEVELS, "quick", level)
    monkeypatch.setattr(m_and_h, "H", (4,))
    alone = run(m_and_h, "m-and-h", tmp_path / "alone")
    monkeypatch.setattr(m_and_h, "_train_together", lambda: True)
    together = run(m_and_h, "m-and-h", tmp_path / "together")
    assert len(alone) == len(together) == 6
    assert set(alone[2]["scores"]) == {"SVGP-M", "SVGP-M-4"}
    for one, other in zip(alone, together, strict=True):
        assert (other["trained_together"], other["case"]) == (2, one["case"])
        for system, scores in one["scores"].items():
            assert scores == pytest.approx(other["scores"][system], rel=1e-3)
    monkeypatch.setattr(m_and_h, "train_together", lambda models, *_: [None, *models[1:]])
    failed, scored = m_and_h.compute([run["case"] for run in together[:2]])
    assert failed == {"failed": "training met values that are not finite, and gave up."}
    assert "scores" in scored
    for kind in ("md", "png", "pdf"):
        assert (tmp_path / "alone" / "m-and-h" / f"quick.{kind}").stat().st_size > 500


def test_running_time(small, tmp_path, monkeypatch):
    monkeypatch.setattr(running_time, "SIZES", {"mnist": 16})
    monkeypatch.setattr(
        running_time, "PAPER", {key: value for key, value in running_time.PAPER.items() if "mnist" in key}
    )
    monkeypatch.setitem(running_time.LEVELS, "quick", running_time.Level(1, 0.01, {"mnist": 1.0}))
    runs = run(running_time, "running-time", tmp_path)
    assert len(runs) == 2
    assert all(r["step_ms"] > 0 and r["prediction_ms"] > 0 and len(r["curve"]) >= 1 for r in runs)
    assert "| 516 |" in (tmp_path / "running-time" / "quick.md").read_text()


def test_large_m(small, tmp_path, monkeypatch):
    monkeypatch.setitem(large_m.LEVELS, "quick", large_m.Level({"airline": ((150,), 8)}, 1, 1, 0.01, ()))
    assert len(run(large_m, "large-m", tmp_path)) == 1
    table = (tmp_path / "large-m" / "quick.md").read_text()
    assert "airline (stand-in: 2.5 million flights of 2008 to 2023, not the 5.9 million of 2008)" in table
    assert re.search(r"\d cores? of ", table)


def test_large_m_takes_the_papers_set_where_it_is_there(small, tmp_path, monkeypatch):
    monkeypatch.setenv("SWSGP_DATA", str(tmp_path))
    monkeypatch.setitem(large_m.LEVELS, "quick", large_m.Level({"wave": ((50,), 8)}, 1, 1, 0.01, ()))
    table = pa.table({"a": [1.0], "target": [2.0]})
    pq.write_table(table, tmp_path / "wave_standin_sgemm.parquet")
    (found,) = run(large_m, "large-m", tmp_path)
    assert found["case"]["data"] == "wave_standin_sgemm"
    pq.write_table(table, tmp_path / "wave.parquet")
    assert run(large_m, "large-m", tmp_path)[1]["case"]["data"] == "wave"


def test_deep_without_torch(small, tmp_path, monkeypatch):
    own = {key: value for key, value in deep.PAPER.items() if key[1] in ("SWSGP", "DGP-RBF")}
    monkeypatch.setattr(deep, "PAPER", own)
    others = {"DGP-RBF": {"steps": 20, "batch_size": 50}, "SVDKL": {"steps": 20, "batch_size": 50, "hidden": (2,)}}
    others["KISS-GP"] = deep.KISS_GP
    level = deep.Level(1, deep.Sizes(100, 8, 20), deep.Sizes(16, 4, 20), 0.01, others, 200)
    monkeypatch.setitem(deep.LEVELS, "quick", level)
    monkeypatch.setattr(deep, "fit_deep_features", partial(deep.fit_deep_features, n_frequencies=8))
    runs = run(deep, "deep", tmp_path)
    assert len(runs) == 4
    of_flights = next(r["scores"] for r in runs if r["case"]["data"] == "airline" and r["case"]["system"] == "DGP-RBF")
    base = f"{of_flights['base_error']:.3f} / {of_flights['base_entropy']:.3f}"
    assert f"| {of_flights['auc']:.3f} | {base} |" in (tmp_path / "deep" / "quick.md").read_text()


def test_joint_covariance(small, tmp_path, monkeypatch):
    monkeypatch.setattr(joint_covariance, "M", 32)
    monkeypatch.setattr(joint_covariance, "N_ACTIVE", 24)
    monkeypatch.setattr(joint_covariance, "NEIGHBORS", (4, 24))
    monkeypatch.setattr(joint_covariance, "BATCHES", (4, 8))
    monkeypatch.setitem(joint_covariance.LEVELS, "quick", joint_covariance.Level(300, 0.02, 1))
    scores = [one for result in run(joint_covariance, "joint-covariance", tmp_path) for one in result["scores"]]
    found = {(r["system"], r["batch"]): r for r in scores}
    assert len(found) == len(scores) == 2 * (2 + 1 + 2)
    assert found["full GP", 8]["covariance_error"] == 0.0
    assert 0 < found["SVGP-512", 8]["covariance_error"] < 0.2
    assert set(found["no covariance at all", 4]) == {"system", "batch", "covariance_error"}
    assert all(np.isfinite(r["nll"]) for r in scores if "nll" in r)


def test_metric(small, tmp_path, monkeypatch):
    monkeypatch.setitem(metric.LEVELS, "quick", metric.Level(1, 20, 0.01))
    monkeypatch.setattr(metric, "DATA", ("powerplant",))
    monkeypatch.setattr(metric, "METRICS", {name: "" for name in ("learned Matérn-5/2", "linear")})
    runs = run(metric, "metric", tmp_path)
    assert len({r["scores"]["nll"] for r in runs}) == 2


def test_figures_name_what_is_in_any_panel_once():
    panels = {"flights": {"ours": ([1.0], None)}, "plant": {"ours": ([1.0, 2.0], 1.5), "other": ([2.0], 1.0)}}
    (legend,) = systems.figure_of_systems(panels).legends
    assert sorted(text.get_text() for text in legend.get_texts()) == ["ours", "paper"]


def test_time_in_figures_begins_after_the_step_that_compiles():
    points = [{"step": s, "training_seconds": t, "rmse": 1.0, "nll": 1.0} for s, t in ((1.0, 60.0), (9.0, 120.0))]
    axis = systems.figure_of_curves({"a": {"some": points, "other": points[:1]}}).axes[0]
    assert [line.get_xdata().tolist() for line in axis.lines] == [[1.0], [1.0]]


def test_the_prior_without_w_is_the_true_one(tmp_path, monkeypatch):
    monkeypatch.setitem(prior.LEVELS, "quick", 20_000)
    (result,) = run(prior, "prior", tmp_path)
    # The largest of 14,400 differences that are right is about four standard errors.
    assert result["largest_difference"] < 5 * result["standard_error"]


def test_posteriors_of_one_column(tmp_path, monkeypatch):
    monkeypatch.setitem(posterior_1d.LEVELS, "quick", posterior_1d.Level(20, 0.01))
    monkeypatch.setattr(posterior_1d, "M", 20)
    assert len(run(posterior_1d, "posterior-1d", tmp_path)) == 4
    assert all(region.sum() > 30 for region in posterior_1d.REGIONS.values())
    assert sum(posterior_1d.REGIONS.values()).tolist() == [1] * len(posterior_1d.GRID)
    assert (tmp_path / "posterior-1d" / "quick.png").exists()


def test_runs_on_another_file_are_other_runs_and_data_that_are_not_there_leave_out_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("SWSGP_DATA", str(tmp_path))
    for name in ("kin8nm", "protein"):
        pq.write_table(pa.table({"a": [1.0], "target": [2.0]}), tmp_path / f"{name}.parquet")
    asked = []

    def compute(cases):
        asked.append([case["data"] for case in cases])
        return [{"value": 1.0} for _ in cases]

    def runs():
        systems._file_of.cache_clear()
        study = Study("some", tmp_path / "out", "quick", Console(quiet=True))
        group = [systems.of_fold(name, 0, 10) for name in ("powerplant", "kin8nm", "protein")]
        return len(study.runs_together([group], compute)), study.missing

    n, missing = runs()
    assert (n, asked) == (2, [["kin8nm", "protein"]])
    assert [(reason[:33], n) for reason, n in missing.items()] == [("there is no powerplant.parquet in", 1)]
    pq.write_table(pa.table({"a": [1.5], "target": [2.0]}), tmp_path / "protein.parquet")
    assert runs()[0] == 2
    assert asked[1:] == [["protein"]]


def test_a_log_without_its_last_line_break_and_one_with_a_run_twice(tmp_path):
    def runs(n):
        study = Study("some", tmp_path, "quick", Console(quiet=True))
        return study.runs([{"i": i} for i in range(n)], lambda case: dict(case))

    runs(1)
    log = tmp_path / "some" / "quick.jsonl"
    log.write_text(log.read_text().rstrip("\n"))
    assert len(runs(2)) == 2
    log.write_text(2 * log.read_text())
    assert len(runs(2)) == 2
    log.write_bytes(log.read_bytes() + b"\xff")
    assert len(runs(2)) == 2


def test_folders_that_are_none_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"cannot be put in .*file, which is a file; name a folder with --out"):
        Study("some", tmp_path / "file", "quick", Console(quiet=True))
    with pytest.raises(SettingError, match=r"there is no folder .*nowhere; name the one"):
        catalogue.reproduce("prior", "quick", tmp_path / "nowhere", tmp_path, Console(quiet=True))


def test_every_experiment_has_a_module_and_others_are_refused():
    for name in catalogue.NAMES:
        assert catalogue.module(name).TITLE
    with pytest.raises(SettingError, match="there is no experiment 'nonsense'; there are prior"):
        catalogue.module("nonsense")
