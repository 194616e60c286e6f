"""The one way to a language model of a provider: LiteLLM, with a deadline, bounded retries and a span for each call.

Invariant: `timeout_s` bounds the call with all its retries, and whatever goes wrong is a ModelError whose text holds
neither a key nor a piece of the conversation. With a meter, tokens are reserved before anything is sent, and stay
charged unless the provider says what was used. It chooses no model, caches nothing and writes no prompt.
"""

import asyncio
import json
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from agentops import parsers
from agentops.errors import AgentopsError, ModelError, PolicyError
from agentops.trace import Tracing, names, set_attributes
from agentops.types import Json, Message, ToolCall

RETRIES = 2
BACKOFF_S = 0.25  # before the first retry; doubles, with up to half of it added at random
MAX_ARGUMENTS = 64 * 1024  # characters of one tool call's arguments, as many as the gateway of tools takes
MAX_CHARACTERS = 1_000_000  # of an answer; a provider that sends more is broken
BYTES_PER_TOKEN = 3  # of JSON, for the estimate that is reserved: English has about 4, other scripts fewer
_LOG = logging.getLogger(__name__)

# LiteLLM's exception -> (may be retried, what to do)
_FAILURES = {
    "Timeout": (True, "raise the time-out or choose a faster model"),
    "APIConnectionError": (True, "the provider cannot be reached: check its address and the network"),
    "RateLimitError": (True, "the provider's rate limit or quota is used up: wait or raise it"),
    "ServiceUnavailableError": (True, "the provider is unavailable: try again later"),
    "InternalServerError": (True, "the provider failed: try again later"),
    "BadGatewayError": (True, "the provider failed: try again later"),
    "APIError": (True, "the provider failed: try again later"),
    "AuthenticationError": (False, "check the provider's API key in the environment"),
    "PermissionDeniedError": (False, "the API key may not use this model"),
    "NotFoundError": (False, "the provider does not have this model: check its name"),
    "ContextWindowExceededError": (False, "the conversation is longer than the model reads: shorten it"),
    "ContentPolicyViolationError": (False, "the provider refused the content"),
    "UnsupportedParamsError": (False, "the model does not take one of the parameters"),
    "BadRequestError": (False, "the provider refused the request: check the model's name, as 'provider/model'"),
}


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer. Token counts are None when the provider gave none."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    model: str = ""  # as the provider names it
    finish_reason: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    seconds: float = 0.0
    attempts: int = 1


class Meter(Protocol):
    """What a run's model calls may use: `agentops.policy.TokenMeter`. Called from a thread."""

    def reserve(self, tokens: int) -> Any:
        """Set tokens aside.

        Raises:
            AgentopsError: a limit would be passed, or cannot be checked.
        """
        ...

    def settle(self, held: Any, tokens: int | None, milliseconds: int) -> None:
        """Charge what was used, and how long it took; None: nobody knows, what was reserved stays charged."""
        ...


async def complete(
    model: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    max_tokens: int = 1024,
    temperature: float = 0.0,
    timeout_s: float = 30.0,
    tracing: Tracing | None = None,
    meter: Meter | None = None,
    **options: Any,
) -> Completion:
    """Ask a model once.

    Keys and addresses of providers come from the environment, as LiteLLM documents for each.

    Args:
        model: LiteLLM name, "provider/model".
        messages: OpenAI chat format; arguments of tool calls may be objects.
        tools: OpenAI function schemas (`ToolSpec.openai()`).
        max_tokens: of the answer, at least 1.
        temperature: in [0, 2]; left out for models that do not take it.
        timeout_s: of the whole call with its retries, above 0.
        tracing: gets one "chat" span, with the conversation, usage and retries.
        meter: reserves an estimate of the tokens before the call, and is told what was used.
        **options: passed to LiteLLM, for example `mock_response` or `response_format`.

    Raises:
        ModelError: the call failed; says why and what to do.
    """
    if not model or not messages:
        raise ModelError(f"a model call needs a model and messages, got model {model!r} and {len(messages)} messages")
    if max_tokens < 1 or not 0 <= temperature <= 2 or timeout_s <= 0:
        raise ModelError(
            f"max_tokens = {max_tokens!r} must be at least 1, temperature = {temperature!r} in [0, 2] and timeout_s = "
            f"{timeout_s!r} above 0"
        )
    span = nullcontext(None) if tracing is None else tracing.span(f"chat {model}", names.CHAT)
    with span as current:
        if current is not None:
            set_attributes(
                current,
                {
                    names.REQUEST_MODEL: model,
                    names.PROVIDER: model.split("/")[0] if "/" in model else None,
                    names.MAX_TOKENS: max_tokens,
                    names.TEMPERATURE: temperature,
                    names.INPUT_MESSAGES: [dict(message) for message in messages],
                    names.TOOL_DEFINITIONS: [dict(tool) for tool in tools] if tools else None,
                },
            )
        arguments = {
            "model": model,
            "messages": [_message(message) for message in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
            **({"tools": [dict(tool) for tool in tools]} if tools else {}),
            **options,
        }
        answer = await _metered(model, arguments, timeout_s, current, meter)
        if current is not None:
            set_attributes(
                current,
                {
                    names.RESPONSE_MODEL: answer.model,
                    names.INPUT_TOKENS: answer.input_tokens,
                    names.OUTPUT_TOKENS: answer.output_tokens,
                    names.FINISH_REASONS: [answer.finish_reason] if answer.finish_reason else None,
                    names.OUTPUT_MESSAGES: [_recorded(answer)],
                },
            )
        return answer


async def _metered(
    model: str, arguments: Mapping[str, Any], timeout_s: float, span: Any, meter: Meter | None
) -> Completion:
    if meter is None:
        return await _attempts(model, arguments, timeout_s, span)
    sent = json.dumps([arguments["messages"], arguments.get("tools")], default=str).encode()
    wanted = len(sent) // BYTES_PER_TOKEN + 1 + arguments["max_tokens"]
    reserving = asyncio.ensure_future(asyncio.to_thread(meter.reserve, wanted))
    try:
        held = await asyncio.shield(reserving)
    except asyncio.CancelledError:  # nothing was sent: what the thread still reserves goes back
        with suppress(AgentopsError):
            await asyncio.to_thread(meter.settle, await reserving, 0, 0)
        raise
    except AgentopsError as error:
        raise ModelError(f"model {model!r} was not asked: {error}") from None
    started, used = time.monotonic(), None
    try:
        answer = await _attempts(model, arguments, timeout_s, span)
        if answer.input_tokens and answer.output_tokens is not None:  # LiteLLM makes no usage 0 and 0
            used = answer.input_tokens + answer.output_tokens
        return answer
    finally:
        milliseconds = round((time.monotonic() - started) * 1000)
        settling = asyncio.ensure_future(asyncio.to_thread(meter.settle, held, used, milliseconds))
        try:
            await asyncio.shield(settling)  # also when the caller is cancelled
        except AgentopsError as error:
            _LOG.warning("tokens reserved for a model call stay charged: %s", error)


async def _attempts(model: str, arguments: Mapping[str, Any], timeout_s: float, span: Any) -> Completion:
    litellm = await asyncio.to_thread(_litellm)  # the first import takes seconds
    started = time.monotonic()
    for attempt in range(1, RETRIES + 2):
        left = timeout_s - (time.monotonic() - started)
        kind, status = "Timeout", None
        try:
            async with asyncio.timeout(left):
                raw = await litellm.acompletion(
                    **arguments, timeout=left, num_retries=0, max_retries=0, drop_params=True
                )
            return _completion(model, raw, time.monotonic() - started, attempt)
        except TimeoutError:
            pass
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001 - LiteLLM's errors derive from those of several clients
            kind, status = _kind(error), getattr(error, "status_code", None)
        retry, advice = _FAILURES.get(kind, (False, "check the model's name and its provider's settings"))
        wait = BACKOFF_S * 2 ** (attempt - 1) * (1 + random.random() / 2)
        if not retry or attempt > RETRIES or time.monotonic() - started + wait >= timeout_s:
            shown = f"{kind}, status {status}" if isinstance(status, int) else kind
            # `from None`: the cause's text may quote the key or the conversation.
            raise ModelError(f"model {model!r} failed after {attempt} attempt(s) ({shown}): {advice}") from None
        if span is not None:
            span.add_event("retry", {names.ERROR_TYPE: kind})
        await asyncio.sleep(wait)
    raise AssertionError("unreachable")


def _litellm() -> ModuleType:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else importing it fetches a file from the network
    import litellm

    settings: Any = litellm
    settings.telemetry = False
    settings.suppress_debug_info = True  # it prints advertisements for its support channel on errors
    settings.disable_aiohttp_transport = True  # its aiohttp sessions are never closed
    return litellm


def _kind(error: Exception) -> str:
    """Name of the most specific LiteLLM exception `error` is one of."""
    return next((base.__name__ for base in type(error).__mro__ if base.__name__ in _FAILURES), type(error).__name__)


def _message(message: Message) -> dict[str, Any]:
    """One message as providers take it: arguments of tool calls as JSON text."""
    out = dict(message)
    if calls := out.get("tool_calls"):
        out["tool_calls"] = [
            {
                **call,
                "function": {
                    **call["function"],
                    "arguments": _text(call["function"].get("arguments", {})),
                },
            }
            for call in calls
        ]
    return out


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _completion(model: str, raw: Any, seconds: float, attempts: int) -> Completion:
    try:
        choice = raw.choices[0]
        text = choice.message.content or ""
        calls = tuple(
            ToolCall(call.id or f"call_{number}", call.function.name, _object(call.function.arguments))
            for number, call in enumerate(choice.message.tool_calls or (), 1)
        )
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise ModelError(
            f"model {model!r} sent an answer that is no chat completion ({type(error).__name__}): check that its "
            "address is an OpenAI-compatible one"
        ) from None
    if len(text) > MAX_CHARACTERS:
        raise ModelError(f"model {model!r} answered with {len(text)} characters, more than {MAX_CHARACTERS}")
    usage = getattr(raw, "usage", None)
    return Completion(
        text=text,
        tool_calls=calls,
        model=str(getattr(raw, "model", "") or ""),
        finish_reason=str(choice.finish_reason or ""),
        input_tokens=getattr(usage, "prompt_tokens", None),
        output_tokens=getattr(usage, "completion_tokens", None),
        seconds=seconds,
        attempts=attempts,
    )


def _object(arguments: str | None) -> dict[str, Json]:
    try:
        value = parsers.json_value(arguments or "{}", MAX_ARGUMENTS)
    except PolicyError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise ValueError("arguments of a tool call are not an object")
    return value


def _recorded(answer: Completion) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": dict(call.arguments)}}
            for call in answer.tool_calls
        ]
    return message
