"""What is chosen where a parameter says "auto"."""

import pytest

from swsgp import SWSGPRegressor
from swsgp.errors import SettingError
from swsgp.fit.defaults import choose


def chosen(n_rows, **parameters):
    return choose(n_rows, SWSGPRegressor(**parameters).get_params())


def test_sizes_grow_with_the_table_and_never_beyond_it():
    before = 0
    for n_rows in (2, 3, 10, 100, 500, 1000, 10_000, 100_000, 1_000_000, 5_000_000):
        choices = chosen(n_rows)
        assert 1 <= choices.n_neighbors <= choices.n_inducing <= n_rows
        assert 1 <= choices.batch_size <= n_rows
        assert choices.n_inducing >= before
        assert choices.n_landmarks * n_rows <= 1 << 25
        before = choices.n_inducing


def test_rows_are_held_out_from_500_on_and_never_too_many():
    assert chosen(499).n_held_out == 0
    assert chosen(500).n_held_out == 50
    assert chosen(5_000_000).n_held_out == 2_000
    assert chosen(5_000_000, active="all").n_held_out == 10_000
    assert chosen(500, early_stopping=False).n_held_out == 0
    assert chosen(100, early_stopping=True).n_held_out == 10


def test_what_is_given_is_taken_as_it_is():
    choices = chosen(1000, n_inducing=77, n_neighbors=5, kl_scale=2, batch_size=13, learning_rate=0.3, max_steps=9)
    assert (choices.n_inducing, choices.n_neighbors, choices.kl_scale) == (77, 5, 2.0)
    assert (choices.batch_size, choices.learning_rate, choices.max_steps) == (13, 0.3, 9)


def test_costly_forms_get_fewer_inducing_points_and_the_paper_kl_where_all_points_share():
    assert chosen(100_000, active="all").n_inducing <= 256
    assert chosen(100_000, covariance="full").n_inducing <= 512
    assert chosen(100_000, learn_inducing=True).n_inducing <= 1024
    assert chosen(100_000, active="union").kl_scale == 1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_inducing", 0), ("n_inducing", 2.5), ("n_neighbors", True), ("kl_scale", -1.0), ("max_steps", "many")],
)
def test_what_cannot_be_is_refused_by_name(name, value):
    with pytest.raises(SettingError, match=f"{name} must be 'auto' or"):
        chosen(1000, **{name: value})


def test_every_row_is_an_inducing_input_up_to_a_limit_where_q_is_solved_for():
    for n_rows in (2, 50, 700, 40_000, 5_000_000):
        choices = chosen(n_rows)
        assert choices.solves
        assert choices.n_inducing == min(n_rows, 50_000)
        assert 1 <= choices.n_neighbors <= choices.n_inducing
        assert choices.kl_scale is None
    for options in ({"active": "all"}, {"covariance": "full"}, {"learn_inducing": True}):
        assert not chosen(1000, **options).solves
        with pytest.raises(SettingError, match="n_landmarks is for active='per-point'"):
            chosen(1000, n_landmarks=16, **options)


def test_landmarks_are_tried_where_rows_are_held_out_to_judge_them():
    assert chosen(400).n_landmarks == 0
    assert chosen(5000).n_landmarks == 512
    assert chosen(40_000).n_landmarks == 256
    assert chosen(10_000_000).n_landmarks == 0
    assert chosen(400, n_landmarks=7).n_landmarks == 7
    assert chosen(5000, n_landmarks=0).n_landmarks == 0


def test_the_papers_preset_is_the_papers():
    choices = chosen(10_000, preset="paper")
    assert (choices.covariance, choices.learn_inducing, choices.kl_scale) == ("full", True, 1.0)
    assert (choices.batch_size, choices.learning_rate, choices.max_steps) == (64, 0.001, 300_000)
    assert choices.n_held_out == 0
    with pytest.raises(SettingError, match="preset must be"):
        chosen(1000, preset="fast")
