"""The HTTP interface of a server: predictions, metrics and health. Errors are JSON: `{"error": "…"}`.

POST /v1/predict    {"inputs": […]} as application/json, or an .npy file as application/x-npy; the reply is
                    {"outputs": […]}, or an .npy file for a request that accepts one
GET  /metrics       for Prometheus
GET  /health        {"status": "ok"}
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from onefold.agent.forms import Argument
from onefold.arrays.model_inputs import model_inputs
from onefold.model_server.batcher import Array, Arrays, Batcher, QueueFull, Stopped
from onefold.model_server.payloads import (
    JSON_TYPE,
    NPY_TYPE,
    BadPayload,
    array_of_npy,
    arrays_of_json,
    json_of,
    npy_of,
)
from onefold.model_server.server_metrics import ServerMetrics
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.log import log_of

BODY_TIMEOUT_S = 30.0  # until the whole body of a request has arrived
LARGE_BYTES = 100_000  # bodies above are decoded beside the event loop
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
log = log_of()

Reply = Callable[[Request], Awaitable[Response]]


def check_input(described: Argument, array: Array) -> None:
    """Raise BadPayload unless an array fits an input of the model."""
    wanted = ", ".join("n" if size is None else str(size) for size in (None, *described.shape[1:]))
    rest = zip(described.shape[1:], array.shape[1:])
    if array.ndim != len(described.shape) or any(size not in (None, given) for size, given in rest):
        raise BadPayload(f"the input {described.name} has the shape ({wanted}), got {tuple(array.shape)}")
    if not len(array):
        raise BadPayload("the inputs have no samples")


@dataclass(frozen=True)
class Interface:
    """Answers the requests of clients.

    Args:
        batcher: Answers predictions.
        metrics: Counts what is answered.
        inputs: The inputs of the model.
        outputs: The names of its outputs.
        token: What clients must present; None admits everybody who addresses this machine by a name of loopback.
        max_bytes: The largest body.
    """

    batcher: Batcher
    metrics: ServerMetrics
    inputs: tuple[Argument, ...]
    outputs: tuple[str, ...]
    token: str | None
    max_bytes: int

    def app(self) -> Any:
        """Return the ASGI application."""
        routes = [
            Route("/v1/predict", self._checked(self._predict), methods=["POST"]),
            Route("/metrics", self._checked(self._metrics), methods=["GET"]),
            Route("/health", self._checked(self._health), methods=["GET"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: self._refused, Exception: self._failed})

    def _checked(self, reply: Reply) -> Reply:
        """Return a handler that answers authorized clients, and turns errors into replies."""

        async def answer(request: Request) -> Response:
            try:
                self._authorize(request)
                return await reply(request)
            except BadPayload as error:
                return self._error(400, str(error))
            except HTTPException as error:
                return self._error(error.status_code, error.detail, error.headers)

        return answer

    def _authorize(self, request: Request) -> None:
        if self.token is None:
            if request.url.hostname not in {name.strip("[]") for name in LOOPBACK_NAMES}:
                raise HTTPException(403, "without a token, address this server as localhost")
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), self.token.encode()):
            raise HTTPException(401, "a token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    async def _predict(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (JSON_TYPE, NPY_TYPE):
            raise HTTPException(415, f"the body must be {JSON_TYPE} or {NPY_TYPE}")
        body = await self._body(request)
        arrived_s = time.perf_counter()
        arrays = await _beside(len(body), self._arrays, kind, body)
        try:
            outputs = await asyncio.wrap_future(self.batcher.submit(arrays))
        except QueueFull:
            raise HTTPException(503, "too many samples wait; try again later", {"Retry-After": "1"}) from None
        except Stopped:
            raise HTTPException(503, "the server stops") from None
        except ModelError as error:
            raise BadPayload(headline(error)) from None
        is_npy = NPY_TYPE in request.headers.get("accept", "") and len(outputs) == 1
        size = sum(output.nbytes for output in outputs)
        if is_npy:
            response = Response(await _beside(size, npy_of, outputs[0]), media_type=NPY_TYPE)
        else:
            response = Response(await _beside(size, json_of, outputs, self.outputs), media_type=JSON_TYPE)
        self.metrics.count_reply(200, time.perf_counter() - arrived_s)
        return response

    def _arrays(self, kind: str, body: bytes) -> Arrays:
        names, dtypes = [each.name for each in self.inputs], [each.dtype for each in self.inputs]
        if kind == JSON_TYPE:
            arrays = arrays_of_json(body, names, dtypes)
        elif len(names) == 1:
            arrays = [array_of_npy(body)]
        else:
            raise BadPayload(f"the model has {len(names)} inputs; send them by name, as JSON")
        for array, described in zip(arrays, self.inputs):
            check_input(described, array)
        try:
            return model_inputs(arrays, names, dtypes)
        except (TypeError, ValueError) as error:
            raise BadPayload(str(error)) from None

    async def _body(self, request: Request) -> bytes:
        """Return the body. Raises HTTPException if it is too large or does not arrive."""
        too_large = HTTPException(413, f"a body has at most {self.max_bytes:,} bytes")
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self.max_bytes:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.max_bytes:
                        raise too_large
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
        except ClientDisconnect:
            raise HTTPException(400, "the client has left") from None
        return bytes(body)

    async def _metrics(self, request: Request) -> Response:  # noqa: ARG002 - all are alike
        return Response(self.metrics.text(), media_type=self.metrics.content_type)

    async def _health(self, request: Request) -> Response:  # noqa: ARG002 - all are alike
        return JSONResponse({"status": "ok"})

    async def _refused(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return self._error(status, f"{request.method} {request.url.path}: there is no such thing")

    async def _failed(self, request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return self._error(500, "the server failed; its log has the reason")

    def _error(self, status: int, message: str, headers: Any = None) -> Response:
        self.metrics.count_reply(status)
        return JSONResponse({"error": message}, status, headers=dict(headers or {}))


async def _beside(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a thread if it handles many bytes, so that other requests do not wait."""
    return await run_in_threadpool(function, *arguments) if size > LARGE_BYTES else function(*arguments)
