"""The tables and figures of the source papers: their numbers, ours, and how to make ours again.

`catalogue` lists what the papers report and which study covers it, `findings` reads the committed
records of the studies, `table` puts the two side by side, `running` makes a record again.
"""

from studies.reproduce.catalogue import ROWS, STUDIES, Row, Study
from studies.reproduce.findings import Finding, read_findings
from studies.reproduce.table import listing, results_page

__all__ = [
    "ROWS",
    "STUDIES",
    "Finding",
    "Row",
    "Study",
    "listing",
    "read_findings",
    "results_page",
]
