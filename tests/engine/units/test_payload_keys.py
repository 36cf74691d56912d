"""Payload keys: how they are read, what they seal, and that nothing else opens it."""

import json
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from kit.mutants import mutate
from tickwright.domain.envelopes import Envelope, Purpose, bound_to, read_envelope
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.engine import payload_keys as module
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.process.settings import load_settings

RAW = bytes(range(32))
HEX, BASE64 = RAW.hex(), "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
OLD, NEW = ("2026-05", bytes(range(1, 33))), ("2026-11", RAW)
KEYS = PayloadKeys([NEW, OLD])
PLAIN = '{"card":"4111"}'
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def sealed() -> str:
    """Return a payload of the type ``mail``."""
    return KEYS.seal(PLAIN, Purpose.PAYLOAD, "mail")


@given(
    text=st.text(st.characters(exclude_categories=["Cs"])),
    subject=st.text(max_size=60),
    purpose=st.sampled_from(Purpose),
)
def test_what_is_sealed_opens_as_it_was(text: str, subject: str, purpose: Purpose) -> None:
    """ENC-2: for every text, purpose and subject."""
    assert KEYS.open(KEYS.seal(text, purpose, subject), purpose, subject) == text


def refused(text: str) -> str:
    """Return the code with which an envelope is refused; ``plain`` where it is not seen as one."""
    try:
        opened = KEYS.open(text, Purpose.PAYLOAD, "mail")
    except (Rejected, Unavailable) as error:
        return error.code
    assert opened == text
    assert read_envelope(text) is None
    return "plain"


def test_an_envelope_with_any_byte_changed_is_refused() -> None:
    """ENC-2: every byte, changed to each character of Base64 and some others; none gives the text."""
    text = sealed()
    for place, character in enumerate(text):
        for other in {*ALPHABET, " ", chr(ord(character) ^ 1)} - {character}:
            changed = text[:place] + other + text[place + 1 :]
            assert refused(changed) in {"payload_unreadable", "payload_key_missing", "plain"}, (place, other)


@given(st.data())
def test_a_data_part_with_any_byte_changed_cut_or_extended_is_unreadable(data: st.DataObject) -> None:
    """ENC-2: salt, nonce, cipher text and tag are covered; the last character has no unused bits."""
    envelope = json.loads(sealed())
    body = envelope["$encrypted"]
    place = data.draw(st.integers(0, len(body["data"]) - 1))
    other = data.draw(st.sampled_from(ALPHABET))
    whole = body["data"]
    for changed in (whole[:place] + other + whole[place + 1 :], whole[:place], whole + other):
        if changed != whole and changed:
            body["data"] = changed
            assert refused(json.dumps(envelope)) == "payload_unreadable"


@pytest.mark.parametrize(
    ("purpose", "subject"), [(Purpose.PAYLOAD, "sms"), (Purpose.RESULT, "mail"), (Purpose.PROGRESS, "mail")]
)
def test_an_envelope_does_not_open_as_anything_else(purpose: Purpose, subject: str) -> None:
    """ENC-1: it cannot be moved to another task type, nor be passed off as a result."""
    with pytest.raises(Rejected, match="it was changed, or it is not the"):
        KEYS.open(sealed(), purpose, subject)


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_different_owners_have_different_associated_data(one: tuple[str, str], other: tuple[str, str]) -> None:
    """ENC-1: no two pairs of key and subject run into each other."""
    assert (bound_to(one[0], Purpose.PAYLOAD, one[1]) == bound_to(other[0], Purpose.PAYLOAD, other[1])) == (
        one == other
    )


def test_the_first_key_seals_and_all_of_them_open() -> None:
    """Rotation: an envelope of the old key stays readable, new ones have the new key."""
    former = PayloadKeys([OLD]).seal(PLAIN, Purpose.PAYLOAD, "mail")
    assert KEYS.open(former, Purpose.PAYLOAD, "mail") == PLAIN
    envelope = read_envelope(sealed())
    assert isinstance(envelope, Envelope)
    assert envelope.key == KEYS.names[0]


def test_another_key_under_an_old_name_is_missing_and_not_a_broken_payload() -> None:
    """A mistake in the configuration fails no job: the fingerprint differs."""
    wrong = PayloadKeys([(NEW[0], OLD[1])])
    with pytest.raises(Unavailable) as caught:
        wrong.open(sealed(), Purpose.PAYLOAD, "mail")
    assert caught.value.code == "payload_key_missing"
    assert caught.value.details["key"] == KEYS.names[0]


def test_without_keys_nothing_is_sealed_and_other_json_passes() -> None:
    """A process without keys handles plain texts as before."""
    assert not NO_KEYS
    assert NO_KEYS.open(PLAIN, Purpose.PAYLOAD, "mail") == PLAIN
    with pytest.raises(Unavailable, match="TICKWRIGHT_PAYLOAD_KEYS") as caught:
        NO_KEYS.seal(PLAIN, Purpose.PAYLOAD, "mail")
    assert caught.value.code == "payload_keys_missing"


def test_equal_texts_have_different_envelopes_and_a_key_changes_its_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nonce is never used twice under one derived key; a derived key seals a bounded number of texts."""
    monkeypatch.setattr(module, "SALT_FOR_TEXTS", 2)
    found = [read_envelope(PayloadKeys.seal(KEYS, PLAIN, Purpose.PAYLOAD, "mail")) for _ in range(6)]
    parts = [one.parts() for one in found if one is not None]
    assert len({part[1] for part in parts}) == len({part[2] for part in parts}) == 6
    keys = PayloadKeys([NEW])
    salts = [one.parts()[0] for _ in range(6) if (one := read_envelope(keys.seal(PLAIN, Purpose.PAYLOAD, "m")))]
    assert [salts.count(salt) for salt in dict.fromkeys(salts)] == [2, 2, 2]


def test_keys_are_read_from_variables_and_files(tmp_path: Path) -> None:
    """As Base64 or hexadecimal, with a line end; the order counts."""
    (tmp_path / "old").write_text(OLD[1].hex() + "\n")
    text = f"2026-11=env:KEY_B, 2026-05=file:{tmp_path}/old"
    for key in (HEX, BASE64, BASE64.rstrip("=")):
        assert PayloadKeys.parse(text, {"KEY_B": key}).names == KEYS.names


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BASE64, "the key itself is not written there"),
        (f"a={BASE64}", "the key itself is not written there"),
        ("a=env:", "write NAME=env:VARIABLE"),
        ("a b=env:KEY", "a name has"),
        ("a=env:NOT_SET", "the variable of key a is not set"),
        ("a=env:SHORT", "key a is not 32 bytes"),
        ("a=env:ZEROS", "key a is not 32 random bytes"),
        ("a=env:KEY,a=env:OTHER", "a name of its own"),
        ("a=env:KEY,b=env:KEY", "each once"),
        ("a=file:relative", "an absolute path"),
        ("a=file:/nowhere/at/all", "is not there"),
        ("a=file:/dev/zero", "no regular file"),
        (",".join(f"k{n}=env:K{n}" for n in range(17)), "at most 16"),
    ],
)
def test_wrong_keys_are_refused_at_start_without_showing_them(
    text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings report it, as a line for the variable, without the key's text."""
    variables = {"KEY": HEX, "OTHER": OLD[1].hex(), "SHORT": HEX[:40], "ZEROS": "0" * 64}
    variables |= {f"K{n}": bytes(range(n, n + 32)).hex() for n in range(17)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Rejected, match=says) as caught:
        load_settings(payload_keys=text)
    assert "TICKWRIGHT_PAYLOAD_KEYS" in caught.value.message
    assert not any(value in caught.value.message for value in (BASE64, HEX, HEX[:40]))


def test_no_text_of_the_keys_shows_one() -> None:
    """ENC-3: neither the object nor the settings print it."""
    texts = [repr(KEYS), str(KEYS), repr(load_settings(payload_keys=KEYS))]
    assert KEYS.names[0] in texts[0]
    assert not any(part in text for text in texts for part in (HEX, BASE64[:20], repr(RAW)[:20]))


def test_a_digest_cannot_be_guessed_without_a_key_and_survives_a_rotation() -> None:
    """Each key gives its own; the first is stored, and the others recognize what was stored before a rotation."""
    plain = bytes(32)
    new, old = KEYS.digests(plain)
    assert PayloadKeys([OLD]).digests(plain) == (old,)
    assert plain not in new
    assert new != old


def test_the_documented_format_is_the_one_that_is_written() -> None:
    """A client in another language can open and make envelopes by docs/encryption.md alone."""

    def derived(salt: bytes, what: bytes) -> bytes:
        return HKDF(SHA256(), 32, salt, b"tickwright payload v1 " + what).derive(RAW)

    body = json.loads(sealed())["$encrypted"]
    assert body["key"] == "2026-11/" + derived(b"", b"fingerprint")[:4].hex()
    raw = urlsafe_b64decode(body["data"] + "=" * (-len(body["data"]) % 4))
    bound = f'["tickwright",1,"{body["key"]}","payload","mail"]'.encode()
    assert AESGCM(derived(raw[:16], b"text")).decrypt(raw[16:28], raw[28:], bound).decode() == PLAIN


def moved_to_another_type() -> None:
    """Open a payload as one of another type."""
    test_an_envelope_does_not_open_as_anything_else(Purpose.PAYLOAD, "sms")


BOUND = '["tickwright", VERSION, key, purpose, subject]'
MUTANTS: dict[str, Any] = {
    "the subject is not bound": (moved_to_another_type, bound_to, BOUND, BOUND.replace(", subject", "")),
    "unused bits pass": (
        test_an_envelope_with_any_byte_changed_is_refused, Envelope.parts, " or _encoded(raw) != self.data", ""
    ),
}  # fmt: skip


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_each_guard_of_an_envelope_is_tested(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a test above fails."""
    test, *mutant = MUTANTS[name]
    mutate(monkeypatch, *mutant)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test()
