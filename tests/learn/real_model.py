"""A real architecture with a real byte-level BPE tokenizer and random weights, as a folder of a published
model is.
"""

import pydoc_data.topics
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from tests.agent.fakes import build

# Qwen2's template without tools and without a system prompt of its own.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TAGS = "<search> x </search>. <answer> y </answer>. <information> z </information>. <think> w </think>. "


@cache
def _trained() -> str:
    """A BPE of 3,000 tokens over parts of Python's reference, in which "</search>." ends in the
    token ">.".
    """
    text = [*list(pydoc_data.topics.topics.values())[:30], *[TAGS] * 200]
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(text, trainer)
    return backend.to_str()


def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained()),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )


def write(folder: Path) -> Path:
    """The folder of a tiny Qwen2 of random weights, with dropout in its configuration and a tied head."""
    made = tokenizer()
    own = {"vocab_size": len(made), "eos_token_id": made.eos_token_id, "pad_token_id": made.pad_token_id}
    own |= {"attention_dropout": 0.1, "tie_word_embeddings": True, "initializer_range": 0.2}
    build(**own).save_pretrained(folder)
    made.save_pretrained(folder)
    return folder
