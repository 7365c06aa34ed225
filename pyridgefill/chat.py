"""The model's own chat template, as llama-cpp-python renders it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pyridgefill.engine import Engine


class ChatFormatter(Protocol):
    """Renders a conversation with the model's template."""

    def __call__(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str: ...


def chat_template(engine: Engine) -> str | None:
    """The template that the model's file has, None if it has none."""
    from pyridgefill._native import llama_cpp

    template = llama_cpp.llama_model_chat_template(engine.model, None)
    return template.decode() if template else None


def chat_formatter(engine: Engine, *, add_generation_prompt: bool = False) -> ChatFormatter | None:
    """The model's own chat template, None if it has none."""
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    from pyridgefill._native import llama_cpp

    template = chat_template(engine)
    if template is None:
        return None
    vocab = llama_cpp.llama_model_get_vocab(engine.model)
    formatter = Jinja2ChatFormatter(
        template=template,
        eos_token=engine.text_of(llama_cpp.llama_vocab_eos(vocab)),
        bos_token=engine.text_of(llama_cpp.llama_vocab_bos(vocab)),
        add_generation_prompt=add_generation_prompt,
    )

    def render(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
        # the template's input is what the user's file says
        arguments: dict[str, Any] = {"messages": list(messages), "tools": list(tools) or None}
        return str(formatter(**arguments).prompt)

    return render
