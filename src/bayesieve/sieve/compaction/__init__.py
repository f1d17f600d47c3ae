"""Compaction: a masked network becomes a smaller one that computes the same function.

Every activation is a list of channels along one axis. `prepare` traces the network. `passes`
finds forwards which channels are constant and backwards which ones are still read; `flow` builds
the layers that are left. What one kind of operation does to channels is a rule (`mixing`,
`separate`, `joins`, `attention`). An operation without a rule of its own is a barrier: all its
channels stay.
"""
