"""A random micro-Llama with its own byte-level BPE: every trainer runs on it in seconds, without any weights.

Invariant: same texts, same seed, same sizes = byte-identical weights. It knows nothing; it exists for tests, for trying
a recipe, and as the seed of a planner that is trained from scratch.
"""

from collections.abc import Sequence
from pathlib import Path

from agentops.train import machine
from agentops.train.recipe import Machine

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"  # ChatML, as SmolLM2 and Qwen2.5 use it
SPECIAL = (PAD, START, END)


def make(
    folder: Path,
    texts: Sequence[str],
    *,
    vocabulary: int = 600,
    hidden: int = 64,
    layers: int = 2,
    positions: int = 2048,
    seed: int = 0,
) -> Path:
    """A Hugging Face folder with a random model and a tokenizer fitted on `texts`.

    Args:
        folder: created if missing; existing files of the same names are replaced.
        texts: what the BPE learns its merges from; any text can be encoded whatever they are.
        vocabulary: tokens at most, the 256 bytes and the special tokens included.
        hidden: width; attention heads are 16 wide.
        layers: transformer blocks.
        positions: tokens the model can see.
        seed: of the weights.

    Raises:
        ValueError: sizes too small to make sense.
    """
    if vocabulary < 256 + len(SPECIAL) or hidden < 16 or hidden % 16 or layers < 1:
        raise ValueError(f"vocabulary {vocabulary!r} needs 259 or more, hidden {hidden!r} a multiple of 16, layers 1+")
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl.chat_template_utils import qwen2_5_chat_template

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(  # digits and punctuation alone: identifiers can then be copied
        [
            pre_tokenizers.Split(Regex(r"\d|[A-Z]|[^\w\s]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, clean_up_tokenization_spaces=False)
    tokenizer.pad_token, tokenizer.eos_token = PAD, END
    tokenizer.chat_template = qwen2_5_chat_template
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=hidden,
                intermediate_size=hidden * 3,
                num_hidden_layers=layers,
                num_attention_heads=hidden // 16,
                num_key_value_heads=hidden // 16,
                max_position_embeddings=positions,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    folder.mkdir(parents=True, exist_ok=True)
    with machine.running(machine.resolve(Machine(device="cpu"))):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder
