"""Networks, the warm start that they begin from, and the probe that looks at their gradients."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from sorl.agent.routing import routed
from sorl.agent.tokenizer import build_tokenizer
from sorl.algorithms import ALGORITHMS, resolve
from sorl.batch import Batch
from sorl.learn import checkpoint, networks, packed, warmstart
from sorl.learn.checks import synthetic
from sorl.learn.networks import Critic, linear_head, log_probs, passes, token_log_probs
from sorl.learn.probe import controls, cosine, noise, power
from sorl.learn.update import Learner
from sorl.objective import Algorithm, prepare
from sorl.spec import InputError, LearnSettings, PolicySettings, RunSettings

TOKENIZER = build_tokenizer()
TOKENS = torch.randint(3, len(TOKENIZER), (3, 7), generator=torch.Generator().manual_seed(0))
ALL = 1 << 40  # more logits than there are: they are made at once


@pytest.fixture
def model() -> torch.nn.Module:
    return networks.create(PolicySettings(hidden=16, layers=2, heads=2, mlp=16), TOKENIZER, seed=0)


@pytest.fixture
def critic(model: torch.nn.Module) -> Critic:
    made = Critic(model)
    torch.nn.init.normal_(made.head.weight)
    return made


def test_log_probs_are_those_of_a_softmax_over_the_vocabulary_at_the_position_before(model):
    log_prob, entropy = log_probs(model, TOKENS, temperature=0.7)
    p = torch.softmax(model(input_ids=TOKENS[:, :-1]).logits.double() / 0.7, -1)
    chosen = p.gather(-1, TOKENS[:, 1:, None])[..., 0].log()
    torch.testing.assert_close(log_prob[:, 1:].double(), chosen, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy[:, 1:].double(), -(p * p.log()).sum(-1), rtol=0, atol=1e-5)
    assert (log_prob[:, 0] == 0).all()


def test_padding_on_the_right_changes_no_log_prob_and_no_value(model, critic):
    padded = torch.nn.functional.pad(TOKENS, (0, 5), value=TOKENIZER.pad_token_id)
    torch.testing.assert_close(log_probs(model, padded)[0][:, :7], log_probs(model, TOKENS)[0])
    torch.testing.assert_close(critic(padded)[:, :7], critic(TOKENS))


def test_a_value_does_not_see_the_token_that_it_is_the_baseline_of(critic):
    changed = TOKENS.clone()
    changed[:, 3] = 3 + (TOKENS[:, 3] - 2) % (len(TOKENIZER) - 3)
    before = critic(TOKENS)
    after = critic(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_the_critic_starts_from_the_policys_weights_and_predicts_nothing(model):
    critic = Critic(model)
    for a, b in zip(model.base_model.parameters(), critic.backbone.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a is not b
    assert (critic(torch.full((1, 4), 5)) == 0).all()


def ragged(rows: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (B, T), and where they are asked for: in some rows nowhere, in others only in the middle."""
    stream = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, len(TOKENIZER), (rows, width), generator=stream)
    where = torch.rand(rows, width, generator=stream) < torch.rand(rows, 1, generator=stream)
    where &= torch.arange(width) < torch.randint(0, width + 1, (rows, 1), generator=stream)
    where[0, 1] = True
    return tokens, where


@pytest.mark.parametrize(
    ("rows", "width", "layers", "heads"), [(1, 2, 1, 1), (5, 9, 1, 2), (16, 60, 2, 4), (19, 33, 3, 2)]
)
@pytest.mark.parametrize("kind", ["llama", "llama, tied", "mixtral", "mixtral, replayed"])
def test_packed_passes_equal_those_of_transformers_forward_and_backward(rows, width, layers, heads, kind):
    family, _, how = kind.partition(", ")
    settings = {
        "family": family,
        "hidden": 32,
        "layers": layers,
        "heads": heads,
        "mlp": 40,
        "tied": how == "tied",
    }
    policy = networks.create(PolicySettings.model_validate(settings), TOKENIZER, 1)
    stream = torch.Generator().manual_seed(3)
    given = (
        torch.randint(0, 8, (rows, width - 1, 2 * layers), generator=stream) if how == "replayed" else None
    )
    for parameter in policy.parameters():  # gains of 1 would hide where they are multiplied
        own = torch.Generator().manual_seed(parameter.numel())
        parameter.data += 0.03 * torch.randn(parameter.shape, generator=own)
    critic = Critic(policy)
    tokens, where = ragged(rows, width, rows)
    torch.nn.init.normal_(critic.head.weight, std=0.2)
    assert packed.supports(policy.model, tokens)
    pull = torch.randn(3, rows, width, generator=torch.Generator().manual_seed(2)) * where

    def results(asked: torch.Tensor | None) -> tuple[torch.Tensor, list[torch.Tensor]]:
        with routed(policy, given):
            made = (*log_probs(policy, tokens, 0.7, True, asked), critic(tokens, asked))
        seen = torch.stack([torch.where(where, x, 0) for x in made])
        own = [*policy.parameters(), *critic.parameters()]
        twice = [torch.autograd.grad((seen * pull).sum(), own, retain_graph=True) for _ in range(2)]
        assert all(torch.equal(a, b) for a, b in zip(*twice, strict=True)), (
            "a graph can be gone through again"
        )
        return seen, list(twice[0])

    seen, gradients = results(where)
    expected, right = results(None)
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-5)
    for gradient, known in zip(gradients, right, strict=True):
        torch.testing.assert_close(gradient, known, rtol=0, atol=1e-5 * max(1.0, float(known.abs().max())))
    made = log_probs(policy, tokens, 0.7, True, where)[0]
    assert (made[~where] == 0).all(), "nothing else is computed"


def test_what_is_no_plain_small_llama_in_float32_is_left_to_transformers(model):
    tokens, where = ragged(4, 9, 0)
    for change in ({"family": "qwen3"}, {"hidden": 512}):
        policy: Any = networks.create(PolicySettings.model_validate(change), TOKENIZER, 0)
        assert not packed.supports(policy.model, tokens)
    assert not packed.supports(model.double().model, tokens)
    model.float().model.gradient_checkpointing = True
    assert not packed.supports(model.model, tokens)
    model.model.gradient_checkpointing = False
    with torch.autocast("cpu", torch.bfloat16):
        assert not packed.supports(model.model, tokens)
    assert packed.supports(model.model, tokens)
    assert networks.packing_of(model.model, tokens, torch.zeros_like(where)) is None, "nothing is asked for"


@pytest.mark.parametrize("elements", [1, 71 * 5, 71 * 17])
def test_parts_of_any_size_give_the_log_probs_and_gradients_of_all_logits_at_once(model, elements):
    def results(elements):
        model.zero_grad()
        log_prob, entropy = log_probs(model, TOKENS, 0.7, grad_entropy=True, elements=elements)
        (log_prob.sin().sum() + entropy.cos().sum()).backward()
        return [log_prob, entropy, *[p.grad.clone() for p in model.parameters() if p.grad is not None]]

    for part, whole in zip(results(elements), results(ALL), strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-5, atol=1e-5)


def test_logits_are_made_only_where_they_are_wanted(model):
    where = torch.rand(3, 7, generator=torch.Generator().manual_seed(1)) < 0.4
    wanted = where & (torch.arange(7) > 0)
    assert wanted.any()
    for found, whole in zip(
        log_probs(model, TOKENS, where=where, elements=1), log_probs(model, TOKENS), strict=True
    ):
        torch.testing.assert_close(found, torch.where(wanted, whole, 0))
    none, _ = log_probs(model, TOKENS, where=torch.zeros_like(where), elements=1)
    assert (none == 0).all()
    none.sum().backward()  # a batch without a trained token still has a graph


@pytest.mark.parametrize("bias", [False, True])
def test_the_gradient_is_that_of_finite_differences(bias):
    torch.manual_seed(0)
    head = torch.nn.Linear(3, 7, bias=bias).double()
    hidden = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 6, 3, 3, 1])
    inputs = (hidden, *head.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: token_log_probs(x, head, targets, 0.7, elements=14), inputs)


def test_a_head_with_more_to_it_than_a_linear_layer_keeps_all_its_logits():
    torch.manual_seed(0)
    size = {
        "vocab_size": 50,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "head_dim": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "initializer_range": 0.5,
    }
    capped = transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**size, final_logit_softcapping=0.5)
    ).eval()
    scaled = transformers.CohereForCausalLM(transformers.CohereConfig(**size, logit_scale=0.1)).eval()
    tokens = torch.randint(50, (2, 6))
    for model in (capped, scaled):
        assert linear_head(model) is None
        torch.testing.assert_close(log_probs(model, tokens, elements=1), log_probs(model, tokens))
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)
    plain = transformers.GPT2LMHeadModel(config).eval()
    assert linear_head(plain) is plain.lm_head


def test_in_bfloat16_parts_are_what_autocast_makes_of_the_whole(model):
    with torch.autocast("cpu", torch.bfloat16):
        part, whole = (log_probs(model, TOKENS, elements=n)[0] for n in (71 * 5, ALL))
    assert part.dtype == torch.float32
    torch.testing.assert_close(part, whole, rtol=0, atol=0.05)
    assert not torch.allclose(part, log_probs(model, TOKENS)[0], rtol=0, atol=1e-5)


def test_passes_keep_to_their_budget_and_take_every_row_once():
    length = torch.tensor([5, 90, 30, 30, 31, 7, 6])
    parts = passes(length, 64)
    assert [part.tolist() for part in parts] == [[1], [4, 2], [3, 5], [6, 0]]
    for part in parts:
        assert len(part) == 1 or len(part) * int(length[part].max()) <= 64


TINY = RunSettings(
    policy={"hidden": 16, "layers": 1, "heads": 2, "mlp": 16}, warmstart={"steps": 3, "batch": 8}
)


def test_the_warm_start_is_made_once_and_found_again_with_its_tokenizer(tmp_path):
    folder, other = (warmstart.ensure(TINY, tmp_path / name) for name in ("a", "b"))
    pairs = zip(*(networks.load(made).parameters() for made in (folder, other)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "two with one seed are bit-equal"
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert warmstart.ensure(TINY, tmp_path / "a") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert not list(folder.parent.glob(".making-*"))
    text = "who is the mentor of kofi ? <think> got kofi need mentor </think> <search> kofi mentor </search>"
    assert (
        transformers.AutoTokenizer.from_pretrained(folder)(text).input_ids
        == build_tokenizer()(text).input_ids
    )


def test_the_cache_key_knows_what_shapes_the_weights_and_nothing_else():
    assert warmstart.key(TINY) == warmstart.key(TINY.model_copy(update={"seed": 7, "algorithm": "grpo"}))
    other = TINY.model_copy(update={"policy": PolicySettings(hidden=32, layers=1, heads=2, mlp=16)})
    assert warmstart.key(TINY) != warmstart.key(other)


def test_a_missing_checkpoint_is_named_and_weights_that_can_run_code_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"no model at '.*nowhere'.*config\.json"):
        networks.load(tmp_path / "nowhere")
    folder = warmstart.ensure(TINY, tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="no safetensors weights"):
        networks.load(folder)


GRPO = ALGORITHMS["grpo"]


def learner(algorithm: Algorithm = GRPO, **chosen: Any) -> Learner:
    network = networks.create(PolicySettings(hidden=16, layers=1, heads=2, mlp=16), TOKENIZER, seed=0)
    made = Learner(algorithm, LearnSettings.model_validate(chosen), network, None)
    made.probe.control = controls(TOKENIZER)
    return made


def batch(algorithm: Algorithm = GRPO) -> Batch:
    made, _ = synthetic(4, len(TOKENIZER))
    floats = {k: x.float() for k, x in vars(made).items() if x is not None and x.dtype == torch.float64}
    return prepare(algorithm, replace(made, **floats))


def measured(one: Learner, made: Batch) -> dict[str, float | None]:
    return one.probe.measure(one.policy, one.policy_parameters, made)


@pytest.mark.parametrize(
    ("sizes", "gradients", "expected"),  # a part's gradient carries the minibatch's divisor
    [
        (
            [1] * 4,
            [[0.25, 0], [0.2, 0.05], [0.3, -0.1], [0.15, 0.15]],
            {"noise_trace": 0.24, "noise_signal": 0.76, "noise_scale": 0.315789, "gradient_cosine": 0.795717},
        ),
        # Sequences (1, 0), (0, 1), (1, 1) in parts of 2 and 1: |g_b|^2 = 1/2 and 2, their mean 5/4; |g_B|^2 =
        # 8/9.
        (
            [2, 1],
            [[1 / 3, 1 / 3], [1 / 3, 1 / 3]],
            {
                "noise_trace": (5 / 4 - 8 / 9) / (3 / 4 - 1 / 3),
                "gradient_cosine": 1,
                "noise_signal": 8 / 9 - (5 / 4 - 8 / 9) / (3 / 4 - 1 / 3) / 3,
            },
        ),
        # A signal that is not positive has no noise scale, and one part nothing to compare.
        (
            [1] * 4,
            [[0.25, 0], [-0.25, 0], [0, 0.25], [0, -0.25]],
            {"noise_signal": -1 / 3, "noise_scale": None},
        ),
        ([3], [[1, 0]], dict.fromkeys(("gradient_cosine", "noise_trace", "noise_signal", "noise_scale"))),
    ],
)
def test_the_noise_scale_has_its_worked_numbers(sizes, gradients, expected):
    found = noise(sizes, torch.tensor(gradients, dtype=torch.float64))
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert cosine(torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)) is None


def test_the_correction_that_enters_the_power_is_that_of_the_whole_minibatch():
    normalised = resolve("tis", {"correction": {"normalise": True}})
    made = batch(normalised)
    one = learner(normalised)
    weight = normalised.correction.weights(made)
    assert weight[made.mask].mean() == pytest.approx(1)
    with torch.no_grad():
        p = torch.log_softmax(one.policy(input_ids=made.tokens[:, :-1]).logits.float(), -1).exp()
    expected = power(made.advantages * weight, made, p) / len(made.tokens)
    assert measured(one, made)["proxy_power"] == pytest.approx(expected, rel=1e-5)


def test_the_gradient_of_the_last_probe_outlives_a_checkpoint(tmp_path):
    made = batch()
    one = learner(probe_every=1)
    fresh = learner(probe_every=1)
    one.update(made, 0, 0)
    checkpoint.load(checkpoint.save(tmp_path, one, checkpoint.Progress(1, 0.0, [], [])), fresh)
    again = [x.update(made, 0, 0).scalars["gradient_cosine_previous"][0] for x in (one, fresh)]
    assert again[0] is not None
    assert again[0] == again[1]


def test_tags_are_measured_where_they_are_single_tokens_of_the_vocabulary():
    made = batch()
    one = learner()
    assert set(controls(TOKENIZER)) == {"search", "search_end", "answer", "answer_end"}
    assert 0 < measured(one, made)["control_off_prob"] < 1
    one.probe.control = {}
    assert not [name for name in measured(one, made) if name.endswith(("on_prob", "off_prob"))]
