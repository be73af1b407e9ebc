"""What a request is: a Struct that knows its method's name and its result type.

A method's name is the `tag` of the class, and travels in the Call frame (spec §6.1); it is not repeated in the
params. Only the base classes live here; the vocabulary itself is in the sibling modules.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args, get_origin

import msgspec

Result = TypeVar("Result")
Sent = TypeVar("Sent")
Received = TypeVar("Received")


class _RequestMeta(type(msgspec.Struct)):  # type: ignore[misc]
    """Keeps `tag` out of the encoded params: msgspec would write it into each map."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, tag: str | None = None, **options: Any
    ) -> Any:
        cls = super().__new__(mcls, name, bases, namespace, **options)
        if tag is not None:
            setattr(cls, "method", tag)  # noqa: B010  type checkers see an instance of no known class here
        return cls


if TYPE_CHECKING:  # type checkers know `tag` from msgspec's own metaclass
    _Base = msgspec.Struct
else:

    class _Base(msgspec.Struct, metaclass=_RequestMeta):
        pass


class Request(_Base, Generic[Result]):
    """A call that has one result: `class Add(Request[int], tag="calc.add")`. Fields are its params, by name."""

    method: ClassVar[str] = ""


class StreamRequest(Request[Result], Generic[Result, Received, Sent]):
    """A call with typed items as well: the caller receives `Received` items and may send `Sent` items.

    `class Tail(StreamRequest[Summary, Chunk, Never], tag="jobs.tail")`; `Never` where a direction has none.
    """


class RequestTypes(msgspec.Struct, frozen=True):
    """The types a request class names: its result, the items its handler sends, the items its caller sends."""

    result: Any
    from_handler: Any = None
    from_caller: Any = None


@functools.cache
def request_types(request: type[Request[Any]]) -> RequestTypes:
    """Read `result` and item types from the bases of `request`.

    Raises TypeError if the class names no method or no result type.
    """
    if not request.method:
        raise TypeError(f'{request.__name__} has no method name: give its class a tag="..."')
    for base in getattr(request, "__orig_bases__", ()):
        origin = get_origin(base)
        if origin is StreamRequest:
            return RequestTypes(*get_args(base))
        if origin is Request:
            return RequestTypes(get_args(base)[0])
    raise TypeError(f"{request.__name__} names no result type: derive it from Request[Result]")
