"""Methods side by side: one network, one data set, one budget of gradient evaluations.

`compare` builds the methods of `methods` and has `measure` train and score each; `page` says
which differences mean something and writes the files.
"""
