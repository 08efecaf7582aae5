"""What credentials look like in text: formats of common keys, tokens after a scheme, values after a telling name."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable

SECRET_NAMES = frozenset(
    """
    access_key access_token api_key api_secret apikey auth_token authorization aws_secret_access_key
    bearer_token client_secret connection_string cookie credential credentials id_token passwd password
    private_key proxy_authorization pwd refresh_token secret secret_access_key secret_key session_token
    set_cookie x_access_token x_api_key x_auth_token
    """.split()
)
"""Names (lower case, underscores) whose text is a secret whatever it looks like: headers, fields of forms and files."""

LIST_NAMES = frozenset({"authorization", "cookie", "proxy_authorization", "set_cookie", "x_api_key", "x_auth_token"})
"""Headers that may hold several values. Under other names a list is one of names, not of secrets."""

_FORMATS = re.compile(
    r"""(?<![A-Za-z0-9])(?:
        sk-[A-Za-z0-9_-]{16,}                                   # several model providers
      | (?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,} | whsec_[A-Za-z0-9+/=]{16,}
      | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,} | glpat-[A-Za-z0-9_-]{16,}
      | (?:AKIA|ASIA)[0-9A-Z]{16}
      | AIza[0-9A-Za-z_-]{30,} | ya29\.[0-9A-Za-z_-]{16,}
      | xox[abeoprs]-[A-Za-z0-9-]{10,} | xapp-[A-Za-z0-9-]{10,}
      | hf_[A-Za-z0-9]{20,} | npm_[A-Za-z0-9]{30,} | pypi-[A-Za-z0-9_-]{40,} | dckr_pat_[A-Za-z0-9_-]{20,}
      | SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}
      | eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*   # JSON Web Token
    )""",
    re.VERBOSE,
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_SCHEME = re.compile(r"\b(?i:bearer|basic|token)\s+(?P<value>[A-Za-z0-9._~+/-]{8,}=*)")
_HEADER = re.compile(
    r"""(?i)\b(?:proxy-authorization|authorization|set-cookie|cookie|x-api-key|x-auth-token)\\*["']?\s*:\s*\\*["']?"""
    r"""(?P<value>[^\r\n"'\\]+)"""
)
_USERINFO = re.compile(r"://[^\s/:@]*:(?P<value>[^\s/@]+)@")
_NAMED = re.compile(
    r"""(?i)(?P<name>api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|client[_-]?secret|secret|token"""
    r"""|passw(?:or)?d|pwd)\b(?P<sign>\\*["']?\s*[=:]\s*\\*["']?)(?P<value>[^\s"'\\,;&<>(){}\[\]]{6,})"""
)
_LOOSE = ("token", "secret")
"""Words of ordinary prose and code: what follows them must look random. A password need not."""


_SPELLED = (
    *(
        "AKIA",
        "ASIA",
        "AIza",
        "SG.",
        "eyJ",
        "sk-",
        "_live_",
        "_test_",
        "whsec_",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
    ),
    *("github_pat_", "glpat-", "ya29.", "xox", "xapp-", "hf_", "npm_", "pypi-", "dckr_pat_", "PRIVATE KEY-----"),
)
_NAMED_SO = (
    *("accesskey", "access_key", "access-key", "access key", "apikey", "api_key", "api-key", "api key"),
    *("privatekey", "private_key", "private-key", "private key", "secret", "passw", "pwd", "credential"),
    *("authorization", "cookie", "connection_string", "connection-string", "connection string", "bearer", "basic"),
)


def may_hold_credentials(text: str) -> bool:
    """Tell quickly whether text, or JSON of it, may hold a credential or the name of one; in doubt it says so.

    Every pattern and name in this module holds one of a few words, none of which JSON would escape. Looking for words
    costs a tenth of what the patterns cost, and finds nothing in most events.
    """
    for word in _SPELLED:
        if word in text:
            return True
    folded = text.casefold()
    for word in _NAMED_SO:
        if word in folded:
            return True
    if "://" in text and "@" in text:
        return True
    if folded.count("token") != folded.count("tokens"):  # usage counts are in half of all events
        return True
    return not text.isascii() and ("ı" in text or "İ" in text)  # patterns that ignore case take them for an i


def replace_credentials(text: str, replacement: Callable[[str], str]) -> str:
    """Return `text` with every part that looks like a credential given through `replacement`."""
    text = _PRIVATE_KEY.sub(lambda match: replacement(match[0]), text)
    text = _HEADER.sub(lambda match: _around(match, replacement(match["value"].strip())), text)
    text = _SCHEME.sub(lambda match: _credential(match, replacement), text)
    text = _FORMATS.sub(lambda match: replacement(match[0]), text)
    text = _USERINFO.sub(lambda match: _around(match, replacement(match["value"])), text)
    return _NAMED.sub(lambda match: _around(match, replacement(match["value"])) if _telling(match) else match[0], text)


def looks_random(value: str) -> bool:
    """Tell whether a string is long, mixed and of high entropy, as keys are and words are not."""
    return len(value) >= 16 and _has_digit(value) and any(map(str.isalpha, value)) and entropy(value) >= 3.0


def entropy(value: str) -> float:
    """Return the entropy of a string's characters in bits per character."""
    length = len(value)
    return -sum(count / length * math.log2(count / length) for count in Counter(value).values())


def secret_name(name: str) -> str | None:
    """Return the name as `SECRET_NAMES` spells it if what it names is a secret, else None."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    return plain if plain in SECRET_NAMES else None


def _telling(match: re.Match[str]) -> bool:
    value = match["value"]
    if match["name"].lower().endswith(_LOOSE):
        return looks_random(value)
    if "=" in match["sign"] or '"' in match["sign"] or "'" in match["sign"]:
        return True  # an assignment or a JSON field, not a sentence
    return _has_digit(value) or looks_random(value)


def _credential(match: re.Match[str], replacement: Callable[[str], str]) -> str:
    value = match["value"]
    if not _has_digit(value) and (len(value) < 16 or value.islower()):
        return match[0]  # "basic functionality", "token authentication"
    return _around(match, replacement(value))


def _around(match: re.Match[str], value: str) -> str:
    """Return the match with its `value` group replaced."""
    start = match.start("value") - match.start()
    end = match.end("value") - match.start()
    return match[0][:start] + value + match[0][end:]


def _has_digit(value: str) -> bool:
    return any(map(str.isdigit, value))
