"""The page of a run: one HTML file with the numbers, the pictures and the network itself.

`collect` turns runs into plain data, `write_page` data into a page, `model_card` into Markdown.
The page is made by the JavaScript in `assets/` when it is opened; docs/report.md describes the
data between the two.
"""
