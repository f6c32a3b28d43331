"""Keep a seeded sample of the mutants that cosmic-ray has prepared: `mutation_sample.py SESSION.sqlite
COUNT`.

Mutants inside annotations are left out as well: annotations are never evaluated, so those mutants are the
same program.
"""

import ast
import random
import sqlite3
import sys
from functools import cache
from pathlib import Path

Span = tuple[tuple[int, int], tuple[int, int]]


@cache
def annotation_spans(path: str) -> list[Span]:
    """(line, column) of the start and the end of every annotation in a file."""
    spans = []
    for node in ast.walk(ast.parse(Path(path).read_text())):
        for name in ("annotation", "returns"):
            part = getattr(node, name, None)
            if isinstance(part, ast.expr) and part.end_lineno is not None and part.end_col_offset is not None:
                spans.append(((part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)))
    return spans


def main(session: str, count: int) -> None:
    """Delete every mutant outside the sample: cosmic-ray counts skipped ones among those that did not
    survive.
    """
    database = sqlite3.connect(session)
    rows = database.execute(
        "SELECT job_id, module_path, start_pos_row, start_pos_col FROM mutation_specs "
        "WHERE job_id NOT IN (SELECT job_id FROM work_results) ORDER BY job_id"
    ).fetchall()
    inside = [job for job, path, *at in rows if any(a <= tuple(at) <= b for a, b in annotation_spans(path))]
    kept = sorted({job for job, *_ in rows} - set(inside))
    order = {
        job: i
        for i, (job,) in enumerate(database.execute("SELECT job_id FROM mutation_specs ORDER BY rowid"))
    }
    kept.sort(key=order.__getitem__)  # job ids differ from time to time, the order of the mutants is not
    random.Random(0).shuffle(kept)
    sample = set(kept[:count])
    dropped = [(job,) for job in order if job not in sample]
    for table in ("work_results", "mutation_specs", "work_items"):
        database.executemany(f"DELETE FROM {table} WHERE job_id = ?", dropped)
    database.commit()
    print(f"{len(kept[:count])} of {len(kept)} mutants kept, {len(inside)} in annotations left out")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
