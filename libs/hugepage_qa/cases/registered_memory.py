"""Memory that is registered for RDMA, and pinned for it: to be read alone, or to be written, too.

It is registered with a device that rdma_rxe makes of the loopback (drivers/infiniband/sw/rxe): nothing is sent by it.
"""

import errno
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import where_none_is_pinned
from hugepage_qa.kernel.uapi import Uapi
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.process.actor import Actor, Refused

_DEVICE, _NETWORK, _KIND = "hugepage_qa0", "lo", "rxe"
_MODULES = ("ib_uverbs", "rdma_rxe")
_VERBS = "sys/class/infiniband_verbs"
# include/uapi/linux/netlink.h
_AF_NETLINK, _SOCK_RAW, _NETLINK_RDMA = 16, 3, 20
_REQUEST, _ACKNOWLEDGE, _DUMP = 1, 4, 0x300
_HEADER, _ATTRIBUTE = "IHHII", "HH"
_HEADER_SIZE, _ATTRIBUTE_SIZE, _ERROR, _MOST = 16, 4, 2, 8192
# include/uapi/rdma/rdma_netlink.h: RDMA_NL_NLDEV, RDMA_NLDEV_CMD_*, RDMA_NLDEV_ATTR_*
_CLIENT, _GET, _NEW, _DELETE = 5 << 10, 1, 3, 4
_INDEX, _NAME, _NETWORK_NAME, _LINK_KIND = 1, 2, 51, 65
# include/uapi/rdma/ib_user_verbs.h: IB_USER_VERBS_CMD_*; of the answers the first word is the handle
_GET_CONTEXT, _ALLOC_PD, _REG_MR, _DEREG_MR = 0, 3, 9, 13
_LOCAL_WRITE = 1
#: in words of 4 bytes
_CONTEXT_ANSWER, _PD_ANSWER, _MR_ANSWER = 2, 1, 3


class Registry:
    """What an actor registers its memory with."""

    def __init__(self, live: Live, actor: Actor) -> None:
        """Have the machine get a device until the case ends, and ``actor`` open it. Raises CannotRun, OSError."""
        self._live = live
        self._actor = actor
        self._answers = actor.mmap(live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._verbs = live.open(actor, f"/dev/infiniband/{_make_device(live)}", os.O_RDWR)
        self._command(_GET_CONTEXT, _CONTEXT_ANSWER)
        self._domain = self._command(_ALLOC_PD, _PD_ANSWER)

    @contextmanager
    def registered(self, memory: Memory, *, written: bool = False) -> Iterator[None]:
        """Have the first base page of ``memory`` pinned meanwhile, to be read and, ``written``, to be written.

        Raises Refused, and CannotRun.
        """
        where = memory.address, self._live.base_page, memory.address
        access = _LOCAL_WRITE if written else 0
        with where_none_is_pinned(self._live):
            region = self._command(_REG_MR, _MR_ANSWER, "3QII", *where, self._domain, access)
        try:
            yield
        finally:
            self._command(_DEREG_MR, 0, "I", region)

    def _command(self, number: int, answer: int, layout: str = "", *values: int) -> int:
        """Give a command whose answer has so many words, and return the first of them. Raises Refused."""
        pack, unpack = self._actor.uapi.pack, self._actor.uapi.unpack
        words = (pack("Q", self._answers) if answer else b"") + pack(layout, *values)
        command = pack("IHH", number, (len(words) + 8) // 4, answer) + words
        self._actor.call("write", self._verbs, command, len(command))
        return unpack("2I", pack("Q", self._actor.read(self._answers)))[0] if answer else 0


def _make_device(live: Live) -> str:
    """Return the name of the file of our device, which is gone after the case. Raises CannotRun, Refused."""
    if not live.host.has_modules(_MODULES):
        raise CannotRun("this kernel has no rdma_rxe, or it is not loaded")
    if _file_of_device(live.host) is None:
        actor = live.actor()
        names = {_NAME: _DEVICE, _NETWORK_NAME: _NETWORK, _LINK_KIND: _KIND}
        try:
            _ask(actor, _NEW, {number: f"{name}\0".encode() for number, name in names.items()})
        except Refused as refusal:
            if refusal.errno not in (errno.EEXIST, errno.EPERM):
                raise
            raise CannotRun(f"{_NETWORK} cannot have a device of {_KIND}: {refusal.strerror}") from refusal
    # also one that a run had which was killed
    live.when_actors_have_ended(_remove_device, live.host)
    found = live.host.last_look(partial(_file_of_device, live.host), bool)
    return found or live.fail(_VERBS, f"a file of {_DEVICE}", "none")


def _file_of_device(host: Host) -> str | None:
    for name in host.names(_VERBS):
        if (host.read(f"{_VERBS}/{name}/ibdev") or "").strip() == _DEVICE:
            return name
    return None


def _remove_device(host: Host) -> None:
    actor = host.start_actor()
    try:
        for attributes in _ask(actor, _GET, {}, _DUMP):
            if attributes[_NAME].rstrip(b"\0") == _DEVICE.encode():
                _ask(actor, _DELETE, {_INDEX: attributes[_INDEX]})
    finally:
        actor.end()


def _ask(
    actor: Actor, command: int, attributes: Mapping[int, bytes], flags: int = _ACKNOWLEDGE
) -> list[dict[int, bytes]]:
    """Ask the kernel by netlink(7), and return the attributes of each message of its answer. Raises Refused."""
    pack = actor.uapi.pack
    body = b"".join(
        pack(_ATTRIBUTE, _ATTRIBUTE_SIZE + len(value), number) + value + bytes(-len(value) % 4)
        for number, value in attributes.items()
    )
    message = pack(_HEADER, _HEADER_SIZE + len(body), _CLIENT | command, _REQUEST | flags, 0, 0) + body
    socket = actor.call("socket", _AF_NETLINK, _SOCK_RAW, _NETLINK_RDMA)
    actor.call("write", socket, message, len(message))
    length, (answer,) = actor.call_with_buffers("read", socket, bytes(_MOST), _MOST)
    actor.call("close", socket)
    return list(_messages(actor.uapi, answer[:length]))


def _messages(uapi: Uapi, answer: bytes) -> Iterator[dict[int, bytes]]:
    while answer:
        length, kind, *_others = uapi.unpack(_HEADER, answer[:_HEADER_SIZE])
        body, answer = answer[_HEADER_SIZE:length], answer[length + -length % 4 :]
        if kind == _ERROR:
            (error,) = uapi.unpack("i", body[:4])
            if error:
                raise Refused(-error, errno.errorcode.get(-error, str(-error)))
        elif kind > _ERROR + 1:
            yield dict(_attributes(uapi, body))


def _attributes(uapi: Uapi, body: bytes) -> Iterator[tuple[int, bytes]]:
    while body:
        length, number = uapi.unpack(_ATTRIBUTE, body[:_ATTRIBUTE_SIZE])
        yield number, body[_ATTRIBUTE_SIZE:length]
        body = body[length + -length % 4 :]
