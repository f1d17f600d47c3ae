"""The tables and figures of the source papers: their numbers, ours, and how to make ours again.

`catalogue` lists the papers' numbers and the study that answers each, `table` reads the committed
records and puts the two side by side, `running` makes a record again or checks it.
"""
