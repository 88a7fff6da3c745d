"""Write a small English-German parallel corpus, made on the spot from CLDR and number words.

The names, dates, times, amounts and measures come from the Unicode CLDR as packaged by `babel`,
formatted once for English and once for German. `num2words` spells out the numbers. FRAMES holds
the sentences that carry them, SLOTS what may stand in their braces.

Needs ``pip install "babel==2.18.*" "num2words==0.5.*"``: other versions make another corpus. Run
``python make_corpus.py --help`` for the options.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NoReturn

NEEDED = '"babel==2.18.*" "num2words==0.5.*"'

try:
    from babel import Locale, dates, numbers, units
    from babel.lists import format_list
    from num2words import num2words
except ImportError as missing:
    print(f"make_corpus.py: {missing}; try: pip install {NEEDED}", file=sys.stderr)
    raise SystemExit(2) from None

Pair = tuple[str, str]  # (English, German)
Slot = Callable[[random.Random], Pair]

EN, DE = Locale("en"), Locale("de")
MOST_PAIRS = 200_000  # the frames give many more, but by then they only repeat themselves


# --- The sentences -------------------------------------------------------------------------------

# A field names a slot; a number tells two fields of one slot apart, and they never get the same
# value. German inflects, so each frame puts its fields where the bare form is the right one:
# "am 5. März", "12 Euro" as subject or object, "Geburtsland: Schweiz" where running text would
# want "die Schweiz". An ordinal ends in -e; a frame that needs the weak dative adds its own -n.
FRAMES: list[Pair] = [
    # dates and times
    (
        "The train to {city} leaves at {time} from platform {platform}.",
        "Der Zug nach {city} fährt um {time} von Gleis {platform} ab.",
    ),
    ("The conference in {city} began on {day}.", "Die Tagung in {city} begann am {day}."),
    (
        "She was born in {city} on {date} and now lives in {country}.",
        "Sie wurde am {date} in {city} geboren und lebt heute in {country}.",
    ),
    (
        "Does the course still meet every {weekday1} and {weekday2} at {time}?",
        "Findet der Kurs noch jeden {weekday1} und {weekday2} um {time} statt?",
    ),
    (
        "His birthday is on {month_day}, hers is in {month}.",
        "Er hat am {month_day} Geburtstag, sie im {month}.",
    ),
    ("Opening hours on {weekday}: {hours}", "Öffnungszeiten am {weekday}: {hours}"),
    (
        "The delivery from {country} was planned for {week}.",
        "Die Lieferung aus {country} war für {week} geplant.",
    ),
    (
        "The last meeting was {ago}; the next one is {ahead}.",
        "Die letzte Sitzung war {ago}, die nächste ist {ahead}.",
    ),
    (
        "Why did the server in {city} fail {ago}?",
        "Warum ist der Server in {city} {ago} ausgefallen?",
    ),
    (
        "The first experiment took {duration1}, the second {duration2}.",
        "Der erste Versuch dauerte {duration1}, der zweite {duration2}.",
    ),
    # names of places, languages, scripts and currencies
    (
        "Country of birth: {territory}; native language: {language}",
        "Geburtsland: {territory}; Muttersprache: {language}",
    ),
    ("How do you say “{territory}” in {language}?", "Wie sagt man „{territory}“ auf {language}?"),
    ("Please select: {territories}", "Bitte auswählen: {territories}"),
    (
        "The map shows {countries} as well as the city of {city}.",
        "Die Karte zeigt {countries} sowie die Stadt {city}.",
    ),
    (
        "We are flying from {country1} via {country2} to {country3}.",
        "Wir fliegen von {country1} über {country2} nach {country3}.",
    ),
    (
        "Does anybody here speak {language1} or {language2}?",
        "Spricht hier jemand {language1} oder {language2}?",
    ),
    (
        "The text exists in {language1}, but not yet in {language2}.",
        "Den Text gibt es auf {language1}, aber noch nicht auf {language2}.",
    ),
    ("She speaks {languages} and lives in {city}.", "Sie spricht {languages} und lebt in {city}."),
    ("About {people} people speak {language}.", "Rund {people} Menschen sprechen {language}."),
    ("Language: {language}; script: {script}", "Sprache: {language}; Schrift: {script}"),
    (
        "Account currency: {currency1} (formerly {currency2})",
        "Kontowährung: {currency1} (früher {currency2})",
    ),
    # money and percentages
    (
        "He paid {money} for the ticket to {city}.",
        "Er hat {money} für die Fahrkarte nach {city} bezahlt.",
    ),
    (
        "Does the hotel in {city} charge {price1} a night and {price2} for parking?",
        "Verlangt das Hotel in {city} {price1} pro Nacht und {price2} für den Parkplatz?",
    ),
    (
        "Sales in {country} ({quarter}): {big_money}",
        "Umsatz in {country} ({quarter}): {big_money}",
    ),
    (
        "In {month_year}, exports from {country1} to {country2} rose by {percent}.",
        "Im {month_year} stiegen die Ausfuhren aus {country1} nach {country2} um {percent}.",
    ),
    # measures
    (
        "The box is {length1} long, {length2} wide and weighs {weight}.",
        "Die Kiste ist {length1} lang, {length2} breit und wiegt {weight}.",
    ),
    (
        "Height: {size1}, width: {size2}, depth: {size3}",
        "Höhe: {size1}, Breite: {size2}, Tiefe: {size3}",
    ),
    (
        "At {time} the temperature in {city} was {temperature}.",
        "Um {time} betrug die Temperatur in {city} {temperature}.",
    ),
    (
        "One tank holds {volume1}, the other {volume2}.",
        "Der eine Tank fasst {volume1}, der andere {volume2}.",
    ),
    (
        "It is another {distance} to {city}; the speed limit is {speed}.",
        "Bis {city} sind es noch {distance}; erlaubt sind {speed}.",
    ),
    (
        "The farm covers {area} and uses {energy} and {volume} of water a year.",
        "Der Hof umfasst {area} und verbraucht {energy} und {volume} Wasser im Jahr.",
    ),
    (
        "Add {spoons1} of flour, {spoons2} of sugar and {spoons3} of milk.",
        "Geben Sie {spoons1} Mehl, {spoons2} Zucker und {spoons3} Milch dazu.",
    ),
    (
        "The file is {data} in size, and the download takes {duration}.",
        "Die Datei ist {data} groß, und der Download dauert {duration}.",
    ),
    # numbers in words
    ("What is {number1} plus {number2}?", "Was ist {number1} plus {number2}?"),
    ("The number {spelled}.", "Die Zahl {spelled}."),
    (
        "The answer is on page {number}, in the {ordinal} line.",
        "Die Antwort steht auf Seite {number} in der {ordinal}n Zeile.",
    ),
    ("The {ordinal} guest won {count} euros.", "Der {ordinal} Gast gewann {count} Euro."),
    (
        "The house was built in {year}, and the garden is {age} years old.",
        "Das Haus wurde {year} gebaut, und der Garten ist {age} Jahre alt.",
    ),
    (
        "There are {count1} chairs and {count2} tables in the hall.",
        "Im Saal stehen {count1} Stühle und {count2} Tische.",
    ),
    (
        "In {month_year}, {count} visitors came to the museum.",
        "Im {month_year} kamen {count} Besucher ins Museum.",
    ),
]


# --- The names -----------------------------------------------------------------------------------

# Countries that need no article in German, and "in" rather than "auf": fit for running text.
COUNTRY_CODES = """
    AL AT BE BG BY CZ DE DK EE ES FI FR GR HR HU IE IS IT LI LT LU LV ME MK NO PL PT RO RS RU SE
    SI AF AM AZ BD BT CN GE ID IL IN JO JP KG KH KP KR KW KZ LA LK MY NP PK QA SA SY TH TJ TM UZ
    VN AO BF BI BJ BW CM DJ DZ EG ER ET GA GH GM GN GW KE LR LS LY MA ML MR MW MZ NA NG RW SL SO
    SZ TG TN TZ UG ZA ZM ZW AR BO BR BZ CA CL CO CR EC GT GY HN HT MX NI PA PE PY SR SV UY VE AU
    NZ PG"""

CURRENCY_CODES = """
    EUR USD GBP CHF JPY SEK NOK DKK PLN CZK HUF RON ISK TRY INR PKR NPR KRW THB VND IDR MYR PHP
    SGD HKD AUD NZD CAD MXN BRL ARS CLP COP PEN UYU EGP MAD DZD TND ZAR NGN KES GHS ILS IRR IQD
    KWD JOD LBP SAR KZT GEL AMD ALL"""
CURRENCIES_WITH_A_SIGN = ["EUR", "USD", "GBP"]  # €, $ and £ in both languages

# The CLDR keeps city names with the time zones, each zone named after one.
CITY_ZONES = """
    Europe/Amsterdam Europe/Athens Europe/Belgrade Europe/Berlin Europe/Bratislava
    Europe/Brussels Europe/Bucharest Europe/Budapest Europe/Copenhagen Europe/Dublin
    Europe/Helsinki Europe/Istanbul Europe/Kiev Europe/Lisbon Europe/Ljubljana Europe/London
    Europe/Madrid Europe/Minsk Europe/Moscow Europe/Oslo Europe/Paris Europe/Prague Europe/Riga
    Europe/Rome Europe/Sarajevo Europe/Sofia Europe/Stockholm Europe/Tallinn Europe/Vienna
    Europe/Vilnius Europe/Volgograd Europe/Warsaw Europe/Zagreb Europe/Zurich Asia/Baghdad
    Asia/Baku Asia/Bangkok Asia/Beirut Asia/Bishkek Asia/Calcutta Asia/Damascus Asia/Dubai
    Asia/Dushanbe Asia/Hong_Kong Asia/Irkutsk Asia/Jakarta Asia/Kabul Asia/Karachi Asia/Katmandu
    Asia/Manila Asia/Muscat Asia/Nicosia Asia/Novosibirsk Asia/Pyongyang Asia/Riyadh Asia/Saigon
    Asia/Seoul Asia/Shanghai Asia/Taipei Asia/Tashkent Asia/Tbilisi Asia/Tehran Asia/Tokyo
    Asia/Vladivostok Asia/Yakutsk Asia/Yekaterinburg Asia/Yerevan Africa/Accra Africa/Addis_Ababa
    Africa/Algiers Africa/Cairo Africa/Casablanca Africa/Dar_es_Salaam Africa/Johannesburg
    Africa/Khartoum Africa/Lagos Africa/Luanda Africa/Lusaka Africa/Mogadishu Africa/Nairobi
    Africa/Tripoli Africa/Tunis America/Bogota America/Caracas America/Chicago America/Havana
    America/Lima America/Los_Angeles America/Mexico_City America/Montevideo America/New_York
    America/Toronto America/Vancouver Australia/Melbourne Australia/Sydney"""

# Codes that name no single thing, and a few under which the CLDR's English and German differ.
NOT_TERRITORIES = "EU EZ QO UN XA XB ZZ"
NOT_LANGUAGES = "egy gor mul und zbl zxx"
NOT_SCRIPTS = "Blis Hans Hant Osma Phli Phlv Sgnw Zinh Zsye Zsym Zxxx Zyyy Zzzz"


def plain(text: str) -> str:
    """Return text with ordinary spaces for the CLDR's no-break, narrow and thin ones.

    Soft hyphens go too: all are typography, and would only split one word into several types.
    """
    return re.sub("[\u00a0\u2009\u202f]", " ", text).replace("\u00ad", "")


def both(write: Callable[[Locale], str]) -> Pair:
    """Let `write` format one value for English and for German."""
    return plain(write(EN)), plain(write(DE))


def names(table: str, codes: Iterable[str], without: str = "") -> list[Pair]:
    """Return the names that a CLDR table such as "languages" has for these codes.

    A name with a bracket or an apostrophe is left out: few have one, and no frame needs them.
    """

    def name(code: str) -> Pair:
        return both(lambda locale: getattr(locale, table)[code])

    pairs = [name(code) for code in codes if code not in without.split()]
    return [pair for pair in pairs if not re.search("[('\u2019\u02bc]", "".join(pair))]


def codes_of(table: str, pattern: str) -> list[str]:
    """Return the codes of a CLDR table that match the pattern and are named in both languages."""
    shared = set(getattr(EN, table)) & set(getattr(DE, table))
    return sorted(code for code in shared if re.fullmatch(pattern, code))


def one_word(pairs: list[Pair]) -> list[Pair]:
    """Keep the names of one German word: "auf Tunesisches Arabisch" would need an ending."""
    return [pair for pair in pairs if " " not in pair[1]]


def city(zone: str) -> Pair:
    """Return the city a time zone is named after; the CLDR lists it where the id does not do."""
    from_id = zone.split("/")[-1].replace("_", " ")
    return both(lambda locale: locale.time_zones.get(zone, {}).get("city", from_id))


COUNTRIES = names("territories", COUNTRY_CODES.split())
TERRITORIES = names("territories", codes_of("territories", "[A-Z]{2}"), NOT_TERRITORIES)
# The languages best known have two letters; those of three are the long tail of the corpus.
KNOWN_LANGUAGES = one_word(names("languages", codes_of("languages", "[a-z]{2}")))
LANGUAGES = one_word(names("languages", codes_of("languages", "[a-z]{2,3}"), NOT_LANGUAGES))
SCRIPTS = one_word(names("scripts", codes_of("scripts", ".*"), NOT_SCRIPTS))
CURRENCIES = names("currencies", CURRENCY_CODES.split())
CITIES = [city(zone) for zone in CITY_ZONES.split()]


# --- The slots -----------------------------------------------------------------------------------

# Most values lie on a coarse grid (minutes in fives, prices that end as prices do), so that a
# small model meets each numeral often enough to learn how the two languages write it.


def one_of(pairs: Sequence[Pair]) -> Slot:
    """Draw one pair."""
    return lambda rng: rng.choice(pairs)


def mostly(common: Sequence[Pair], every: Sequence[Pair]) -> Slot:
    """Draw a common pair four times in five, else any."""
    return lambda rng: rng.choice(common if rng.random() < 0.8 else every)


def listing(pairs: Sequence[Pair], style: Literal["standard", "or"]) -> Slot:
    """Draw a list of three or four: "A, B, and C", "A, B oder C"."""

    def slot(rng: random.Random) -> Pair:
        english, german = zip(*rng.sample(pairs, rng.choice([3, 3, 4])), strict=True)
        return format_list(english, style, locale=EN), format_list(german, style, locale=DE)

    return slot


def dated(write: Callable[[date, Locale], str]) -> Slot:
    """Draw a day between 1970 and 2025; the sentences with a year speak of the past."""

    def slot(rng: random.Random) -> Pair:
        day = date(1970, 1, 1) + timedelta(days=rng.randrange(56 * 365))
        return both(lambda locale: write(day, locale))

    return slot


def write_day(day: date, locale: Locale) -> str:
    """Write a date with its weekday; in German as it follows "am", in the dative."""
    weekday = dates.format_date(day, "EEEE", locale=locale)
    comma = ", " if locale is EN else ", dem "
    return weekday + comma + dates.format_date(day, "long", locale=locale)


# Every fifth minute of a day, whose date no sentence shows.
MINUTES = [datetime(2000, 1, 1, hour, minute) for hour in range(24) for minute in range(0, 60, 5)]


def clock(rng: random.Random) -> Pair:
    """Draw a time: 5:45 PM, 17:45 Uhr."""
    now = rng.choice(MINUTES)
    english, german = both(lambda locale: dates.format_time(now, "short", locale=locale))
    return english, f"{german} Uhr"


def hours(rng: random.Random) -> Pair:
    """Draw a span of the day: from 9:15 AM to 2:30 PM, in German from 09:15 to 14:30."""
    start, end = sorted(rng.sample(MINUTES, 2))
    clocks = {EN: "hm", DE: "Hm"}
    return both(lambda locale: dates.format_interval(start, end, clocks[locale], locale=locale))


def span(*kinds: str, sign: int = 0) -> Slot:
    """Draw a span of time; with a sign, one counted from now: 3 hours ago, vor 3 Stunden."""

    def slot(rng: random.Random) -> Pair:
        kind = rng.choice(kinds)
        most = {"minutes": 50, "hours": 20, "days": 6, "weeks": 3}[kind]
        delta = timedelta(**{kind: rng.randint(2, most)}) * (sign or 1)
        return both(
            lambda locale: dates.format_timedelta(delta, add_direction=bool(sign), locale=locale)
        )

    return slot


def amount(rng: random.Random) -> float:
    """Draw an amount such as 7 or 12.5."""
    return rng.choice([rng.randint(2, 99), rng.randint(11, 199) / 10])


def any_amount(rng: random.Random) -> float:
    """Draw an amount such as 7, 12.5, 350 or 4,500."""
    return rng.choice([amount(rng), rng.randrange(100, 1000, 10), rng.randrange(1000, 10_000, 500)])


def halves(rng: random.Random) -> float:
    """Draw an amount for the kitchen: 2, 3.5 or 10."""
    return rng.randint(3, 20) / 2


def tens(rng: random.Random) -> float:
    """Draw a number for a road sign: 30, 120."""
    return rng.randrange(20, 150, 10)


def degrees(rng: random.Random) -> float:
    """Draw a temperature that a thermometer outdoors could show."""
    return rng.randint(-40, 79) / 2


def measure(
    draw: Callable[[random.Random], float], *kinds: str, style: Literal["short", "long"] = "long"
) -> Slot:
    """Draw an amount of one of the CLDR's units: 2.5 miles, 2,5 Meilen."""

    def slot(rng: random.Random) -> Pair:
        value, kind = draw(rng), rng.choice(kinds)
        return both(lambda locale: units.format_unit(value, kind, style, locale=locale))

    return slot


def price(rng: random.Random) -> Pair:
    """Draw a price with a currency sign: €12.50, 12,50 €."""
    value = rng.randint(5, 299) + rng.choice([0, 0.5, 0.99])
    currency = rng.choice(CURRENCIES_WITH_A_SIGN)
    return both(lambda locale: numbers.format_currency(value, currency, locale=locale))


def money(rng: random.Random) -> Pair:
    """Draw a sum with its currency in words: 250 Swedish kronor, 250 Schwedische Kronen."""
    value = rng.choice([rng.randint(20, 99), rng.randrange(100, 5000, 50)])
    currency = rng.choice(CURRENCY_CODES.split())
    return both(
        lambda locale: numbers.format_currency(
            value, currency, "#,##0", locale, currency_digits=False, format_type="name"
        )
    )


def millions(rng: random.Random) -> int:
    """Draw from 1.1 to 990 million; never just 1, which babel makes "1 Millionen" in German."""
    return rng.choice([rng.randint(11, 99), rng.randrange(100, 10_000, 100)]) * 100_000


def people(rng: random.Random) -> Pair:
    """Draw a large round number: 1.5 million, 1,5 Millionen."""
    value = millions(rng)
    return both(
        lambda locale: numbers.format_compact_decimal(
            value, format_type="long", locale=locale, fraction_digits=1
        )
    )


def big_money(rng: random.Random) -> Pair:
    """Draw a large sum, in figures as newspapers print them: €1.2M, 1,2 Mio. €."""
    value, currency = millions(rng) * rng.choice([1, 1, 1000]), rng.choice(CURRENCIES_WITH_A_SIGN)
    return both(
        lambda locale: numbers.format_compact_currency(
            value, currency, locale=locale, fraction_digits=1
        )
    )


def percent(rng: random.Random) -> Pair:
    """Draw a percentage: 12.5%, 12,5 %."""
    share = rng.choice([rng.randint(1, 99), rng.randint(11, 199) / 10]) / 100
    return both(
        lambda locale: numbers.format_percent(share, locale=locale, decimal_quantization=False)
    )


@cache
def in_words(number: int, kind: Literal["cardinal", "ordinal", "year"] = "cardinal") -> Pair:
    """Spell a number out.

    num2words goes wrong in German above ten thousand: "einhunderteinstausend" for 101,000. It has
    the ordinal of 1,000 without "ein" but that of 1,001 with it. The slots stay below.
    """
    return num2words(number, lang="en", to=kind), num2words(number, lang="de", to=kind)


def draw_number(rng: random.Random) -> int:
    """Draw a whole number, half of them of two digits at most."""
    below_100, below_1000 = rng.randint(1, 99), rng.randint(100, 999)
    return rng.choice([below_100, below_100, below_1000, rng.randrange(1000, 10_000, 100)])


def number(rng: random.Random) -> Pair:
    """Draw a number in words, as one says it alone: eins."""
    return in_words(draw_number(rng))


def count(rng: random.Random) -> Pair:
    """Draw a number of things; not 1 or 101, where German wants "ein Stuhl", "ein Tisch"."""
    things = draw_number(rng)
    return in_words(things + 1 if things % 100 == 1 else things)


def age(rng: random.Random) -> Pair:
    """Draw a believable number of years, in words."""
    return in_words(rng.randint(2, 99))


def ordinal(rng: random.Random) -> Pair:
    """Draw an ordinal in words, in German in the weak nominative: erste, einundzwanzigste."""
    return in_words(rng.randint(1, 99), "ordinal")


def year(rng: random.Random) -> Pair:
    """Draw a year in words: nineteen eighty-four, neunzehnhundertvierundachtzig."""
    return in_words(rng.randint(1500, 2025), "year")


def spelled(rng: random.Random) -> Pair:
    """Say how a number is written, in digits and in words."""
    value = draw_number(rng)
    english, german = in_words(value)
    digits = both(lambda locale: numbers.format_decimal(value, locale=locale))
    return f"{digits[0]} is written “{english}”", f"{digits[1]} schreibt man „{german}“"


def platform(rng: random.Random) -> Pair:
    """Draw the number of a platform, the same in both languages."""
    digits = str(rng.randint(1, 24))
    return digits, digits


SLOTS: dict[str, Slot] = {
    # names
    "city": one_of(CITIES),
    "country": one_of(COUNTRIES),
    "countries": listing(COUNTRIES, "standard"),
    "territory": mostly(COUNTRIES, TERRITORIES),
    "territories": listing(TERRITORIES, "or"),
    "language": mostly(KNOWN_LANGUAGES, LANGUAGES),
    "languages": listing(KNOWN_LANGUAGES, "standard"),
    "script": one_of(SCRIPTS),
    "currency": one_of(CURRENCIES),
    # dates and times
    "date": dated(lambda day, locale: dates.format_date(day, "long", locale=locale)),
    "day": dated(write_day),
    "month": dated(lambda day, locale: dates.format_date(day, "LLLL", locale=locale)),
    "month_day": dated(lambda day, locale: dates.format_skeleton("MMMMd", day, locale=locale)),
    "month_year": dated(lambda day, locale: dates.format_skeleton("yMMMM", day, locale=locale)),
    "quarter": dated(lambda day, locale: dates.format_skeleton("yQQQQ", day, locale=locale)),
    "week": dated(lambda day, locale: dates.format_skeleton("yw", day, locale=locale)),
    "weekday": dated(lambda day, locale: dates.format_date(day, "EEEE", locale=locale)),
    "time": clock,
    "hours": hours,
    "duration": span("minutes", "hours"),
    "ago": span("minutes", "hours", "days", "weeks", sign=-1),
    "ahead": span("minutes", "hours", "days", "weeks", sign=+1),
    # money and percentages
    "price": price,
    "money": money,
    "big_money": big_money,
    "people": people,
    "percent": percent,
    # measures
    "length": measure(amount, "length-centimeter", "length-meter", "length-inch"),
    "size": measure(amount, "length-millimeter", "length-centimeter", style="short"),
    "distance": measure(any_amount, "length-kilometer", "length-mile"),
    "speed": measure(tens, "speed-kilometer-per-hour", "speed-mile-per-hour"),
    "weight": measure(amount, "mass-gram", "mass-kilogram", "mass-pound", "mass-tonne"),
    "volume": measure(any_amount, "volume-liter", "volume-cubic-meter", "volume-gallon"),
    "area": measure(any_amount, "area-hectare", "area-acre", "area-square-kilometer"),
    "energy": measure(any_amount, "energy-kilowatt-hour", "energy-kilocalorie"),
    "data": measure(any_amount, "digital-kilobyte", "digital-megabyte", "digital-gigabyte"),
    "temperature": measure(degrees, "temperature-celsius", "temperature-fahrenheit"),
    "spoons": measure(halves, "volume-teaspoon", "volume-tablespoon", "volume-cup"),
    # numbers in words
    "number": number,
    "count": count,
    "age": age,
    "ordinal": ordinal,
    "year": year,
    "spelled": spelled,
    "platform": platform,
}


# --- The corpus ----------------------------------------------------------------------------------


def fill(frame: Pair, rng: random.Random) -> Pair:
    """Fill the fields of both templates of a frame with the same freshly drawn values."""
    english, german = frame
    values: dict[str, Pair] = {}
    for field in re.findall(r"{(\w+)}", english):
        draw = SLOTS[field.rstrip("0123456789")]
        value = draw(rng)
        while value in values.values():
            value = draw(rng)
        values[field] = value
    return (
        english.format(**{field: value[0] for field, value in values.items()}),
        german.format(**{field: value[1] for field, value in values.items()}),
    )


def make_splits(train: int, valid: int, test: int, seed: int) -> dict[str, list[Pair]]:
    """Return the three splits; no sentence, English or German, is in the corpus twice.

    The same seed gives the same corpus as long as babel and num2words stay the same. Test comes
    first, so that a corpus of another training size is measured on the same test set.
    """
    rng = random.Random(seed)
    used: set[str] = set()

    def draw() -> Pair:
        while True:
            pair = fill(rng.choice(FRAMES), rng)
            if used.isdisjoint(pair):
                used.update(pair)
                return pair

    sizes = {"test": test, "valid": valid, "train": train}
    return {split: [draw() for _ in range(size)] for split, size in sizes.items()}


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file whole or not at all: under another name first, then renamed."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_splits(splits: dict[str, list[Pair]], folder: Path) -> None:
    """Write train.en, train.de and so on into the folder, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        write_lines(folder / f"{split}.en", (english for english, _ in pairs))
        write_lines(folder / f"{split}.de", (german for _, german in pairs))


def summary(splits: dict[str, list[Pair]]) -> str:
    """Return one line on the sizes, the mean lengths and the versions that the text depends on."""
    sizes = ", ".join(f"{len(splits[split])} {split}" for split in ("train", "valid", "test"))
    pairs = [pair for split in splits.values() for pair in split]
    english, german = (
        sum(len(side.split()) for side in sides) / len(pairs) for sides in zip(*pairs, strict=True)
    )
    made_with = ", ".join(f"{name} {version(name)}" for name in ("babel", "num2words"))
    return f"{sizes} pairs; {english:.1f} English, {german:.1f} German words a line; {made_with}"


class Parser(argparse.ArgumentParser):
    """A parser that answers a mistake with one sentence instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Print the sentence and leave with status 2."""
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def pairs_wanted(text: str) -> int:
    """Read a size from the command line."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = Parser(
        prog="make_corpus.py",
        description=(
            "Make an English-German corpus for a first training run: dates, names, amounts and "
            "numbers in words, inside short sentences. Nothing is downloaded."
        ),
        epilog=(
            "It writes train.en, train.de, valid.en, valid.de, test.en and test.de: one sentence "
            "a line, not tokenized, line N of .en and .de saying the same. No sentence occurs "
            "twice, within a split or across two. The same seed and versions of babel and "
            "num2words give the same files; another --train leaves the test set as it is. "
            "Example: python make_corpus.py data/raw --train 6000"
        ),
    )
    parser.add_argument("folder", metavar="OUTPUT_DIR", type=Path, help="where the files go")
    for split, size, use in (
        ("train", 24_000, "to learn from"),
        ("valid", 1_000, "to choose a checkpoint by"),
        ("test", 1_000, "to measure BLEU on"),
    ):
        sizes_help = f"pairs {use} (default: {size})"
        parser.add_argument(
            f"--{split}", type=pairs_wanted, metavar="N", default=size, help=sizes_help
        )
    seed_help = "a whole number; another one draws another corpus (default: %(default)s)"
    parser.add_argument("--seed", type=int, metavar="S", default=1, help=seed_help)
    options = parser.parse_args(arguments)
    wanted = options.train + options.valid + options.test
    if wanted > MOST_PAIRS:
        parser.error(f"{wanted} pairs are wanted, but at most {MOST_PAIRS} can be made")
    splits = make_splits(options.train, options.valid, options.test, options.seed)
    try:
        write_splits(splits, options.folder)
    except OSError as error:
        parser.error(f"cannot write to {options.folder}: {error.strerror or error}")
    print(summary(splits), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
