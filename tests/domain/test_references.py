"""Secrets by reference, and what texts show of them after they were inserted."""

from tickwright.domain.secrets import ResolvedSecrets, resolve_references

SECRETS = {"TOKEN": "a/b c", "LONGER": "a/b c d", "QUOTED": "it's\n", "EMPTY": ""}


def test_a_text_is_cleared_of_secrets_that_were_inserted() -> None:
    """As it is, as in a URL, in Base64, as Python shows it; the longer one first, and nothing else."""
    secrets = ResolvedSecrets(SECRETS.get)
    resolve_references({"headers": ["${env:TOKEN}", "${env:LONGER}", "${env:QUOTED}", "${env:EMPTY}"]}, secrets)
    assert secrets.mask("a/b c d, a/b c, a%2Fb%20c, YS9iIGM=") == "***, ***, ***, ***"
    assert secrets.mask(f"it's\n {'it' + chr(39) + 's' + chr(10)!r}") == '*** "***"'
    assert ResolvedSecrets(SECRETS.get).mask("a/b c") == "a/b c"


def test_an_empty_secret_masks_nothing() -> None:
    """An empty variable is inserted as it is."""
    secrets = ResolvedSecrets(SECRETS.get)
    assert resolve_references("[${env:EMPTY}]", secrets) == "[]"
    assert secrets.mask("abc") == "abc"
