"""Commands and their output as a reader may see them: without secrets and without the home folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

HIDDEN = "***"
_SECRET_WORDS = {
    "token", "key", "secret", "password", "passwd", "passphrase", "pass", "pwd",
    "pw", "credential", "credentials", "auth", "authorization", "bearer",
    "apikey", "accesskey", "privatekey", "secretkey", "authtoken", "accesstoken",
}  # fmt: skip
_NAME = re.compile(r"[\w.+-]+")
_NAME_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Keys of well-known services, and tokens of the web.
_KNOWN_KEY = re.compile(r"\b(hf_|sk-|gh[a-z]_|github_pat_|xox[a-z]-|AKIA|eyJ|wandb_v\d_)[\w.-]{8,}")
_LONG_WORD = re.compile(r"(?<![\w+/=.~-])[\w+/=.-]{32,}")
_SUFFIX = re.compile(r"\.[A-Za-z]\w{0,11}$")
_BEARER = re.compile(r"\b(bearer)(\s+)[^\s\"']+", re.IGNORECASE)
# "token": "x" of JSON and YAML, and Authorization: x of a header.
_FIELD = re.compile(r"""([\w.-]+)(["']?\s*:\s*)("[^"]*"|'[^']*'|[^\s,"'{}/][^,"'{}]*)""")
_LOGIN = re.compile(r"(://)[^/\s]+@")


def hide_secrets(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line with secrets masked and paths below the home folder shortened."""
    is_secret = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_named = _is_secret_name(name)
        if is_secret and not word.startswith("-"):
            yield HIDDEN
            is_secret = False
            continue
        is_secret = is_named and word.startswith("-") and not equals
        if is_named and equals:
            yield f"{name}={HIDDEN}"
        else:
            yield _hide_values(word)


def hide_secrets_in(command: str) -> str:
    """Return a command, given as one text, with its secrets masked."""
    try:
        return shlex.join(hide_secrets(shlex.split(command)))
    except ValueError:  # a quote that is not closed
        return " ".join(hide_secrets(command.split()))


def hide_secrets_in_text(text: str) -> str:
    """Return a text, such as the lines of a log, with secrets masked; its spaces stay as they are."""
    return "\n".join(_hide_in_line(line) for line in text.split("\n"))


def _hide_in_line(line: str) -> str:
    # The words that only the whole line shows to be secret, such as those after "Bearer", come first.
    parts = re.split(r"(\s+)", _hide_phrases(line))
    parts[::2] = hide_secrets(parts[::2])
    return "".join(parts)


def _is_secret_name(name: str) -> bool:
    """Return whether a name has a word for a secret: api_key, wandb.key and wandbKey, but not tokenizer."""
    if not _NAME.fullmatch(name) or name.endswith(
        ("Error", "Exception")
    ):  # text, or KeyError: 'labels'
        return False
    return any(part.lower() in _SECRET_WORDS for part in _NAME_PARTS.findall(name))


def _hide_phrases(text: str) -> str:
    hidden = _LOGIN.sub(rf"\1{HIDDEN}@", text)
    return _FIELD.sub(_hide_field, _BEARER.sub(rf"\1\2{HIDDEN}", hidden))


def _hide_values(word: str) -> str:
    hidden = _KNOWN_KEY.sub(HIDDEN, _hide_phrases(word))
    name, equals, value = hidden.partition("=")
    if value and _NAME.fullmatch(name):
        return name + equals + _shorten(_LONG_WORD.sub(_hide_random, value))
    return _shorten(_LONG_WORD.sub(_hide_random, hidden))


def _hide_field(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    if not _is_secret_name(name):
        return found[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{between}{quote}{HIDDEN}{quote}"


def _hide_random(found: re.Match[str]) -> str:
    """Mask a long word with digits, unless it is a path."""
    word = found[0]
    if sum(map(str.isdigit, word)) < 2 or _SUFFIX.search(word):
        return word
    parts = Path(word).parts[: 2 if word.startswith("/") else 1]
    try:
        is_path = Path(*parts).exists()
    except OSError:  # a name that is too long
        is_path = False
    return word if is_path else HIDDEN


def _shorten(word: str) -> str:
    """Return a word with the working folder as ``.`` and the home folder as ``~``."""
    for find, short in ((Path.cwd, "."), (Path.home, "~")):
        try:
            folder = find()
        except (OSError, RuntimeError):  # it was removed, or nobody knows it
            continue
        if folder != Path(folder.anchor):
            word = re.sub(rf"(?:(?<=[=:,\s])|^){re.escape(str(folder))}(?=/|$)", short, word)
    return word
