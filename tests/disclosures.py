"""The tables of deploy/README.md: everything that a client tells the server, by method.

python -m tests.disclosures            print them
python -m tests.disclosures --write    put them into deploy/README.md
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from deploy.keys import meanings
from strategies.base.messages import ClientInfo, ReplyInfo
from strategies.base.method import Method, get_method, method_names
from strategies.base.payload import rules_of
from strategies.base.protection import Privacy, absent_setting, refusal, treatments
from strategies.base.treatments import REFUSED
from tests.documents import print_or_write

DOCUMENT = Path(__file__).parents[1] / "deploy" / "README.md"
BEGIN = "<!-- disclosures: python -m tests.disclosures --write -->\n"
END = "<!-- end of disclosures -->\n"


def tables() -> str:
    """Return what every method's clients send, then what clients say whatever the method."""
    parts = ["| method | a client sends | which is |\n|---|---|---|\n"]
    parts += [_method_row(get_method(name)) for name in method_names()]
    for title, record in (("At its registration", ClientInfo), ("With every answer", ReplyInfo)):
        texts = meanings(record)
        parts.append(f"\n| {title.lower()} | which is |\n|---|---|\n")
        by_text: dict[str, list[str]] = {}
        for field in dataclasses.fields(record):
            by_text.setdefault(texts[field.name], []).append(f"`{field.name}`")
        parts += [f"| {', '.join(names)} | {text} |\n" for text, names in by_text.items()]
    parts.append("\n| method | with noise |\n|---|---|\n")
    parts += [_noise_row(get_method(name)) for name in method_names()]
    return "".join(parts)


def _noise_row(method: Method) -> str:
    """Return how noise treats what a method sends, or that it is refused, and why."""
    noisy = Privacy(clip_norm=1.0, noise_multiplier=1.0)
    hopeless = refusal(method, method.config(), noisy, curable=True)
    if hopeless is not None:
        why = re.split(", which noise|; ", hopeless.partition(f"method {method.name} ")[2])[0]
        return f"| {method.name} | refused: {why} |\n"
    rules, cells = rules_of(method.uplink), []
    for name, treatment in treatments(method.uplink).items():
        setting = absent_setting(method, rules[name])
        asked = f"asks for `{setting}`" if setting else "not sent by default"
        cells.append(f"`{name}`: {treatment if treatment != REFUSED else asked}")
    return f"| {method.name} | {', '.join(cells)} |\n"


def _method_row(method: Method) -> str:
    sent = [
        f"`{name}`" + (f" ({', '.join(map(str, rule.dims))})" if rule.dims else "")
        for name, rule in rules_of(method.uplink).items()
    ]
    which = " ".join((method.uplink.__doc__ or "").strip().partition("\n\n")[0].split())
    which = re.sub(r"^What a \w+ sends: (\w)", lambda found: found[1].upper(), which)
    return f"| {method.name} | {', '.join(sent) or 'nothing'} | {which} |\n"


def main() -> None:
    """Print the tables or write them."""
    print_or_write(DOCUMENT, BEGIN, END, tables())


if __name__ == "__main__":
    main()
