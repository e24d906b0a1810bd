"""What somebody might send for a spec: valid ones with values, keys or characters changed for odd ones, as values of
JSON, as its text, and as YAML's.

A value that Python's own encoder would not write (a key that is there twice, a number of 5,000 digits, 20,000 lists in
each other) stands in the values as a mark, for which the text puts it in.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from elastic_core.spec import JobSpec
from tests.spec.test_bounds import ODD, WHOLES, places

RAW = (
    "[" * 40 + "]" * 40, "[" * 300 + "]" * 300, "[" * 900 + "]" * 900, "[" * 20_000 + "]" * 20_000,
    '{"a":' * 40 + "1" + "}" * 40, '{"a":' * 900 + "1" + "}" * 900, "9" * 400, "9" * 4_200, "9" * 5_000,
    "-" + "9" * 4_200, "1e999", "-1e999", "1e-999", "0." + "1" * 20_000, "NaN", "-Infinity", "Infinity", "-0", "-0.0",
    '"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '{"min":1,"min":2}',
    '{"max":4,"max":"x","min":0}', "[" + "0," * 15_000 + "0]",
    "{" + ",".join(f'"k{n}":{n}' for n in range(4_000)) + "}", '"' + "x" * 70_000 + '"',
    '"' + "é" * 20_000 + '"', '{"__proto__":{"a":1}}', "1.0", "8.0", "1e0", "true", "01", "+1", "0x10", "1_000", "'a'",
)  # fmt: skip
MORE = (
    "\u202edigits", "dіgits", "ｄigits", "digits\n", " digits", "digits ", "DIGITS", "a" * 48, "a" * 49, "٣", "²",
    "default", "none", "null", "true", "[1]", "{}", "%00", "${jndi:x}", "' OR 1=1 --", "{{ 7*7 }}", "\r\nX: y",
    "\x1b[0m", "\ufeff", "\u2028", "os:system", "examples.digits:Digits.__init__", "examples..digits:Digits",
    "builtins:eval",
    "2030-01-31", "2030-13-31T00:00:00Z", "2999-12-31T23:59:59+23:59", "2030-01-31T18:00:00+99:99", "P1D", 1e-320, -0.0,
    2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 1e15, 1e16, 16_384, 16_385, 2**30, 2**30 + 1, 0.1, 1.5, False,
    ["cpu"] * 2, ["cpu", "CPU"], list(range(1, 1_025)), [[1, 2], [3]], [{}], [None] * 1_000, {"min": 2, "max": 1},
    {"min": 1, "max": 1, "min ": 1},
)  # fmt: skip
LOOK_ALIKE = str.maketrans("aceopx", "асеорх")  # the same to the eye, in Cyrillic
KEYS: tuple[Callable[[str], str], ...] = (
    lambda key: key.translate(LOOK_ALIKE), str.upper, lambda key: key + " ", lambda key: key + "\u200d",
    lambda key: key.replace("i", "ı"), lambda key: key * 2_000, lambda key: f"__{key}__", lambda _: "", lambda _: "\0",
    lambda key: "".join(chr(ord(letter) + 0xFEE0) for letter in key if letter.isascii()),
)  # fmt: skip
_MARK = re.compile(r'"\\uf8ff(\d+)"')


def odd(draw: random.Random) -> Any:
    kind = draw.random()
    if kind < 0.25:
        return f"\uf8ff{draw.randrange(len(RAW))}"
    return deepcopy(draw.choice(ODD if kind < 0.6 else MORE))


def changed(draw: random.Random, value: Any, most: int = 3) -> Any:
    """A copy with up to so many places changed, added or taken away."""
    made = deepcopy(value)
    for _ in range(draw.randint(1, most)):
        found = list(places(made))
        if not found:
            return odd(draw)
        *parents, last = draw.choice(found)
        node: Any = made
        for part in parents:
            node = node[part]
        _change(draw, node, last)
    return made


def _change(draw: random.Random, node: Any, last: Any) -> None:
    kind = draw.random()
    if isinstance(node, dict) and kind < 0.15:
        del node[last]
    elif isinstance(node, dict) and kind < 0.25:
        node[draw.choice(KEYS)(last)] = node.pop(last)
    elif isinstance(node, dict) and kind < 0.35:
        node[draw.choice(["min", "max", "odd", "tensor", "group", "params"])] = odd(draw)
    elif isinstance(node, list) and kind < 0.1:
        node *= draw.choice([0, 2, 600])
    else:
        node[last] = odd(draw)


def spec(draw: random.Random) -> Any:
    """Of ten, one is as it should be."""
    whole = deepcopy(draw.choice(WHOLES))
    kind = draw.random()
    if kind < 0.1:
        return whole
    if kind < 0.3:
        whole[draw.choice([*JobSpec.model_fields, "nonsense"])] = odd(draw)
        return whole
    return odd(draw) if kind < 0.32 else changed(draw, whole)


def text_of(value: Any) -> str:
    """As JSON, with what stands for the marks."""
    return _MARK.sub(lambda mark: RAW[int(mark.group(1))], json.dumps(value))


def body_of(draw: random.Random, value: Any) -> bytes:
    """The same as bytes; of ten, one is no longer what JSON has to be."""
    content = text_of(value).encode()
    return draw.choice(SPOILT)(draw, content) if draw.random() < 0.1 else content


def _inserted(draw: random.Random, content: bytes, what: bytes) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[:at] + what + content[at:]


SPOILT: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    lambda draw, content: content[: draw.randrange(len(content) + 1)],
    lambda draw, content: b"\xef\xbb\xbf" + content,
    lambda draw, content: content.decode().encode("utf-16"),
    lambda draw, content: content.decode().encode("utf-32-be"),
    lambda draw, content: _inserted(draw, content, b"\xff"),
    lambda draw, content: _inserted(draw, content, b"\0"),
    lambda draw, content: _inserted(draw, content, bytes([draw.randrange(256)])),
    lambda draw, content: content + b"{}",
    lambda draw, content: b"[" + content + b"]",
    lambda draw, content: content.replace(b":", b":1,", 1),
    lambda draw, content: content.replace(b"{", b'{"spec":1,', 1),
    lambda draw, content: content + b" " * 200_000,
    lambda draw, content: json.dumps(content.decode()).encode(),
    lambda draw, content: b"",
)

YAML_TEXTS: tuple[str, ...] = (
    "params: &a [1]\nname: *a\n", "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n",
    "name: !!python/object/apply:os.system [true]\n", "name: !!binary aGk=\n", "name: !<tag:x> y\n", "<<: {name: x}\n",
    "--- {}\n--- {}\n", "%YAML 1.1\n---\nname: yes\n", "? [a, b]\n: 1\n", "1: 2\n", "null: 2\n", "name: x\nname: y\n",
    "\tname: x\n", "name: 'x\n", "name: |\n x\n", "name: >-\n  x\n  y\n", "[" * 5_000, "{a: " * 2_000,
    "- " * 3_000 + "1", "name: " + "9" * 5_000, "work: {epochs: .inf}\n", "work: {epochs: 1e999}\n",
    "work: {epochs: 0x10}\n",
    "a: \x07\n", "a: \ud7ff\ufffe\n", "# nothing\n", "", "...\n", "'a': \"\\ud800\"\n", "'a': \"\\0\"\n", "a: 1:30\n",
    "x" * 270_000, "a:\n" + " b:\n" * 3_000, "name: x # " + "y" * 5_000, "\ufeffname: x\n", "{}: {}\n", "[]: 1\n",
)  # fmt: skip


def yaml_of(draw: random.Random) -> bytes:
    """The text of a file with a spec, or with something like one."""
    import yaml

    kind = draw.random()
    if kind < 0.3:
        return draw.choice(YAML_TEXTS).encode("utf-8", "surrogatepass")
    content = yaml.safe_dump(_plain(spec(draw)), allow_unicode=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    return content if kind < 0.6 else _inserted(draw, content, draw.choice(YAML_TEXTS)[:300].encode())


def _plain(value: Any) -> Any:
    """PyYAML nests no deeper than Python calls, and writes no lone surrogates."""
    return json.loads(json.dumps(value).replace("\\ud800", "?"))
