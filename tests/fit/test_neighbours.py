from swsgp.fit.neighbours import last_refresh, next_refresh


def test_neighbours_are_searched_again_four_times_while_the_steps_double():
    steps, step = [], 0
    while step < 1000:
        step = next_refresh(step)
        steps.append(step)
    assert steps[:9] == [64, 80, 96, 112, 128, 160, 192, 224, 256]
    assert steps[-4:] == [640, 768, 896, 1024]
    # Wherever a run goes on from, it knows the search before, and the one to come.
    for step in range(1000):
        assert last_refresh(step) == max([0, *(s for s in steps if s <= step)])
        assert next_refresh(step) == min(s for s in steps if s > step)
