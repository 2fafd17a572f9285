"""Make the example data: ivyA, a gene family that no organism has.

The sequences are synthesised: a random ancestral gene, two subfamilies that branch off it, and
copies of them in twelve isolates. Third codon positions turn richer in G and C with the
temperature of the site, and one copy has a stop codon in its middle. Nothing comes from a database.

    python make_data.py [DIRECTORY]
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

SEED = 20_261
CODONS = 70
BASES = "TCAG"
AMINO_ACIDS = "FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"
CODON_TABLE = dict(
    zip((a + b + c for a in BASES for b in BASES for c in BASES), AMINO_ACIDS, strict=True)
)
SENSE_CODONS = [codon for codon, amino_acid in CODON_TABLE.items() if amino_acid != "*"]

ISOLATES = [
    # name, subfamily, site, temperature in °C, mean sequencing depth
    ("IV-01", "A", "glacier melt", 3, 48),
    ("IV-02", "A", "sea sediment", 6, 61),
    ("IV-03", "A", "tundra soil", 9, 39),
    ("IV-04", "A", "lake water", 15, 72),
    ("IV-05", "A", "meadow soil", 19, 55),
    ("IV-06", "A", "river biofilm", 24, 64),
    ("IV-07", "A", "compost", 48, 12),
    ("IV-08", "B", "meadow soil", 19, 58),
    ("IV-09", "B", "rhizosphere", 22, 66),
    ("IV-10", "B", "warm spring", 37, 43),
    ("IV-11", "B", "compost", 48, 51),
    ("IV-12", "B", "hot spring", 61, 35),
]
BROKEN, BROKEN_CODON = "IV-07", 41


def evolve(gene: list[str], changes: int, rng: random.Random) -> list[str]:
    """A copy of a gene with some codons, never the first, changed in one base."""
    copy = list(gene)
    for position in rng.sample(range(1, len(gene)), changes):
        codon = copy[position]
        near = [other for other in SENSE_CODONS if sum(map(str.__ne__, codon, other)) == 1]
        silent = [other for other in near if CODON_TABLE[other] == CODON_TABLE[codon]]
        copy[position] = rng.choice(silent if silent and rng.random() < 0.7 else near)
    return copy


def adapt(gene: list[str], temperature: float, rng: random.Random) -> list[str]:
    """A copy of a gene with silent third positions drawn for a temperature."""
    gc_share = 0.25 + 0.6 * temperature / 65
    copy = list(gene)
    for position in rng.sample(range(1, len(gene)), len(gene) // 4):
        wanted = "GC" if rng.random() < gc_share else "AT"
        silent = [
            codon
            for codon in SENSE_CODONS
            if codon[:2] == copy[position][:2]
            and codon[2] in wanted
            and CODON_TABLE[codon] == CODON_TABLE[copy[position]]
        ]
        if silent:
            copy[position] = rng.choice(silent)
    return copy


def make_files() -> dict[str, str]:
    """The names and the contents of the example files."""
    rng = random.Random(SEED)  # noqa: S311 - example data is to be reproducible, not secret
    ancestor = ["ATG", *rng.choices(SENSE_CODONS, k=CODONS - 1)]
    subfamilies = {name: evolve(ancestor, 34, rng) for name in "AB"}
    fasta, sheet = [], ["isolate,site,temperature_c,depth"]
    for name, subfamily, site, temperature, depth in ISOLATES:
        gene = adapt(evolve(subfamilies[subfamily], 4, rng), temperature, rng)
        if name == BROKEN:
            gene[BROKEN_CODON - 1] = "TAA"
        fasta += [f">{name} ivyA", "".join([*gene, "TAA"])]
        sheet.append(f"{name},{site},{temperature},{depth}")
    return {
        "ivya.fasta": "\n".join(fasta) + "\n",
        "isolates.csv": "\n".join(sheet) + "\n",
    }


def main() -> None:
    """Write the files into a directory, by default the one of this script."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, text in make_files().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
