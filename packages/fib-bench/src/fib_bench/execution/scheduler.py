"""Carries out plans at several stations at once: whichever is free takes the next piece of work.

A station is a device with its judge, on this machine or another. One that fails is opened again, a
few times; then it is left out, and the others do its work. A solution's failure is a result and no
failure of a station. Nothing here knows what kinds of stations there are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol, Self

import attrs
from fib_schema import Environment, FibError

from ..errors import JudgeFailed
from ..events import DeviceOut, Evaluated, Event, Skipped
from ..plan import DefinitionPlan, Skip
from .judge_process import rest_after

_MOST_FAILURES = 3  # of a station in a row
_MOST_STATIONS = 2  # that fail at an item
_PIECES = 4  # of all work for each station, so that none waits long for the last


class Station(Protocol):
    """A device with its judge."""

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        ...

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        """Run the plan for one definition.

        Raises:
            JudgeFailed: The judge is gone and does not come back.
        """
        ...

    def close(self) -> None:
        """End everything that was started."""
        ...


class Executor(Protocol):
    """Carries out plans, somewhere."""

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        ...

    def execute(self, parts: Sequence[DefinitionPlan]) -> Iterator[Event]:
        """Run plans; events come as things happen."""
        ...

    def stop(self) -> None:
        """Finish the evaluations that are under way, and no others."""
        ...

    def close(self) -> None:
        """End everything that was started."""
        ...


@attrs.define(eq=False)
class _Item:
    """A piece of work and what became of it."""

    part: DefinitionPlan
    failed_at: set[str] = attrs.field(factory=set)
    """The stations that went down with it."""


@attrs.frozen
class _Crash:
    """An error of ours, which ends the run."""

    error: BaseException


class Crew:
    """Carries out plans at stations, each served by a thread.

    Args:
        openers: By the stations' names, what opens them. All are opened at once, and the first is waited for.

    Raises:
        FibError: The first cannot be opened.
    """

    def __init__(self, openers: Iterable[tuple[str, Callable[[], Station]]]) -> None:
        self._openers = list(openers)
        self._stations: dict[str, Station] = {}
        self._items: deque[_Item] = deque()
        self._under_way = 0
        self._change = threading.Condition()
        self._events: SimpleQueue[Event | _Crash | None] = SimpleQueue()
        self._is_stopping = False
        self._has_begun = threading.Event()
        self._is_closed = threading.Event()
        others = [threading.Thread(target=self._serve, args=opener, daemon=True) for opener in self._openers[1:]]
        for thread in others:
            thread.start()
        name, opener = self._openers[0]
        try:
            self._stations[name] = opener()
        except BaseException:
            self.close()
            raise
        self._environment = self._stations[name].environment

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state: those of the first station, whose like all others are."""
        return self._environment

    def execute(self, parts: Sequence[DefinitionPlan]) -> Iterator[Event]:
        """Run plans; a definition's work is split where there are several stations.

        Raises:
            FibError: What it is about is told by the station.
        """
        left = len(self._openers)
        with self._change:
            if not self._is_stopping:  # else it was stopped before it began
                self._items.extend(map(_Item, _pieces(parts, left)))
        self._has_begun.set()
        threading.Thread(target=self._serve, args=self._openers[0], daemon=True).start()
        while left:
            event = self._events.get()
            if event is None:
                left -= 1
            elif isinstance(event, _Crash):
                raise event.error
            else:
                yield event
        for item in self._items:  # no station is left to do it
            yield from _given_up(item, "no device is left")
        self._items.clear()

    def stop(self) -> None:
        """Finish the evaluations that are under way, and no others."""
        with self._change:
            self._is_stopping = True
            self._items.clear()
            self._change.notify_all()

    def close(self) -> None:
        """End all stations."""
        self.stop()
        with self._change:
            stations = list(self._stations.values())
            self._stations.clear()
        for station in stations:
            station.close()
        self._is_closed.set()
        self._has_begun.set()

    # -- in the threads --------------------------------------------------------------------------

    def _serve(self, name: str, opener: Callable[[], Station]) -> None:
        """Do work at a station until there is none, or the station has failed too often."""
        failures = 0
        try:
            with suppress(JudgeFailed):  # it is opened again for its first item, and then it counts
                self._open(name, opener)
            self._has_begun.wait()
            while failures < _MOST_FAILURES and (item := self._take(name)) is not None:
                station = None
                try:
                    station = self._station(name, opener)
                    self._work_on(item, station)
                    failures = 0
                except JudgeFailed as error:
                    failures += 1
                    self._close(name)
                    self._give_back(item, str(error), None if station is None else name)
                    if failures == _MOST_FAILURES:
                        self._events.put(DeviceOut(name, str(error)))
                finally:
                    self._leave()
        except BaseException as error:  # noqa: BLE001 the border of the thread: the run ends with it
            self._events.put(_Crash(error))
        finally:
            self._events.put(None)
            self._is_closed.wait()  # the system ends a station's process with the thread that has started it

    def _station(self, name: str, opener: Callable[[], Station]) -> Station:
        station = self._open(name, opener)
        ours, theirs = self._environment.hardware, station.environment.hardware
        if ours != theirs:
            raise JudgeFailed(f"it is {theirs!r}, and the run is for {ours!r}; run different devices apart")
        return station

    def _open(self, name: str, opener: Callable[[], Station]) -> Station:
        if name in self._stations:
            return self._stations[name]
        try:
            station = opener()
        except JudgeFailed:
            raise
        except (FibError, OSError) as error:
            raise JudgeFailed(str(error)) from error
        with self._change:
            is_late = self._is_stopping
            if not is_late:
                self._stations[name] = station
        if is_late:
            station.close()
            raise JudgeFailed("the run was stopped while it opened")
        return station

    def _close(self, name: str) -> None:
        with self._change:
            station = self._stations.pop(name, None)
        if station is not None:
            station.close()

    def _work_on(self, item: _Item, station: Station) -> None:
        for event in station.execute(item.part):
            item.part = rest_after(item.part, event)
            self._events.put(event)
            if self._is_stopping and isinstance(event, Evaluated | Skipped):
                return

    def _take(self, name: str) -> _Item | None:
        """The next item, one at which this station has not failed if there is one.

        Waits while another station may still give one back.
        """
        with self._change:
            while not self._items and self._under_way:
                self._change.wait()
            if not self._items:
                return None
            self._under_way += 1
            item = next((item for item in self._items if name not in item.failed_at), self._items[0])
            self._items.remove(item)
            return item

    def _leave(self) -> None:
        with self._change:
            self._under_way -= 1
            self._change.notify_all()

    def _give_back(self, item: _Item, reason: str, failed_at: str | None) -> None:
        """Leave what is left of an item to whichever station is free, unless several have gone down with it."""
        if self._is_stopping or not item.part.count:
            return
        if failed_at is not None:
            item.failed_at.add(failed_at)
        if len(item.failed_at) >= _MOST_STATIONS:
            for event in _given_up(item, f"{len(item.failed_at)} devices failed at it: {reason}"):
                self._events.put(event)
            return
        with self._change:
            self._items.appendleft(item)


def _pieces(parts: Sequence[DefinitionPlan], stations: int) -> list[DefinitionPlan]:
    """The work of several stations, the largest pieces first.

    Starting on a definition costs seconds at each station, so that only what is large is split.
    """
    if stations == 1:
        return list(parts)
    most = -(-sum(part.count for part in parts) // (_PIECES * stations))
    pieces = [piece for part in parts for piece in part.split(-(-part.count // max(most, 1)))]
    return sorted(pieces, key=lambda piece: -piece.count)


def _given_up(item: _Item, reason: str) -> Iterator[Event]:
    for workload in item.part.workloads:
        skip = Skip(item.part.definition.name, None, workload.uuid, reason, is_failure=True)
        yield Skipped(skip, len(item.part.pending[workload.uuid]))
