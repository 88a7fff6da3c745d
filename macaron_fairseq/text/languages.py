"""Codes of languages. A language has several, and the rules of Moses and sacreBLEU know one."""

import re

WITHOUT_SPACES = "zh", "ja"

# Of the languages for which there are such rules, the code of ISO 639-1 and those of 639-3 and 2.
CODES = {
    "as": "asm",
    "bn": "ben",
    "ca": "cat",
    "cs": "ces cze",
    "de": "deu ger",
    "el": "ell gre",
    "en": "eng",
    "es": "spa",
    "et": "est",
    "fi": "fin",
    "fr": "fra fre",
    "ga": "gle",
    "gu": "guj",
    "hi": "hin",
    "hu": "hun",
    "is": "isl ice",
    "it": "ita",
    "ja": "jpn",
    "kn": "kan",
    "ko": "kor",
    "lt": "lit",
    "lv": "lav",
    "ml": "mal",
    "mr": "mar",
    "nl": "nld dut",
    "or": "ori ory",
    "pa": "pan",
    "pl": "pol",
    "pt": "por",
    "ro": "ron rum",
    "ru": "rus",
    "sk": "slk slo",
    "sl": "slv",
    "sv": "swe",
    "ta": "tam",
    "te": "tel",
    "zh": "zho chi cmn",
}
SHORT = {long: short for short, codes in CODES.items() for long in codes.split()}


def short_code(language: str) -> str:
    """The code that rules go by: en of eng, EN and en-GB. One that is not known stays as it is."""
    code = re.split("[-_]", language.lower())[0]
    return SHORT.get(code, code)


def has_spaces(language: str) -> bool:
    """Whether the language has spaces between words."""
    return short_code(language) not in WITHOUT_SPACES
