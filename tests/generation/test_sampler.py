import numpy as np
import pytest

from edge_runtime.errors import InvalidParameterError, RunError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.generation.sampler import Sampler

V = 5000


def logits_of(seed, spread=3.0, size=V):
    return (np.random.default_rng(seed).normal(size=size) * spread).astype(np.float32)


def sampler(prompt=(), size=V, **params):
    return Sampler(SamplingParams(**params), prompt_token_ids=prompt, vocabulary_size=size)


def drawn(logits, count, **params):
    chosen = sampler(size=logits.size, **params)
    return [chosen.sample(logits).token_id for _ in range(count)]


def log_softmax(logits):
    exact = logits.astype(np.float64)
    return exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())


def assert_drawn_from(tokens, p):
    """Pearson's chi-square over the tokens expected often enough, the others as one bin."""
    counts = np.bincount(tokens, minlength=p.size)
    assert counts[p == 0].sum() == 0
    expected = p * len(tokens)
    often = expected >= 5
    observed = np.append(counts[often], counts[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    degrees = max(1, observed.size - 1)
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    assert statistic < degrees + 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("seed", range(5))
def test_temperature_zero_is_argmax(seed):
    logits = logits_of(seed)
    assert sampler(temperature=0).sample(logits).token_id == logits.argmax()


def test_a_temperature_too_low_to_tell_from_zero_is_argmax():
    logits = logits_of(1)
    assert set(drawn(logits, 5, temperature=1e-30)) == {logits.argmax()}


@pytest.mark.parametrize("temperature", [1e-4, 100])
def test_extreme_temperatures_raise_no_floating_point_warning(temperature):
    logits = logits_of(2) * np.float32(1e4)
    with np.errstate(all="raise"):
        assert 0 <= drawn(logits, 1, temperature=temperature)[0] < V


@pytest.mark.parametrize("temperature", [0, 1])
def test_equal_logits_go_to_the_lowest_id(temperature):
    logits = np.zeros(V, np.float32)
    logits[[40, 7, 4000]] = 2
    assert sampler(temperature=temperature, top_k=1).sample(logits).token_id == 7


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_unfiltered_draws_follow_the_softmax(temperature):
    logits = logits_of(3)
    p = np.exp(log_softmax(logits / np.float32(temperature)))
    assert_drawn_from(drawn(logits, 4000, temperature=temperature, seed=11), p)


def test_filtered_draws_follow_the_renormalized_rest():
    logits = logits_of(4)
    p = np.exp(log_softmax(logits))
    order = np.argsort(-p)[:40]
    kept = np.zeros_like(p)
    kept[order] = p[order] / p[order].sum()
    within = order[: int((np.cumsum(kept[order]) < 0.9).sum()) + 1]
    within = within[p[within] >= 0.2 * p.max()]
    expected = np.zeros_like(p)
    expected[within] = p[within] / p[within].sum()
    assert_drawn_from(drawn(logits, 4000, top_k=40, top_p=0.9, min_p=0.2, seed=5), expected)


def test_top_p_counts_the_mass_of_tokens_that_min_p_drops():
    logits = np.zeros(V, np.float32)
    logits[:10] = np.log(0.4 / 10 / (0.6 / (V - 10)))
    # Half of all the mass is more than the ten have, so top-p keeps each of them.
    assert set(drawn(logits, 200, top_p=0.5, min_p=0.5, seed=1)) == set(range(10))


@pytest.mark.parametrize(
    "params",
    [{"top_p": 0.9}, {"min_p": 0.02}, {"typical_p": 0.9}, {"top_p": 0.9, "min_p": 0.02}],
    ids=str,
)
def test_each_filter_leaves_the_odds_between_kept_tokens_alone(params):
    logits = logits_of(6)
    tokens = drawn(logits, 4000, seed=3, **params)
    kept = np.unique(tokens)
    assert 1 < kept.size < 1000
    p = np.exp(log_softmax(logits))
    often = kept[p[kept] > 0.005]
    counts = np.bincount(tokens, minlength=V)[often]
    share = p[often] / p[often].sum()
    expected = np.zeros(V)
    expected[often] = share
    assert counts.sum() > 2000
    assert_drawn_from([t for t in tokens if p[t] > 0.005], expected)


def test_the_same_seed_and_logits_give_the_same_tokens():
    steps = [logits_of(i) for i in range(30)]

    def run(seed):
        one = sampler(seed=seed, top_p=0.95, repetition_penalty=1.1)
        return [one.sample(step).token_id for step in steps]

    assert run(42) == run(42)
    assert run(42) != run(43)


def test_a_seed_is_drawn_where_none_is_given_and_reproduces_the_run():
    logits = logits_of(0)
    first, second = sampler(), sampler()
    assert first.random_seed != second.random_seed
    tokens = [first.sample(logits).token_id for _ in range(20)]
    assert drawn(logits, 20, seed=first.random_seed) == tokens
    assert sampler(seed=9).random_seed == 9


def test_each_drawn_token_takes_one_random_number_whatever_the_filters():
    flat, peaked = np.zeros(V, np.float32), np.zeros(V, np.float32)
    peaked[3] = 1000
    one, two = sampler(seed=1, top_p=0.5), sampler(seed=1, top_p=0.5)
    one.sample(flat)
    two.sample(peaked)
    assert one.sample(flat).token_id == two.sample(flat).token_id


def test_logits_are_only_read():
    logits = logits_of(1)
    logits.setflags(write=False)
    before = logits.copy()
    every = sampler(
        prompt=[1, 2],
        top_p=0.9,
        typical_p=0.9,
        repetition_penalty=1.2,
        presence_penalty=1,
        logit_bias={3: 5},
        logprobs=5,
    )
    for _ in range(3):
        every.sample(logits)
    np.testing.assert_array_equal(logits, before)


def test_a_strided_view_is_as_good_as_an_array():
    logits = logits_of(1)
    buffer = np.zeros((V, 3), np.float32)
    buffer[:, 1] = logits
    params = {"top_p": 0.9, "seed": 4, "temperature": 1.5}
    one, two = sampler(**params), sampler(**params)
    tokens = [one.sample(buffer[:, 1]).token_id for _ in range(10)]
    assert tokens == [two.sample(logits).token_id for _ in range(10)]


def test_repetition_penalty_sees_prompt_and_answer():
    logits = np.zeros(V, np.float32)
    logits[[1, 2, 3]] = [10.0, 9.9, 9.8]
    one = sampler(prompt=[1], temperature=0, repetition_penalty=1.5)
    assert [one.sample(logits).token_id for _ in range(2)] == [2, 3]


def test_frequency_and_presence_penalties_see_the_answer_only():
    logits = np.zeros(V, np.float32)
    logits[[1, 2]] = [10.0, 9.0]
    one = sampler(prompt=[1, 1, 1], temperature=0, frequency_penalty=0.4)
    # 10 - 0.4 n against 9: token 1 three times, then equal to neither.
    assert [one.sample(logits).token_id for _ in range(5)] == [1, 1, 1, 2, 1]
    two = sampler(prompt=[1], temperature=0, presence_penalty=1.5)
    assert [two.sample(logits).token_id for _ in range(3)] == [1, 2, 1]


def test_logit_bias_comes_before_the_repetition_penalty():
    logits = np.zeros(V, np.float32)
    logits[[1, 2]] = [1.0, 4.0]
    # (1 + 6) / 2 = 3.5 is below 4; 1 / 2 + 6 would be above it.
    one = sampler(prompt=[1], temperature=0, logit_bias={1: 6}, repetition_penalty=2.0)
    assert one.sample(logits).token_id == 2


@pytest.mark.parametrize("bias", [-100, 100])
def test_a_bias_of_a_hundred_bans_or_forces(bias):
    logits = logits_of(1)
    best = int(logits.argmax())
    tokens = drawn(logits, 50, logit_bias={best: bias})
    assert (set(tokens) == {best}) if bias > 0 else (best not in tokens)


def test_logprobs_are_of_the_raw_distribution_in_falling_order():
    logits = logits_of(8)
    exact = log_softmax(logits)
    chosen = sampler(
        temperature=0.3, top_k=2, logit_bias={5: 50}, repetition_penalty=1.5, logprobs=5
    ).sample(logits)
    assert chosen.logprob is not None
    assert chosen.token_id == chosen.logprob.chosen.token_id == 5
    assert chosen.logprob.chosen.logprob == pytest.approx(exact[5], abs=1e-4)
    top = chosen.logprob.top
    assert [t.token_id for t in top] == np.argsort(-exact, kind="stable")[:5].tolist()
    np.testing.assert_allclose([t.logprob for t in top], np.sort(exact)[::-1][:5], atol=1e-4)


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (20, 20)])
def test_as_many_logprobs_as_asked_for(asked, given):
    logprob = sampler(temperature=0, logprobs=asked).sample(np.zeros(V, np.float32)).logprob
    assert logprob is not None
    assert len(logprob.top) == given
    assert logprob.chosen.logprob == pytest.approx(-np.log(V), abs=1e-5)


def test_no_logprob_where_none_is_asked_for():
    assert sampler().sample(logits_of(1)).logprob is None


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("bad", "words"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "every logit is -inf")]
)
def test_logits_that_choose_nothing_are_a_run_error(temperature, bad, words):
    logits = logits_of(1)
    if bad == -np.inf:
        logits[:] = bad
    else:
        logits[V // 2] = bad
    with pytest.raises(RunError, match=words):
        sampler(temperature=temperature).sample(logits)


def test_masked_logits_are_never_drawn():
    logits = np.full(V, -np.inf, np.float32)
    logits[[5, 4000]] = [1.0, 2.0]
    for params in ({}, {"top_p": 0.99}, {"top_k": 50}, {"typical_p": 0.99}, {"min_p": 0.01}):
        assert set(drawn(logits, 40, seed=2, **params)) == {5, 4000}


def test_logits_of_another_length_are_a_run_error():
    with pytest.raises(RunError, match="shape"):
        sampler().sample(np.zeros(V + 1, np.float32))


def test_other_float_kinds_are_accepted():
    logits = logits_of(1)
    assert sampler(top_k=1).sample(logits.astype(np.float16)).token_id == logits.argmax()


@pytest.mark.parametrize(
    ("params", "prompt", "named"),
    [
        ({"logit_bias": {V: 1}}, (), "logit_bias"),
        ({"stop_token_ids": (V,)}, (), "stop_token_ids"),
        ({}, (0, V), "the prompt"),
        ({}, (-1,), "the prompt"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(params, prompt, named):
    with pytest.raises(InvalidParameterError, match=named):
        sampler(prompt=prompt, **params)
