"""Operations on hugetlb pages that are drawn: what processes do to pages that they have, lack and share."""

import errno
from collections.abc import Callable, Sequence
from functools import partial

from hugepage_qa.cases.drawn_program import Operation, Part
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.live import READ_WRITE
from hugepage_qa.cases.memory_policy import MOVE, MOVE_ALL, Mode, bind, give_policy, migrate, move_page, node_of
from hugepage_qa.cases.modelled_pages import ModelledPages
from hugepage_qa.cases.places import free_place
from hugepage_qa.kernel.uapi import MADV_POPULATE_READ, MADV_POPULATE_WRITE, MAP_FIXED


class HugetlbProgram(ModelledPages):
    """Operations on hugetlb pages, private or of a file, by up to three processes."""

    def operations(self) -> Sequence[Operation]:
        """Return what may be done."""
        of_nodes = (self._move_to_node, self._move_to_node, self._bind_to_node, self._migrate)
        return [
            *(self.write, self.write, self._read, self.give_back, self.cut_out, self._populate, self._read_in),
            *(self.protect, self.protect, self.unmap, self._map, self._move, self._move),
            *(self.fork, self.fork, self.end, self._allocate, self._shorten),
            *(of_nodes if self.live.nodes else ()),
        ]

    def draw_range(self) -> range:
        """Return pages side by side."""
        pages = len(self.one.parts)
        first = self.random.randrange(pages)
        return range(first, first + 1 + self.random.randrange(pages - first))

    def write(self, parts: range) -> None:
        """Write what may be written."""
        super().write(parts)
        for run in self.runs(parts, lambda part: part.prot == READ_WRITE):
            self.reached(run, written=True)

    def _read(self, parts: range) -> None:
        self.tell("read", parts)
        for run in self.runs(parts, lambda part: part.is_readable):
            for part in run:
                offset, value = part * self.unit + self.unit // 2, self.one.values[part]
                found = self.one.memory.actor.read(self.one.memory.address + offset)
                self.live.expect(f"word in the middle of page {part}", value + offset if value else 0, found)
            self.reached(run, written=False)

    def _populate(self, parts: range) -> None:
        self.tell("populate for writing", parts)
        for run in self.runs(parts, lambda part: part.prot == READ_WRITE):
            self.one.memory.actor.call("madvise", *self.place(run), MADV_POPULATE_WRITE)
            self.reached(run, written=True)

    def _read_in(self, parts: range) -> None:
        self.tell("populate for reading", parts)
        for run in self.runs(parts, lambda part: part.is_readable):
            self.one.memory.actor.call("madvise", *self.place(run), MADV_POPULATE_READ)
            self.reached(run, written=False)

    def give_back(self, parts: range) -> None:
        """Give them back: the process has them no more."""
        super().give_back(parts)
        for run in self.mapped(parts):
            self.mine[run.start : run.stop] = [None] * len(run)

    def cut_out(self, parts: range) -> None:
        """Make a hole in a file: nobody has its pages any more; private ones are given back."""
        super().cut_out(parts)
        if self.one.file is not None:
            self._are_gone(parts)

    def _allocate(self, parts: range) -> None:
        """Allocate pages of a file, which changes nothing of those that are there."""
        if self.one.file is not None:
            self.tell("allocate", parts)
            HugeFile(self.live, self.one.memory.actor, self.one.file).allocate(len(parts), parts.start)
            for part in parts:
                self.in_file[part] = self.in_file[part] or next(self.new)

    def _shorten(self, parts: range) -> None:
        """Have a file end where ``parts`` begin, and make it as long as it was."""
        if self.one.file is not None:
            self.tell("shorten", parts)
            file = HugeFile(self.live, self.one.memory.actor, self.one.file)
            file.truncate(parts.start)
            file.truncate(len(self.one.parts))
            self._are_gone(range(parts.start, len(self.one.parts)))

    def _are_gone(self, parts: range) -> None:
        """Have a file without its pages of ``parts``."""
        for held in (*self.held.values(), self.in_file):
            held[parts.start : parts.stop] = [None] * len(parts)
        self.one.values[parts.start : parts.stop] = [0] * len(parts)

    def unmap(self, parts: range) -> None:
        """Unmap them."""
        super().unmap(parts)
        self.mine[parts.start : parts.stop] = [None] * len(parts)

    def _map(self, parts: range) -> None:
        self.tell("map", parts)
        one, (address, _length) = self.one, self.place(parts)
        is_shared, first = one.file is not None, 0 if one.file is None else parts.start
        # what is reserved for private memory stays so where a part of it moves (move-forgets-reservation); programs
        # that are drawn for the pool know that
        self.live.map(
            len(parts),
            one.memory.actor,
            shared=is_shared,
            noreserve=not is_shared,
            fd=one.file,
            first=first,
            flags=MAP_FIXED,
            at=address,
        )
        one.parts[parts.start : parts.stop] = [Part()] * len(parts)
        self.mine[parts.start : parts.stop] = [None] * len(parts)
        if not is_shared:
            one.values[parts.start : parts.stop] = [0] * len(parts)

    def _move(self, parts: range) -> None:
        """Move what is one mapping there and back."""
        self.tell("move", parts)
        for run in self.mapped(parts):
            self.move_there_and_back(run, free_place(self.live, self.one.memory.actor, len(run)))

    def fork(self, parts: range) -> None:
        """Have a child: it has private pages as they are, and of a file none that it has not reached."""
        before = len(self.processes)
        super().fork(parts)
        for child in self.processes[before:]:
            is_shared = child.file is not None
            self.held[child.memory.actor.pid] = [None] * len(child.parts) if is_shared else list(self.mine)

    def end(self, parts: range) -> None:
        """End the process, unless it is the only one."""
        one, before = self.one, len(self.processes)
        super().end(parts)
        if len(self.processes) < before:
            del self.held[one.memory.actor.pid]

    def _move_to_node(self, parts: range) -> None:
        """Move pages to a node: those that another process has, too, with MPOL_MF_MOVE_ALL alone."""
        node, flags = self._draw_node(), (MOVE, MOVE_ALL)[self.random.randrange(2)]
        self.tell(f"move to node {node}, {flags}", parts)
        for run in self.runs(parts, lambda part: part.is_readable):
            for part in run:
                page = self.mine[part]
                # what is there already is told so, whoever has it (mm/migrate.c add_page_for_migration())
                is_left = not self._moves(part, flags) and node_of(self.one.memory, part) != node
                where = -errno.ENOENT if page is None else -errno.EACCES if is_left else node
                self.live.expect(f"page {part}, moved to node {node}", where, self._moved(part, node, flags))

    def _moved(self, part: int, node: int, flags: int) -> int:
        """Return where a page is that was moved; who holds it for a moment lets go of it."""
        return self.live.host.last_look(
            lambda: move_page(self.one.memory, part, node, flags), lambda now: now != -errno.EBUSY
        )

    def _bind_to_node(self, parts: range) -> None:
        """Bind them to a node for a moment, which moves pages there as far as it may, and tells nothing of others."""
        node, flags = self._draw_node(), (MOVE, MOVE_ALL)[self.random.randrange(2)]
        self.tell(f"bind to node {node}, {flags}", parts)
        for run in self.runs(parts, lambda part: part.is_readable):
            memory = self.one.memory.part(run.start, len(run))
            to_move = [part for part in run if self.mine[part] is not None and self._moves(part, flags)]
            self._expect_moved(to_move, node, partial(bind, memory, [node], flags))
            give_policy(memory, Mode.DEFAULT, [])

    def _migrate(self, parts: range) -> None:
        """Have all that the process has leave its nodes for another one: who may do so moves pages of others, too."""
        node = self._draw_node()
        self.tell(f"migrate to node {node}", parts)
        readable = [part for run in self.runs(range(len(self.mine)), lambda part: part.is_readable) for part in run]
        to_move = [part for part in readable if self.mine[part] is not None]

        def move() -> None:
            for source in {*self.live.nodes} - {node}:
                migrate(self.one.memory.actor, source, node)

        self._expect_moved(to_move, node, move)

    def _draw_node(self) -> int:
        return self.live.nodes[self.random.randrange(len(self.live.nodes))]

    def _moves(self, part: int, flags: int) -> bool:
        page = self.mine[part]
        return flags == MOVE_ALL or page is None or self.holders(page) == 1

    def _expect_moved(self, parts: Sequence[int], node: int, move: Callable[[], object]) -> None:
        """Expect ``parts`` to be on ``node`` after ``move``, again where somebody had a hold of one for a moment."""
        memory = self.one.memory

        def elsewhere() -> list[int]:
            move()
            return [part for part in parts if node_of(memory, part) != node]

        self.live.expect(
            f"pages that are not on node {node}", [], self.live.host.last_look(elsewhere, lambda now: not now)
        )
