"""Ways in which files are damaged: by disks, transfers, editors, and people who mean it."""

from __future__ import annotations

import io
import re
import struct
import zipfile

NUMBERS = [
    b"0",
    b"-1",
    b"1e999",
    b"NaN",
    b"Infinity",
    b"null",
    b"1e154",
    b"1000000000000",
    b"9" * 30,
    b"true",
    b'""',
    b"[]",
    b"{}",
    b"1e-320",
]
PIECES = [
    b"\0",
    b"\xff",
    b"\xff\xfe",
    b"\n",
    b"\r",
    b",",
    b'"',
    b"{",
    b"}",
    b"[" * 2000,
    b"\\u0000",
    b"../../x",
    b"\x93NUMPY",
    b"PK\x03\x04",
    b"'|O8'",
    b"'<c16'",
    b" " * 300,
]


def mutate(data: bytes, rng) -> bytes:
    """Return the bytes with one to three changes."""
    for _ in range(1 + int(rng.integers(3))):
        data = CHANGES[int(rng.integers(len(CHANGES)))](data, rng)
    return data


def _place(data, rng):
    # Headers and trailers decide most: half of the changes go there.
    if rng.random() < 0.25:
        return int(rng.integers(min(len(data), 256) + 1))
    if rng.random() < 0.33:
        return max(0, len(data) - int(rng.integers(min(len(data), 256) + 1)))
    return int(rng.integers(len(data) + 1))


def _flip(data, rng):
    found, at = bytearray(data), _place(data, rng)
    if at < len(found):
        found[at] ^= 1 << int(rng.integers(8))
    return bytes(found)


def _set(data, rng):
    found, at = bytearray(data), _place(data, rng)
    if at < len(found):
        found[at] = int(rng.integers(256))
    return bytes(found)


def _cut(data, rng):
    return data[: _place(data, rng)]


def _drop(data, rng):
    at = _place(data, rng)
    return data[:at] + data[at + int(rng.integers(1, 64)) :]


def _insert(data, rng):
    at = _place(data, rng)
    return data[:at] + PIECES[int(rng.integers(len(PIECES)))] + data[at:]


def _splice(data, rng):
    a, b, at = sorted(int(rng.integers(len(data) + 1)) for _ in range(3))
    return data[:at] + data[a:b] + data[at:]


def _zero(data, rng):
    at, size = _place(data, rng), int(rng.integers(1, 128))
    return data[:at] + b"\0" * len(data[at : at + size]) + data[at + size :]


def _number(data, rng):
    """Replace a number that is written in digits."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", data[:100_000]))
    if not found:
        return _flip(data, rng)
    one = found[int(rng.integers(len(found)))]
    return (
        data[: one.start()]
        + NUMBERS[int(rng.integers(len(NUMBERS)))]
        + data[one.end() :]
    )


def _word(data, rng):
    """Write a large or odd number of four or eight bytes over others."""
    at = _place(data, rng)
    value = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40][int(rng.integers(6))]
    packed = struct.pack("<Q", value)[: 4 if rng.random() < 0.5 else 8]
    return data[:at] + packed + data[at + len(packed) :]


def _inside(data, rng):
    """Damage a member of an archive and pack it again, so that its checksum fits."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as box:
            members = {name: box.read(name) for name in box.namelist()}
    except Exception:
        return _flip(data, rng)
    if not members:
        return data
    name = sorted(members)[int(rng.integers(len(members)))]
    change = (_flip, _cut, _number, _insert, _word)[int(rng.integers(5))]
    members[name] = change(members[name], rng)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as box:
        for name, content in members.items():
            box.writestr(name, content)
    return packed.getvalue()


CHANGES = (
    _flip,
    _set,
    _cut,
    _drop,
    _insert,
    _splice,
    _zero,
    _number,
    _number,
    _word,
    _inside,
)
