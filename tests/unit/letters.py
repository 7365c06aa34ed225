"""A tokenizer of one token per character."""

from __future__ import annotations


class Letters:
    bos = 1

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        return [ord(letter) for letter in text]

    def text(self, tokens) -> str:
        return "".join(chr(token) for token in tokens if token != self.bos)


def chat(messages, tools) -> str:
    return "\x01<user>" + messages[0]["content"] + "<assistant>"
