"""The model `ridgefill` of the lm-eval harness: its tasks run on prompts whose rows are filled.

Tasks that generate run through `pyridgefill.Llama`, as a user's prompts would. Tasks that score given text read the
logits of the prompt's exact tail, and are refused where a scored row is not in it: there is no exact run in its place.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

from pyridgefill.chat import chat_formatter
from pyridgefill.chat import chat_template as own_template
from pyridgefill.config import RidgeFillConfig, resolve_config
from pyridgefill.errors import ModelError, RidgeFillError
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.tasks.loss import next_token_losses
from pyridgefill.llama import Llama

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from tqdm import tqdm
except ImportError as error:
    raise RidgeFillError(
        f"the lm-eval harness is not installed: {error}", "pip install 'pyridgefill[lm-eval]'"
    ) from error

_logger = logging.getLogger(__name__)

# what requests may say beside these are names that `Llama.create_completion` has, too
_SAMPLING = ("top_p", "top_k", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "seed")
_KNOWN = ("until", "max_gen_toks", "temperature", "do_sample")


@register_model("ridgefill")
class RidgeFillLM(TemplateLM):
    """A GGUF model for the harness.

    Parameters
    ----------
    model
        Path of the model's GGUF.
    maps
        True: find the maps. A path of maps, or False: exact.
    n_ctx
        Tokens of a prompt and its answer at most; longer ones are errors, never cut.
    max_gen_toks
        Tokens of an answer where the task says nothing.
    threads, n_gpu_layers, seed
        As in llama.cpp; 0 threads takes the CPUs that this process may use.
    batch_size, max_batch_size, device
        Of the harness, whose defaults alone are taken: one prompt runs at a time, on the GPU as `n_gpu_layers` says.
    **settings
        Fields of `RidgeFillConfig`: `split`, `sink`, `tail`, `min_prompt`, `select`, `budget`, ...

    Attributes
    ----------
    filled, exact
        Rows of all prompts so far, that were filled and that ran exact.

    Raises
    ------
    RidgeFillError
        If there are no maps, or a setting is unknown or does not fit.
    """

    def __init__(
        self,
        model: str,
        maps: bool | str = True,
        *,
        n_ctx: int = 4096,
        max_gen_toks: int = 256,
        threads: int = 0,
        n_gpu_layers: int = 0,
        seed: int = 0,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if batch_size not in (None, 1, "1") or max_batch_size not in (None, 1):
            raise RidgeFillError("the model ridgefill runs one prompt at a time", "leave out the batch size")
        # the harness's command says cuda:0 where its user says nothing
        if device not in (None, "cuda:0"):
            raise RidgeFillError(f"device {device!r}", "say n_gpu_layers=N to run layers on a GPU")
        self._model, self._seed = model, seed
        self._config = _config(model, maps, settings)
        self._n_ctx, self._max_gen_toks = n_ctx, max_gen_toks
        self._threads = threads or len(os.sched_getaffinity(0))
        self._n_gpu_layers = n_gpu_layers
        self.filled = self.exact = 0

    @cached_property
    def llama(self) -> Llama:
        """Generates; loaded when a task needs it."""
        return Llama(
            self._model,
            ridgefill=self._config or False,
            n_ctx=self._n_ctx,
            n_threads=self._threads,
            n_threads_batch=self._threads,
            n_gpu_layers=self._n_gpu_layers,
            seed=self._seed,
            verbose=False,
        )

    @cached_property
    def session(self) -> Session:
        """Scores, and knows the vocabulary."""
        session = Session(self._model, n_ctx=self._n_ctx, n_threads=self._threads, n_gpu_layers=self._n_gpu_layers)
        session.set_maps(self._config)
        return session

    @property
    def eot_token_id(self) -> int:
        """Stands before a text that has no context where the model has no BOS."""
        return self.session.eos

    @property
    def prefix_token_id(self) -> int:
        """Stands before a text that has no context."""
        return self.eot_token_id if self.session.bos is None else self.session.bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_options: Any) -> list[int]:
        """Tokens of a text, with one BOS in front where the model wants one."""
        tokens = self.session.tokenize(string, parse_special=True)
        return tokens if add_special_tokens is False else _with_bos(tokens, self.session.bos)

    @property
    def tokenizer_name(self) -> str:
        """Tells caches of requests apart."""
        return Path(self._model).name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The model's own template, which has no other names."""
        if isinstance(chat_template, str):
            raise RidgeFillError(f"chat template {chat_template!r}", "the model's own is the only one: give no name")
        return own_template(self.session) if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as the model's template renders it."""
        chat = chat_formatter(self.session, add_generation_prompt=add_generation_prompt)
        if chat is None:
            raise ModelError(f"{self._model}: the model has no chat template", "run the task without one")
        return chat(chat_history, [])

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers, up to and without a stop sequence; greedy unless the task says otherwise."""
        results = []
        for request in tqdm(requests, desc="generate_until", disable=disable_tqdm):
            results.append(self._generate(*request.args))
            self.cache_hook.add_partial("generate_until", request.args, results[-1])
        self._report()
        return results

    def _generate(self, context: str, arguments: dict[str, Any]) -> str:
        wanted = dict(normalize_gen_kwargs(arguments, self._max_gen_toks))
        if unknown := [name for name in wanted if name not in (*_KNOWN, *_SAMPLING)]:
            known = ", ".join((*_KNOWN, *_SAMPLING))
            raise RidgeFillError(f"generation argument {unknown[0]!r} is not known", f"choose among {known}")
        # not the session's: it would take a second cache
        plain = self.llama.tokenize(context.encode(), add_bos=False, special=True)
        tokens = _with_bos(plain, self.llama.token_bos() if self.llama._model.add_bos_token() else None)
        self._check_length(len(tokens) + wanted["max_gen_toks"])
        completion: Any = self.llama.create_completion(
            tokens,
            max_tokens=wanted["max_gen_toks"],
            temperature=float(wanted.get("temperature", 0.0)) if wanted["do_sample"] else 0.0,
            stop=[text for text in wanted["until"] if text],
            **{name: wanted[name] for name in _SAMPLING if name in wanted},
        )
        stats = self.llama.fill_stats
        self._count(0 if stats is None else stats.filled, len(tokens))
        return str(completion["choices"][0]["text"])

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_options: Any
    ) -> list[tuple[float, bool]]:
        results = []
        for texts, context, continuation in tqdm(requests, desc="loglikelihood", disable=disable_tqdm):
            results.append(self._score([*context, *continuation], len(continuation)))
            self.cache_hook.add_partial("loglikelihood", texts, results[-1])
        self._report()
        return results

    def _score(self, tokens: Sequence[int], n_scored: int) -> tuple[float, bool]:
        """Log likelihood of the last tokens, and whether each is the most probable one."""
        self._check_length(len(tokens))
        n_exact = self.session.exact_tail(len(tokens))
        # each token is predicted by the row before it
        if n_scored + 1 > n_exact:
            raise ModelError(
                f"{n_scored} tokens to score at the end of {len(tokens)}, but only the last {n_exact} rows run exact: "
                "filled rows have no logits",
                f"give a tail of at least {n_scored + 1}, or maps=false to run the task exact",
            )
        logits = self.session.prefill(tokens, n_scored + 1, reuse=True)
        self._count(sum(end - start for start, end in self.session.ranges), len(tokens))
        losses = next_token_losses(logits, tokens[-n_scored - 1 :])
        greedy = logits[:-1].argmax(axis=1).tolist() == list(tokens[len(tokens) - n_scored :])
        return -float(losses.sum()), greedy

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Refused: scores every row of a text.

        Raises
        ------
        ModelError
            Always.
        """
        raise ModelError(
            "loglikelihood_rolling scores every row of a text, and filled rows have no logits",
            "pyridgefill eval perplexity scores the rows that run exact",
        )

    def _check_length(self, n_tokens: int) -> None:
        if n_tokens > self._n_ctx:
            raise ModelError(
                f"a prompt and its answer take {n_tokens} tokens, the context has {self._n_ctx}",
                f"give n_ctx={n_tokens} or more",
            )

    def _count(self, filled: int, n_prompt: int) -> None:
        self.filled += filled
        self.exact += n_prompt - filled

    def _report(self) -> None:
        if self._config is not None and self.filled == 0:
            _logger.warning("ridgefill: no row was filled, all prompts were too short for sink, tail and min_prompt")
        _logger.info("ridgefill: %d rows of prompts filled, %d exact or reused", self.filled, self.exact)

    def close(self) -> None:
        """Free what was loaded."""
        for name in ("llama", "session"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()


def _with_bos(tokens: list[int], bos: int | None) -> list[int]:
    """Tokens with one BOS, which templates may have written already."""
    return tokens if bos is None or tokens[:1] == [bos] else [bos, *tokens]


def _config(model: str, maps: bool | str, settings: dict[str, Any]) -> RidgeFillConfig | None:
    known = [field.name for field in fields(RidgeFillConfig) if field.name != "maps"]
    for name in settings:
        if name not in known:
            raise RidgeFillError(f"model argument {name!r} is not known", f"choose among {', '.join(known)}")
    if maps is False and settings:
        raise RidgeFillError(f"{', '.join(settings)} with maps=false", "exact runs have no settings of fill")
    try:
        return resolve_config(
            RidgeFillConfig(None if maps is True else maps, **settings) if maps is not False else False, model
        )
    except ValueError as error:
        raise RidgeFillError(str(error)) from error
