"""Random programs on the pools, as a state machine of Hypothesis: each rule draws one kind of operation."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from hugepage_qa.cases.random.random_drawing import Drawing
from hugepage_qa.oracle.pool import pool_setup, pool_use
from hugepage_qa.oracle.pool.pool_use import persistent

_SELDOM = st.sampled_from((False, False, False, True))


class RandomPool(Drawing):
    """Draws one operation after the other from what there is at that point."""

    # --- the administrator ---

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Most happens when there are pages, and somebody who has them mapped."""
        # a search that turns down a program before anything is drawn turns down all
        missing = data.draw(st.integers(0, max(1, (self._scale.pool - 1) // 2)))
        self._started = self.search.start()
        self._set_count(self._scale.pool - missing)
        self.map_memory(data)

    @rule(data=st.data())
    def resize(self, data: st.DataObject) -> None:
        can_demote = self._run.machine.can_demote(self._size)
        match self._choose(data, count=(3, True), overcommit=(2, True), demote=(1, can_demote)):
            case "count":
                self._set_count(data.draw(st.integers(0, self._scale.pool)))
            case "overcommit":
                self._do(pool_setup.SetOvercommit(self._size, data.draw(st.integers(0, self._scale.pages))))
            case _:
                self._do(pool_setup.Demote(self._size, data.draw(st.integers(0, self._most_to_demote))))

    @property
    def _most_to_demote(self) -> int:
        """Up to 2, and none that was free before: what is split comes back only where memory is contiguous again."""
        before, pool = self._run.before, self._run.machine.pools[self._size]
        if not before[self._size]["free_hugepages"]:
            return 2
        return max(0, min(2, pool.nr - pool.surplus - persistent(before, self._size)))

    def _set_count(self, pages: int) -> None:
        self._do(pool_setup.SetCount(self._size, persistent(self._run.before, self._size) + pages, self._run.node))

    @rule(data=st.data())
    def mount(self, data: st.DataObject) -> None:
        mounts = self._there.mounts
        kind = self._choose(data, mount=(2, len(mounts) < self._scale.mounts), unmount=(1, bool(mounts)))
        if kind == "unmount":
            self._do(pool_setup.Unmount(data.draw(st.sampled_from(mounts))))
            return
        limit = st.none() | st.integers(0, self._scale.pages).map(lambda pages: pages * self._size)
        inodes = st.none() | st.integers(1, 4)
        self._do(
            pool_setup.MountPool(self._new("m"), self._size, data.draw(limit), data.draw(limit), data.draw(inodes))
        )

    @precondition(lambda self: self._scale.groups)
    @rule(data=st.data())
    def group(self, data: st.DataObject) -> None:
        groups = self._there.groups
        can_make = len(groups) < self._scale.groups
        match self._choose(data, make=(1, can_make), limit=(2, bool(groups)), join=(2, bool(groups))):
            case "make":
                self._do(pool_setup.MakeGroup(self._new("g")))
            case "limit":
                pages = data.draw(st.none() | st.integers(0, self._scale.pages))
                limit = None if pages is None else pages * self._size
                group = data.draw(st.sampled_from(groups))
                self._do(pool_setup.LimitGroup(group, self._size, limit, data.draw(st.booleans())))
            case _:
                self._do(pool_setup.JoinGroup(self._process(data), data.draw(st.sampled_from(groups))))

    # --- files ---

    @rule(data=st.data())
    def make_file(self, data: st.DataObject) -> None:
        process, mounts = self._process(data), self._there.mounts
        match self._choose(data, memfd=(1, True), segment=(1, True), create=(2, bool(mounts))):
            case "memfd":
                self._do(pool_setup.MakeMemfd(process, self._new("f"), self._size))
            case "segment":
                pages = data.draw(st.integers(1, self._scale.pages))
                self._do(pool_setup.MakeSegment(process, self._new("s"), self._size, pages))
            case _:
                self._do(pool_setup.CreateFile(process, self._new("f"), data.draw(st.sampled_from(mounts))))

    @precondition(lambda self: self._there.open_files)
    @rule(data=st.data())
    def change_file(self, data: st.DataObject) -> None:
        process, file = data.draw(st.sampled_from(self._there.open_files))
        match self._choose(data, allocate=(2, True), punch=(1, True), truncate=(1, True)):
            case "allocate":
                first, pages = self._range(data, self._scale.pages)
                self._do(pool_setup.Allocate(process, file, self._size, first, pages, data.draw(st.booleans())))
            case "punch":
                self._do(pool_setup.PunchHole(process, file, self._size, *self._range(data, self._scale.pages)))
            case _:
                self._do(pool_setup.Truncate(process, file, self._size, data.draw(st.integers(0, self._scale.pages))))

    @precondition(lambda self: self._there.open_files or self._there.linked_files)
    @rule(data=st.data())
    def give_up_file(self, data: st.DataObject) -> None:
        linked, opened = self._there.linked_files, self._there.open_files
        if self._choose(data, close=(1, bool(opened)), unlink=(1, bool(linked))) == "close":
            self._do(pool_setup.Close(*data.draw(st.sampled_from(opened))))
        else:
            self._do(pool_setup.Unlink(self._process(data), data.draw(st.sampled_from(linked))))

    # --- memory ---

    @rule(data=st.data())
    def map_memory(self, data: st.DataObject) -> None:
        opened, segments = self._there.open_files, self._there.segments
        match self._choose(data, anonymous=(2, True), file=(4, bool(opened)), segment=(1, bool(segments))):
            case "anonymous":
                pages = data.draw(st.integers(1, self._scale.pages))
                self._map(pool_use.MapAnonymous(self._process(data), *self._place(), pages, *self._kind(data)), pages)
            case "file":
                process, file = data.draw(st.sampled_from(opened))
                first, pages = self._range(data, self._scale.pages)
                self._map(pool_use.MapFile(process, *self._place(), file, first, pages, *self._kind(data)), pages)
            case _:
                segment = data.draw(st.sampled_from(segments))
                pages = self._there.segment_pages(segment)
                self._map(pool_use.Attach(self._process(data), *self._place(), segment), pages)

    @staticmethod
    def _kind(data: st.DataObject) -> tuple[bool, bool]:
        """Draw whether a mapping is shared, and whether without reservation."""
        return data.draw(st.booleans()), data.draw(_SELDOM)

    def _place(self) -> tuple[int, int]:
        """Return a new area, and the size of its pages."""
        self._made += 1
        return self._made, self._size

    def _map(self, operation: pool_use.MapFile | pool_use.MapAnonymous | pool_use.Attach, pages: int) -> None:
        if self._do(operation):
            self._areas[operation.process][operation.area] = pages

    @precondition(lambda self: self._mapped)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        self._touch(data)

    @precondition(lambda self: self._mapped)
    @rule(data=st.data())
    def touch_again(self, data: st.DataObject) -> None:
        # most of what can be wrong depends on which pages were touched
        self._touch(data)

    def _touch(self, data: st.DataObject) -> None:
        process, area, page = self._page(data)
        if data.draw(_SELDOM):
            self._do(pool_use.Read(process, area, self._size, page))
            return
        self._made += 1
        self._do(pool_use.Write(process, area, self._size, page, self._made))

    @precondition(lambda self: self._mapped)
    @rule(data=st.data())
    def change_mapping(self, data: st.DataObject) -> None:
        pieces = self._there.pieces
        if not pieces or data.draw(_SELDOM):
            # perhaps not all of the range is mapped any more
            process, area, pages = data.draw(st.sampled_from(self._mapped))
            part = (process, area, self._size, *self._range(data, pages))
            self._do(data.draw(st.sampled_from((pool_use.Unmap, pool_use.Discard)))(*part))
            return
        process, area, first, pages = data.draw(st.sampled_from(pieces))
        offset, count = self._range(data, pages)
        part = (process, area, self._size, first + offset, count)
        match self._choose(data, discard=(3, True), move=(3, True), unmap=(2, True), grow=(1, True)):
            case "discard":
                self._do(pool_use.Discard(*part))
            case "move":
                target, _ = self._place()
                if self._do(pool_use.Move(*part, target)):
                    self._areas[process][target] = first + offset + count
            case "unmap":
                self._do(pool_use.Unmap(*part))
            case _:
                self._do(pool_use.Grow(*part))

    def _page(self, data: st.DataObject) -> tuple[str, int, int]:
        """Draw process, area and page: mostly one that is mapped."""
        pieces = self._there.pieces
        if not pieces or data.draw(_SELDOM):
            process, area, pages = data.draw(st.sampled_from(self._mapped))
            return process, area, data.draw(st.integers(0, pages - 1))
        process, area, first, pages = data.draw(st.sampled_from(pieces))
        return process, area, first + data.draw(st.integers(0, pages - 1))

    # --- processes ---

    def _process(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(self._there.processes))

    @rule(data=st.data())
    def fork_or_exit(self, data: st.DataObject) -> None:
        processes = self._there.processes
        can_fork, can_exit = len(processes) < self._scale.processes, len(processes) > 1
        process = self._process(data)
        if self._choose(data, fork=(1, can_fork), exit=(1, can_exit)) == "exit":
            self._do(pool_use.Exit(process))
            return
        child = self._new("p")
        if self._do(pool_use.Fork(process, child)):
            self._areas[child] = dict(self._areas[process])
