"""What is masked in JSON that is copied into an answer as it is."""

import json

import pytest

from tickwright.domain.masking import masked_tokens

URL = "https://user:pw@hooks.example/T0/SECRET?key=SECRET"
HOST = "https://hooks.example/…"


@pytest.mark.parametrize(
    "document",
    [
        json.dumps({"a": [f"see {URL}", {"b": URL}], URL: 1}),
        json.dumps(URL),
        '{"a": "https:\\/\\/hooks.example\\/SECRET"}',
        '{"a": "https\\u003a\\u002f/hooks.example/SECRET"}',
        '{"a": "\\ud800 https://hooks.example/SECRET \\\\"}',
        '{"a\\"": "\\"https://hooks.example/SECRET\\""}',
    ],
)
def test_an_address_in_json_is_masked_however_it_is_spelled(document: str) -> None:
    """At any depth, in names too, and behind escapes; it stays JSON."""
    masked = masked_tokens(document.encode()).decode()
    assert "SECRET" not in masked
    assert "hooks.example/…" in json.dumps(json.loads(masked), ensure_ascii=False)


def test_what_is_no_text_stays_byte_for_byte() -> None:
    """Numbers that a reader would round or refuse, white space and escapes of other texts."""
    rest = f'[ 1e400, 0.10, {"9" * 5000}, -0.0, true, null, "\\u00e9 // \\n", "a:/ /b" '
    masked = masked_tokens(f'{rest}, "{URL}"]'.encode()).decode()
    assert masked == f"{rest}, {json.dumps(HOST)}]"


def test_deep_json_is_masked_too() -> None:
    """No reader that gives up at some depth is asked."""
    masked = masked_tokens(("[" * 100_000 + f'"{URL}"' + "]" * 100_000).encode())
    assert b"SECRET" not in masked
