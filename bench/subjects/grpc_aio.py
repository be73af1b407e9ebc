"""grpc.aio with generic handlers: bytes in, bytes out, no generated code, no schema."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any

import grpc.aio  # type: ignore[import-untyped]

from bench.messages import IN_FLIGHT, ITEM, LARGE, SMALL
from bench.subjects import announce, obey, server_process

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


async def echo(request: bytes, context: object) -> bytes:
    return request


async def stream(request: bytes, context: object) -> AsyncIterator[bytes]:
    item = bytes(ITEM)
    for _ in range(int(request)):
        yield item


def serve(name: str) -> None:
    sys.stdin.readline()
    asyncio.run(_serve())


async def _serve() -> None:
    server = grpc.aio.server(options=OPTIONS)
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce(f"127.0.0.1:{port}")
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


class Client:
    def __init__(self, channel: Any) -> None:
        self._echo = channel.unary_unary("/bench/Echo")
        self._stream = channel.unary_stream("/bench/Stream")

    async def echo(self, count: int, data: bytes = SMALL) -> list[float]:
        seconds = []
        for _ in range(count):
            start = perf_counter()
            await self._echo(data)
            seconds.append(perf_counter() - start)
        return seconds

    async def flood(self, count: int) -> list[float]:
        async def caller() -> None:
            for _ in range(count // IN_FLIGHT):
                await self._echo(SMALL)

        start = perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(caller())
        return [perf_counter() - start]

    async def large(self, count: int) -> list[float]:
        return await self.echo(count, LARGE)

    async def stream(self, count: int) -> list[float]:
        start = perf_counter()
        async for _ in self._stream(str(count).encode()):
            pass
        return [perf_counter() - start]


def drive(name: str) -> None:
    with server_process(name, "") as (address, pid):
        asyncio.run(_drive(address, pid))


async def _drive(address: str, pid: int) -> None:
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        await obey(Client(channel), pid, lambda: asyncio.to_thread(sys.stdin.readline))
