"""Personal data and secrets, found and replaced before anything is written down.

Invariant: what leaves through here holds no value of a covered kind, in plain, URL-encoded, base64, hex, JSON- or
HTML-escaped, full-width or zero-width-stuffed form; a fault on the way gives "<REDACTION_FAILED>", never the original.

Covered: e-mail addresses, phone numbers, payment cards and their codes, IBANs, US social security numbers, JSON Web
Tokens, PEM blocks, keys of cloud providers, user and password in URLs, key=value and header secrets, the process's own
secrets, and names where the text says that they are names (introductions, greetings, sign-offs, titles, the owner of an
address in the same text, fields such as `first_name`). Not covered: other names of persons and postal addresses in
free text, unless they are in the deployment's list of known values.
"""

from agentops.redact.logs import redacted as redacted_logs
from agentops.redact.policy import load, problems
from agentops.redact.recognisers import Finding, Rules
from agentops.redact.redactor import FAILED, Redactor

__all__ = ["FAILED", "Finding", "Redactor", "Rules", "load", "problems", "redacted_logs"]
