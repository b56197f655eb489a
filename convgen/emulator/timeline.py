"""The events of an emulation, with times: who waits for whom, and how long.

The emulator knows an order of events and no durations.  Here each event gets a nominal one, in cycles of a
multiprocessor, and times follow along the order (L. Lamport, "Time, Clocks, and the Ordering of Events in a Distributed
System", 1978): whoever waits goes on when what it waits for has happened.  A multiprocessor's loads pass one after
another, and so do its stores and its products.  The durations decide
which of several things comes last and is waited for: the structure is right, the microseconds are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from convgen.emulator.trace import FIELDS, Did, Launch

#: Cycles, of the order that Hopper has: to issue something, to synchronize, for the first byte of a load or a store.
ISSUE, SYNC, LATENCY = 8, 24, 640
#: Bytes a cycle that a multiprocessor loads or stores.
BYTES = 48
#: Cycles of an mma.sync; of a wgmma for each column of its n (PTX's m64nNk16 of 16-bit types at full rate).
MMA, COLUMN = 8, 0.5

LOADS, STORES, COPIES, PRODUCTS = "TMA loads", "TMA stores", "cp.async", "wgmma of warpgroup "


@dataclass(frozen=True)
class Moment:
    """A time of a track; who waits is sent there."""

    block: int
    track: str
    cycle: float


@dataclass(frozen=True)
class Slice:
    """Something that takes time: `kind` is wait, sync, load, store, multiply or copy.  A wait ends by `cause`."""

    block: int
    track: str
    kind: str
    line: int
    begin: float
    end: float
    cause: Moment | None = None


@dataclass(frozen=True)
class Timeline:
    """A launch: slices by time, and from when to when each warp lives."""

    entry: str
    source: tuple[str, ...]
    slices: tuple[Slice, ...]
    warps: Mapping[tuple[int, str], tuple[float, float]]

    @property
    def cycles(self) -> float:
        """The end of the last thing."""
        return max((end for _, end in self.warps.values()), default=0)

    def code(self, line: int) -> str:
        """A line of the generated source."""
        return self.source[line - 1].strip() if 0 < line <= len(self.source) else ""

    @cached_property
    def roles(self) -> dict[tuple[int, str], str]:
        """The roles of warps, if they load or multiply."""
        found: dict[tuple[int, str], str] = {}
        for s in self.slices:
            if s.kind in ("load", "copy") and s.cause:
                found.setdefault((s.block, s.cause.track), "producer")
            elif s.kind == "multiply" and s.track.startswith(PRODUCTS):
                first = 4 * int(s.track.removeprefix(PRODUCTS))
                found |= {(s.block, f"warp {w}"): "consumer" for w in range(first, first + 4)}
        return found


def timeline(launch: Launch) -> Timeline:
    """The times of a launch's events."""
    replay = _Replay()
    for event in zip(*(launch.events[name].tolist() for name in FIELDS), strict=True):
        replay.take(_Event(*event))
    slices = sorted(replay.slices, key=lambda s: (s.block, s.begin, s.track))
    lives = {who: (replay.born[who], replay.time[who]) for who in replay.born}
    return Timeline(launch.entry, tuple(launch.source.splitlines()), tuple(slices), lives)


@dataclass(frozen=True)
class _Event:
    """A row of `trace.FIELDS`."""

    what: int
    block: int
    warp: int
    line: int
    on_block: int
    on: int
    value: int
    amount: int

    @property
    def who(self) -> tuple[int, str]:
        return self.block, f"warp {self.warp}"


Key = tuple[int, ...]


class _Replay:
    """Walks events in their order.  A warp's lanes have one time."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.born: dict[tuple[int, str], float] = {}
        self.time: dict[tuple[int, str], float] = {}
        self._last: dict[tuple[int, str], _Event] = {}  # lanes that do the same take no more time
        self._free: dict[tuple[int, str], float] = {}  # when a block's unit has finished its work
        self._loads: dict[int, Moment] = {}
        #: The last moment of what an mbarrier's phase has had so far, and of completed phases.
        self._arriving: dict[Key, Moment] = {}
        self._phases: dict[Key, Moment] = {}
        #: Of groups by number, the last moment of each and all before it.
        self._groups: dict[tuple[str, int, int], list[Moment | None]] = {}
        self._meetings: dict[int, list[_Event]] = {}
        self._met = 0
        self._do: dict[int, Callable[[_Event], object]] = {
            Did.START: self._start,
            Did.LOAD: self._load,
            Did.LANDED: lambda e: self._arrive((e.on_block, e.on), self._loads[e.value]),
            Did.ARRIVE: lambda e: self._arrive((e.on_block, e.on), self._now(e)),
            Did.PHASE: self._phase,
            Did.WAIT: lambda e: self._wait(e, "wait", self._phases.get((e.on_block, e.on, e.value))),
            Did.SYNC: self._sync,
            Did.STORE: lambda e: self._asynchronous(e, STORES, "store", LATENCY, e.amount / BYTES),
            Did.STORE_WAIT: lambda e: self._wait(e, "wait", self._group(e, STORES)),
            Did.STORE_READ: lambda e: self._wait(e, "wait", self._group(e, STORES), LATENCY),
            Did.MULTIPLY: self._multiply,
            Did.MULTIPLY_WAIT: lambda e: self._wait(e, "wait", self._group(e, _tensor_cores(e))),
            Did.MMA: self._mma,
            Did.COPY: lambda e: self._asynchronous(e, COPIES, "copy", LATENCY, e.amount / BYTES),
            Did.COPY_WAIT: lambda e: self._wait(e, "wait", self._group(e, COPIES)),
            Did.CLUSTER_ARRIVE: lambda e: self._arrive((-1, e.value), self._now(e), self._phases),
            Did.CLUSTER_WAIT: lambda e: self._wait(e, "sync", self._phases.get((-1, e.value))),
        }

    def take(self, e: _Event) -> None:
        """One event."""
        if e.what != Did.SYNC:
            self._settle()
        if e.what in self._do:
            self._do[e.what](e)
        self._last[e.who] = e

    def _now(self, e: _Event) -> Moment:
        return Moment(*e.who, self.time[e.who])

    def _start(self, e: _Event) -> None:
        self.born[e.who] = self.time[e.who] = 0.0

    def _issue(self, e: _Event) -> bool:
        """A warp issues something; whether it is the first of its lanes to do so."""
        last = self._last.get(e.who)
        first = last is None or (last.what, last.line, last.value, last.on) != (e.what, e.line, e.value, e.on)
        self.time[e.who] += ISSUE if first else 0
        return first

    def _asynchronous(self, e: _Event, track: str, kind: str, latency: float, busy: float) -> Moment:
        """Work that a unit of the block does, one piece after another."""
        self._issue(e)
        begin = max(self.time[e.who], self._free.get((e.block, track), 0.0))
        self._free[e.block, track] = begin + busy
        self.slices.append(Slice(e.block, track, kind, e.line, begin, begin + busy + latency, self._now(e)))
        done = Moment(e.block, track, begin + busy + latency)
        if track in (STORES, COPIES):
            self._grouped((track, e.block, e.warp), e.value, done)
        return done

    def _load(self, e: _Event) -> None:
        self._loads[e.value] = self._asynchronous(e, LOADS, "load", LATENCY, e.amount / BYTES)

    def _arrive(self, barrier: Key, moment: Moment, of: dict[Key, Moment] | None = None) -> None:
        self._later(self._arriving if of is None else of, barrier, moment)

    def _later(self, of: dict, key: tuple, moment: Moment) -> None:
        if key not in of or of[key].cycle < moment.cycle:
            of[key] = moment

    def _phase(self, e: _Event) -> None:
        if moment := self._arriving.pop((e.on_block, e.on), None):
            self._phases[e.on_block, e.on, e.value] = moment

    def _grouped(self, key: tuple[str, int, int], group: int, moment: Moment) -> None:
        """Work of a group, of which there is none later."""
        own = self._groups.setdefault(key, [])
        own += [own[-1] if own else None] * (group + 1 - len(own))
        if (last := own[group]) is None or last.cycle < moment.cycle:
            own[group] = moment

    def _group(self, e: _Event, track: str) -> Moment | None:
        """The last moment of a warp's groups below a number."""
        warp = e.warp // 4 if track.startswith(PRODUCTS) else e.warp
        own = self._groups.get((track, e.block, warp), [])
        return own[min(e.value, len(own)) - 1] if own and e.value else None

    def _wait(self, e: _Event, kind: str, until: Moment | None, early: float = 0) -> None:
        begin = self.time[e.who]
        if until is None or until.cycle - early <= begin:
            return
        self.time[e.who] = until.cycle - early
        self.slices.append(Slice(*e.who, kind, e.line, begin, self.time[e.who], until))

    def _sync(self, e: _Event) -> None:
        if e.value != self._met:
            self._settle()
            self._met = e.value
        self._meetings.setdefault(e.value, []).append(e)

    def _settle(self) -> None:
        """The threads that met at a named barrier leave it together."""
        for events in self._meetings.values():
            last = max((self._now(e) for e in events), key=lambda m: m.cycle)
            for e in {e.who: e for e in events}.values():
                self._wait(e, "sync", last)
                self.time[e.who] = last.cycle + SYNC
        self._meetings.clear()

    def _multiply(self, e: _Event) -> None:
        group = e.warp // 4
        warps = [(e.block, f"warp {w}") for w in range(4 * group, 4 * group + 4)]
        issued = max(self.time[w] for w in warps) + ISSUE
        for who in warps:
            self.time[who] = issued
        track, busy = _tensor_cores(e), COLUMN * e.amount
        begin = max(issued, self._free.get((e.block, "products"), 0.0))
        self._free[e.block, "products"] = begin + busy
        self.slices.append(Slice(e.block, track, "multiply", e.line, begin, begin + busy, self._now(e)))
        self._grouped((track, e.block, group), e.value, Moment(e.block, track, begin + busy))

    def _mma(self, e: _Event) -> None:
        begin = self.time[e.who]
        self.time[e.who] += MMA
        self.slices.append(Slice(*e.who, "multiply", e.line, begin, begin + MMA))


def _tensor_cores(e: _Event) -> str:
    return f"{PRODUCTS}{e.warp // 4}"


def merged(slices: Sequence[Slice]) -> list[Slice]:
    """Slices of a kind and a line that touch, on one track, as one: mma.sync, of which there are thousands."""
    found: dict[tuple[int, str], Slice] = {}
    done = []
    for s in slices:
        key = s.block, s.track
        last = found.get(key)
        if last and (last.kind, last.line) == (s.kind, s.line) and s.kind == "multiply" and s.begin - last.end <= ISSUE:
            found[key] = Slice(s.block, s.track, s.kind, s.line, last.begin, s.end, last.cause)
            continue
        if last:
            done.append(last)
        found[key] = s
    return sorted([*done, *found.values()], key=lambda s: (s.block, s.begin, s.track))
