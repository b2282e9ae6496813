"""The simulated workspace, the front desk of a botanical garden: an immutable value, drawn with a generator.

People with groups and addresses, documents in directories (one of them locked), meetings, sent mail,
reminders, units. Every collection is kept sorted, so that two worlds in which the same things happened are
equal.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, timedelta

FIRST_NAMES = (
    "Anouk", "Basil", "Celine", "Dmitri", "Esther", "Farid", "Greta", "Hamza", "Imani", "Jonas",
    "Keiko", "Lucian", "Maren", "Nadia", "Oskar", "Paloma", "Quentin", "Rosalie", "Stefan", "Tamsin",
)  # fmt: skip
LAST_NAMES = (
    "Abara", "Brandt", "Castellan", "Dragomir", "Eklund", "Fontaine", "Grigsby", "Halloran",
    "Iwasaki", "Jelinek", "Kowalczyk", "Lombardi", "Mbeki", "Nystrom", "Oyelaran", "Pappas",
)  # fmt: skip
GROUPS = ("glasshouse", "herbarium", "orchard", "visitors")
DIRECTORIES = ("beds", "minutes", "orders")
STEMS = {
    "beds": ("ferns", "hedges", "pond", "roses"),
    "minutes": ("april", "june", "march", "may"),
    "orders": ("compost", "labels", "pots", "twine"),
}
LINES = (
    "repot the lemon trees; check the misting valve",
    "twelve trays of thyme; six of sage",
    "paths swept on Tuesday; gate hinge still loose",
    "new sign for the pond; paint arrives Friday",
    "prune after the first frost; keep the cuttings",
    "count the bulbs before lunch; note any mould",
)
LOCKED_DOCUMENT = "boiler/settings.txt"
MEETING_NAMES = ("Bulb count", "Greenhouse round", "Open day plan", "Path repairs", "Seed swap", "Tour rota")
TIMES = ("08:45", "10:15", "11:30", "13:15", "15:45", "16:20")
DOMAIN = "fernhall.example"


@dataclass(frozen=True, order=True)
class Person:
    """Someone in the directory."""

    name: str
    address: str
    group: str


@dataclass(frozen=True, order=True)
class Document:
    """A text at a location; `locked` ones can be read only."""

    location: str
    text: str
    locked: bool = False


@dataclass(frozen=True, order=True)
class Meeting:
    """A calendar entry; `guests` are addresses."""

    ref: str
    name: str
    day: str
    start: str
    guests: tuple[str, ...]


@dataclass(frozen=True, order=True)
class Mail:
    """A message that went out."""

    address: str
    topic: str
    text: str


@dataclass(frozen=True, order=True)
class Reminder:
    """A note for a day."""

    note: str
    day: str


@dataclass(frozen=True, order=True)
class Unit:
    """A unit of measure: `factor` of the kind's base unit (metre, kilogram, litre)."""

    name: str
    kind: str
    factor: float


UNITS = (
    Unit("cm", "length", 0.01),
    Unit("gal", "volume", 3.785411784),
    Unit("kg", "mass", 1.0),
    Unit("lb", "mass", 0.45359237),
    Unit("litre", "volume", 1.0),
    Unit("m", "length", 1.0),
    Unit("yd", "length", 0.9144),
)


@dataclass(frozen=True)
class World:
    """Everything the tools can see or change."""

    people: tuple[Person, ...]
    documents: tuple[Document, ...]
    meetings: tuple[Meeting, ...]
    mails: tuple[Mail, ...] = ()
    reminders: tuple[Reminder, ...] = ()
    units: tuple[Unit, ...] = UNITS

    @property
    def directories(self) -> tuple[str, ...]:
        """Names of the directories; the usual ones exist even when empty."""
        return tuple(sorted({*DIRECTORIES, *(each.location.split("/")[0] for each in self.documents)}))

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups that have members."""
        return tuple(sorted({each.group for each in self.people}))

    def next_ref(self) -> str:
        """The reference the next meeting gets."""
        return f"mt-{1 + max((int(each.ref[3:]) for each in self.meetings), default=0)}"


def address_of(name: str) -> str:
    """The address the garden gives to a person of this name."""
    return f"{name.lower().replace(' ', '.')}@{DOMAIN}"


def make_world(rng: random.Random) -> World:
    """Draw a world: eight people over four groups, two documents in each directory, three meetings."""
    people = _people(rng)
    return World(people, _documents(rng), _meetings(rng, people))


def make_days(rng: random.Random, n: int) -> tuple[str, ...]:
    """Consecutive days, written YYYY-MM-DD, from the 13th on: no day of theirs can be read as a month."""
    first = date(2027, rng.choice((2, 3, 4, 5, 6, 9, 10, 11)), 13 + rng.randrange(10))
    return tuple((first + timedelta(days=each)).isoformat() for each in range(n))


def _people(rng: random.Random) -> tuple[Person, ...]:
    # First and last names are each drawn without replacement: no two people can be mistaken for one another.
    firsts, lasts = rng.sample(FIRST_NAMES, 8), rng.sample(LAST_NAMES, 8)
    names = [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]
    groups = [*GROUPS, *(rng.choice(GROUPS) for _ in range(4))]
    people = zip(names, groups, strict=True)
    return tuple(sorted(Person(name, address_of(name), group) for name, group in people))


def _documents(rng: random.Random) -> tuple[Document, ...]:
    places = [f"{where}/{stem}.txt" for where in DIRECTORIES for stem in rng.sample(STEMS[where], 2)]
    texts = rng.sample(LINES, len(places))
    drawn = [Document(place, text) for place, text in zip(places, texts, strict=True)]
    return tuple(sorted([*drawn, Document(LOCKED_DOCUMENT, "night 14; day 19; vent at 26", locked=True)]))


def _meetings(rng: random.Random, people: tuple[Person, ...]) -> tuple[Meeting, ...]:
    names, times, days = rng.sample(MEETING_NAMES, 3), rng.sample(TIMES, 3), make_days(rng, 3)
    guests, first = rng.sample(people, 3), 20 + rng.randrange(60)
    return tuple(
        Meeting(f"mt-{first + index}", names[index], days[index], times[index], (guests[index].address,))
        for index in range(3)
    )
