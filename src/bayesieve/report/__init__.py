"""The page of a run: one HTML file with the numbers, the pictures and the network itself.

`write_report` makes the page of a model in memory. Inside, `collect` turns runs into plain data,
`page` data into a page, `deliver.card` into Markdown. The page is drawn by the JavaScript in
`assets/` when it is opened; docs/report.md describes the data between the two.
"""

from bayesieve.report.page import write_report as write_report
