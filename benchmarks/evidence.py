"""Which recorded results are out of date, and the runs that renew them.

    make evidence CHECK=1                    only check: what is out of date, and whether documents say so
    make evidence                            measure what is out of date again; a second call goes on where one stopped
    make evidence ONLY=demo,grid             these records
    python benchmarks/evidence.py --documents             only rewrite tables and notes of the documents
    python benchmarks/evidence.py --stamp NAME            take over a file that you made by its commands

A record is out of date when sources that decide its figures have changed since it was made (`evidence.toml` lists
them), and golden runs do not show that its schemes decide as they did. Documents that quote it then say so, in a
sentence that this script writes.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lib.blocks import blocks, filled
from lib.records import ROOT, Record, Stamp, declared, digests, file_digest, present, save, stamped, stamps

import fedpace

RUNS = "runs/evidence"
FOLDERS = ("benchmarks", "experiments/results")
READS = {"--recorded", "--beside"}
"""Options of commands that name a file to read."""
NOT_RECORDS = {"benchmarks/evidence.json"}
"""JSON files that hold no results."""


def main() -> int:
    """Check, and measure again what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="run nothing; exit 1 if a document or a stamp is wrong")
    parser.add_argument("--documents", action="store_true", help="rewrite tables and notes only")
    parser.add_argument("--stamp", metavar="NAMES", help="these files were just made by their commands")
    parser.add_argument("--only", default="", metavar="NAMES", help="comma-separated names of records")
    options = parser.parse_args()
    records, known = declared(), stamps()
    if options.check:
        return report(records, known)
    if options.stamp:
        for name in options.stamp.split(","):
            known[name] = stamped(records[name], release=fedpace.__version__, commit=commit())
        save(known)
    elif not options.documents:
        wanted = [name for name in options.only.split(",") if name] or [
            name for name, record in records.items() if record.commands and record.changed(known[name])
        ]
        for name in wanted:
            measure(records[name])
            known[name] = stamped(records[name], release=fedpace.__version__, commit=commit())
            save(known)  # each record is stamped when it is done, so that a second call goes on with the next
            write_documents(records, known)
    write_documents(records, known)
    return report(records, known)


def report(records: dict[str, Record], known: dict[str, Stamp]) -> int:
    """Print what is out of date and what is wrong; return 1 if anything is wrong."""
    for name, record in records.items():
        if name in known and (changed := record.changed(known[name])):
            sources = ", ".join(Path(path).name for path in changed)
            how = f"make evidence ONLY={name}" if record.commands else f"by hand: {record.needs}"
            print(f"out of date: {record.file} (commit {known[name].commit}): {sources} changed; {how}")
    wrong = problems(records, known)
    for problem in wrong:
        print(f"wrong: {problem}")
    print(f"{len(records)} records; {len(wrong)} problems")
    return int(bool(wrong))


def problems(records: dict[str, Record], known: dict[str, Stamp]) -> list[str]:
    """Return what a reader could be misled by, in sentences."""
    found = []
    files = {record.file for record in records.values()}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.json*")):
            name = path.relative_to(ROOT).as_posix()
            if name not in files | NOT_RECORDS:
                found.append(f"{name} is not declared in benchmarks/evidence.toml")
    for name, record in records.items():
        if name not in known:
            found.append(f"{record.file} has no stamp: make it by its commands, then --stamp {name}")
        elif known[name].sha256 != file_digest(ROOT / record.file):
            found.append(f"{record.file} is not the file that was stamped: --stamp {name} if its commands made it")
    if found:
        return found
    quoted = documents(records)
    for document, names in quoted.items():
        text = (ROOT / document).read_text(encoding="utf-8")
        said = {name for kind, name in blocks(text) if kind == "made"}
        found += [
            f"{document} quotes {name} and does not say what made it: add <!-- made: {name} -->"
            for name in sorted(names - said)
        ]
        if filled(text, records, known) != text:
            found.append(f"{document} is not what the records say: python benchmarks/evidence.py --documents")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        for record in records.values():
            if f"{record.file})" in text and name not in record.quoted:
                found.append(f"{name} links to {record.file}, but evidence.toml does not list it among `quoted`")
    return found


def documents(records: dict[str, Record]) -> dict[str, set[str]]:
    """Return the records that each document quotes."""
    found: dict[str, set[str]] = {}
    for name, record in records.items():
        for document in record.quoted:
            found.setdefault(document, set()).add(name)
    return found


def write_documents(records: dict[str, Record], known: dict[str, Stamp]) -> None:
    """Write tables and notes of all documents from the records."""
    for document in documents(records):
        path = ROOT / document
        text = path.read_text(encoding="utf-8")
        if (new := filled(text, records, known)) != text:
            path.write_text(new, encoding="utf-8")
            print(f"wrote {document}", file=sys.stderr)


def measure(record: Record) -> None:
    """Run the commands of a record. Runs go to a folder of the present code, so that a second call continues them."""
    if not record.commands:
        raise SystemExit(f"{record.file} cannot be made by one command: {record.needs}")
    folder = f"{RUNS}/{'-'.join(sorted(set(digests(record.code, present).values())))[:50] or 'any'}"
    (ROOT / folder).mkdir(parents=True, exist_ok=True)
    for number, command in enumerate(record.commands, start=1):
        words = [word.replace(RUNS, folder) for word in shlex.split(command)]
        last = number == len(record.commands)
        print(f"{record.name}: {shlex.join(words)}", file=sys.stderr, flush=True)
        if not last or record.writes or writes_itself(words, record.file):
            run(words)
            continue
        part = ROOT / f"{record.file}.part"
        with part.open("w", encoding="utf-8") as file:
            run(words, file)
        part.replace(ROOT / record.file)  # a command that fails leaves the record as it was


def writes_itself(words: Sequence[str], file: str) -> bool:
    """Return whether a command writes the file that it names; one that only reads it prints its result."""
    return any(word == file and words[place - 1] not in READS for place, word in enumerate(words))


def run(words: Sequence[str], output: object = None) -> None:
    """Run a command of this Python, or end with what it needs."""
    start = [sys.executable, "-m", "fedpace"] if words[0] == "fedpace" else [sys.executable]
    done = subprocess.run([*start, *words[1:]], cwd=ROOT, stdout=output, check=False)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"failed with exit status {done.returncode}: {shlex.join(words)}")


def commit() -> str:
    """Return the present commit, marked if sources differ from it."""
    name = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", "src"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return (name.stdout.strip() or "unknown") + (" with changes" if changed.stdout.strip() else "")


if __name__ == "__main__":
    sys.exit(main())
