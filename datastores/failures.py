"""Errors of other people's libraries become this package's own: the one place that knows their names.

A failure says whether asking again may help, and what to do. Its text is made here, from a status, a code and a class
name, so that no signed address, header or key of a foreign message reaches an error or a log; for the same reason the
foreign error is not kept as a cause.
"""

from dataclasses import dataclass
from typing import Any

from ..errors import MissingDataError, ShardError, UnreachableError

__all__ = ["BadAnswerError", "Failure", "failure_of"]

#: Statuses that pass: RFC 9110 section 15, and 429 of RFC 6585.
_PASSING = {408, 425, 429, 500, 502, 503, 504, 507, 509, 520, 521, 522, 523, 524}
#: Codes of S3 under another status that pass as well.
_PASSING_CODES = {"RequestTimeout", "RequestTimeTooSkewed", "SlowDown", "Throttling", "RequestLimitExceeded"}
_MISSING_CODES = {"NoSuchKey", "NoSuchBucket", "404"}
#: Codes under status 403 that stores give for what is not there as well, to those who may not list it.
_HIDING_CODES = {"", "403", "AccessDenied", "Forbidden"}

#: (top module, class) of errors behind which a connection broke.
_BROKEN = {
    ("builtins", "TimeoutError"),
    ("builtins", "ConnectionError"),
    ("builtins", "EOFError"),
    ("aiohttp", "ClientConnectionError"),
    ("aiohttp", "ClientPayloadError"),
    ("botocore", "HTTPClientError"),
    ("botocore", "ConnectionError"),
    ("botocore", "IncompleteReadError"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
    ("requests", "ChunkedEncodingError"),
    ("azure", "ServiceRequestError"),
    ("azure", "ServiceResponseError"),
}
_UNTRUSTED = {("aiohttp", "ClientConnectorCertificateError"), ("aiohttp", "ClientSSLError"), ("botocore", "SSLError")}
_NO_CREDENTIALS = {
    ("botocore", "NoCredentialsError"),
    ("botocore", "PartialCredentialsError"),
    ("botocore", "CredentialRetrievalError"),
    ("botocore", "ProfileNotFound"),
    ("botocore", "TokenRetrievalError"),
    ("google", "DefaultCredentialsError"),
    ("google", "RefreshError"),
    ("azure", "CredentialUnavailableError"),
    ("azure", "ClientAuthenticationError"),
}

_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or log in with gcloud",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_SAME = {"gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az", "s3a": "s3"}


class BadAnswerError(Exception):
    """An answer that is not what was asked for.

    Args:
        reason: what is wrong with it, and what to do; holds nothing secret.
        again: whether asking again may help.
        replaced: whether it comes from another object than before.
    """

    def __init__(self, reason: str, *, again: bool = False, replaced: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        self.replaced = replaced


@dataclass(frozen=True, slots=True)
class Failure:
    """What an error of a library means.

    Args:
        reason: in words.
        again: whether asking again may help.
        missing: whether what was asked for is not there.
        replaced: whether something else is there.
    """

    reason: str
    again: bool = False
    missing: bool = False
    replaced: bool = False

    def error(self, doing: str, attempts: int) -> MissingDataError | ShardError:
        """Return the package's error.

        Args:
            doing: what was tried, with the address.
            attempts: how often.
        """
        times = f" ({attempts} attempts)" if attempts > 1 else ""
        kind = MissingDataError if self.missing else ShardError if self.replaced else UnreachableError
        return kind(f"{doing}: {self.reason}{times}")


def failure_of(error: BaseException, scheme: str) -> Failure:
    """Say what an error of a transport means.

    Args:
        error: what it raised.
        scheme: of the address, for the remedy.

    Example:
        >>> failure_of(TimeoutError(), "s3").reason
        'no answer in time, or the connection broke (TimeoutError)'
    """
    if isinstance(error, BadAnswerError):
        return Failure(error.reason, again=error.again, replaced=error.replaced)
    status, code = _status(error), _code(error)
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    named = f"{type(error).__name__}{f', {code}' if code else ''}{f', status {status}' if status else ''}"
    if kinds & _NO_CREDENTIALS:
        return Failure(f"no credentials ({named}): {_remedy(scheme)}")
    if isinstance(error, (FileNotFoundError, NotADirectoryError)) or status in (404, 410) or code in _MISSING_CODES:
        return Failure(f"it is not there ({named}): check the address", missing=True)
    if status in (412, 416):  # a range behind the end of what is there now
        return Failure(
            f"it was replaced since it was first seen ({named}): start again with the new one", replaced=True
        )
    if status == 403 and code in _HIDING_CODES:
        return Failure(f"access was refused, or it is not there ({named}): {_remedy(scheme)}", missing=True)
    if isinstance(error, PermissionError) or status in (401, 403):
        return Failure(f"access was refused ({named}): {_remedy(scheme)}")
    if status in _PASSING or code in _PASSING_CODES:
        return Failure(f"the server cannot answer now ({named}): try again later", again=True)
    if kinds & _UNTRUSTED:
        return Failure(
            f"the server's certificate is not trusted ({named}): check the address, or the certificates here"
        )
    if kinds & _BROKEN:
        return Failure(f"no answer in time, or the connection broke ({named})", again=True)
    return Failure(f"it failed ({named})")


def _status(error: BaseException) -> int | None:
    """Return the status of an HTTP answer, by the names that the libraries give it."""
    answer: Any = getattr(error, "response", None)
    if isinstance(answer, dict):
        found = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        name = next((name for name in ("status", "status_code", "code") if name in vars(error)), "args")
        found = getattr(error, name)
    return found if isinstance(found, int) and 100 <= found < 600 else None


def _code(error: BaseException) -> str:
    """Return S3's code of an error."""
    answer: Any = getattr(error, "response", None)
    code = answer.get("Error", {}).get("Code", "") if isinstance(answer, dict) else ""
    return code if isinstance(code, str) and code.isalnum() and len(code) < 60 else ""


def _remedy(scheme: str) -> str:
    scheme = _SAME.get(scheme, scheme)
    if scheme not in _CREDENTIALS:
        return "pass what the server wants as storage_options="
    return f"{_CREDENTIALS[scheme]}, or pass storage_options=; for public data pass anonymous=True"
