"""Secrets by their form: tokens with a known prefix, PEM blocks, URL credentials, key=value pairs, headers.

Invariant: patterns are RE2 (linear time); group "v" is what is replaced, the name of a setting stays readable.
"""

# One alternation: each branch is a published, fixed form. Names and lengths from the vendors' documentation.
CLOUD_KEY = (
    r"(?P<v>(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}"  # AWS access key id
    r"|AIza[0-9A-Za-z_\-]{35}"  # Google API
    r"|ya29\.[0-9A-Za-z_\-]{20,}"  # Google OAuth
    r"|GOCSPX-[0-9A-Za-z_\-]{20,}"
    r"|gh[pousr]_[0-9A-Za-z]{30,}|github_pat_[0-9A-Za-z_]{30,}"
    r"|glpat-[0-9A-Za-z_\-]{18,}"
    r"|xox[abeoprs]-[0-9A-Za-z\-]{10,}|xapp-[0-9A-Za-z\-]{10,}"  # Slack
    r"|(?:sk|rk|pk)_(?:live|test)_[0-9A-Za-z]{10,}|whsec_[0-9A-Za-z]{20,}"  # Stripe
    r"|\bsk-(?:proj-|ant-|or-|svcacct-)?[0-9A-Za-z_\-]{20,}"  # OpenAI, Anthropic, OpenRouter (not "risk-…")
    r"|hf_[0-9A-Za-z]{20,}|npm_[0-9A-Za-z]{30,}|pypi-[0-9A-Za-z_\-]{40,}"
    r"|SG\.[0-9A-Za-z_\-]{16,}\.[0-9A-Za-z_\-]{16,}"  # SendGrid
    r"|dop_v1_[0-9a-f]{40,}|shpat_[0-9a-fA-F]{20,}|lin_api_[0-9A-Za-z]{20,}|dapi[0-9a-f]{32}"
    r"|AGE-SECRET-KEY-1[0-9A-Z]{50,}|hvs\.[0-9A-Za-z_\-]{20,}|nvapi-[0-9A-Za-z_\-]{20,}|gsk_[0-9A-Za-z]{20,}"
    r"|[0-9]{8,10}:AA[0-9A-Za-z_\-]{33})"  # Telegram bot
)
JWT = r"(?P<v>\beyJ[0-9A-Za-z_\-]{6,}\.[0-9A-Za-z_\-]{4,}(?:\.[0-9A-Za-z_\-]*){0,3})"
PEM = r"(?s)(?P<v>-----BEGIN [A-Z0-9 ]{1,60}-----(?:.*?-----END [A-Z0-9 ]{1,60}-----|.*))"
URL_USERINFO = r"\b[A-Za-z][A-Za-z0-9+.\-]*://(?P<v>[^\s/?#\"'<>\\]+)@"
_NAME = (
    r"(?:password|passwd|passphrase|passcode|passwort|kennwort|pwd|secret|token|apikey|api[_\-. ]?key|api[_\-]?token"
    r"|access[_\-]?key(?:[_\-]?id)?|secret[_\-]?(?:access[_\-]?)?key|private[_\-]?key|account[_\-]?key|auth[_\-]?key"
    r"|client[_\-]?secret|access[_\-]?token|refresh[_\-]?token|id[_\-]?token|credential|signature|sig)"
)
_PREFIX = r"(?:^|[^A-Za-z0-9])(?:[A-Za-z0-9_.\-]*[_.\-])?"
ASSIGNED = (
    r"(?i)" + _PREFIX + _NAME + r"[\"']?\s*(?P<op>=|:=|=>|:)\s*(?:\"(?P<dq>[^\"]{3,})\"|'(?P<sq>[^']{3,})'"
    r"|(?P<bare>[^\s\"',;&<>}\])(\[{]{4,}))"
)
SPOKEN = (
    r"(?i)\b(?:password|passcode|passphrase|passwort|kennwort|pin)\b(?: code| number)?\s+(?:is|was|ist|lautet)\s*:?\s+"
    r"[\"']?(?P<v>[^\s\"']{4,})"
)
HEADER = r"(?i)\b(?:bearer|basic)\s+(?P<v>[0-9A-Za-z._~+/\-]{16,}=*)"
CARD_CODE = (
    r"(?i)\b(?:cvv2?|cvc2?|cid|card (?:security|verification) code|security code)\b\W{0,4}(?:is|:|=)?\W{0,4}"
    r"(?P<v>[0-9]{3,4})\b"
)


def looks_secret(value: str, operator: str) -> bool:
    """Whether an unquoted value after `name:` or `name is` is a secret rather than the next word of a sentence."""
    if value.startswith("<"):
        return False  # a placeholder, or already replaced
    if operator != ":":
        return True
    core = value.strip(".,;:!?")
    return len(core) >= 4 and (any(c.isdigit() for c in core) or any(not c.isalnum() and c not in "-_" for c in core))
