"""MCP servers that a client names and that cannot be: refused with their path, before anything is started."""

import pytest
from harness.acp.client import Refused

SESAME = "sesame-0123456789"


def stdio(**changes):
    return {"name": "a", "command": "true", "args": [], "env": []} | changes


def http(**changes):
    return {"type": "http", "name": "a", "url": "http://127.0.0.1:1/", "headers": []} | changes


def pair(name, value):
    return [{"name": name, "value": value}]


async def test_what_no_server_can_be_is_told_by_path_when_the_session_is_asked_for(open_client, new_session):
    async with open_client() as client:
        for server, field in [
            (stdio(command=""), "command"),
            (stdio(command="true\0"), "command"),
            (stdio(args=[f"{SESAME}\0"]), "args"),
            (stdio(env=pair("A=B", SESAME)), "env"),
            (stdio(env=pair("A\0", SESAME)), "env"),
            (stdio(env=pair("A", f"{SESAME}\0")), "env"),
            (http(url="file:///etc/passwd"), "url"),
            (http(url="http://\0/"), "url"),
            (http(url=f"x:{SESAME}"), "url"),
            (http(headers=pair("A:", SESAME)), "headers"),
            (http(headers=pair("A", f"{SESAME}\n")), "headers"),
        ]:
            with pytest.raises(Refused) as caught:
                await new_session(client, servers=[stdio(), server])
            assert caught.value.code == -32602
            assert caught.value.data["reason"].startswith(f"mcpServers.1.{field}: "), server
            assert SESAME not in str(caught.value.data)


async def test_a_session_has_a_limited_number_of_servers(open_client, new_session):
    async with open_client() as client:
        with pytest.raises(Refused) as caught:
            await new_session(client, servers=[stdio(name=f"a{number}") for number in range(65)])
        assert (caught.value.code, caught.value.data["reason"]) == (-32602, "mcpServers: a session can have 64, not 65")
        assert await new_session(client, servers=[stdio(name=f"a{number}") for number in range(64)])
