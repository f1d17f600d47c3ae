"""All rules, as `bayesieve.rules`: those for single weights and those for whole units."""

from bayesieve.sieve.unit_rules import keep_latency as keep_latency
from bayesieve.sieve.unit_rules import keep_macs as keep_macs
from bayesieve.sieve.unit_rules import keep_units as keep_units
from bayesieve.sieve.weight_rules import Rule as Rule
from bayesieve.sieve.weight_rules import fewest_kept as fewest_kept
from bayesieve.sieve.weight_rules import keep_n_of_m as keep_n_of_m
from bayesieve.sieve.weight_rules import keep_probable as keep_probable
from bayesieve.sieve.weight_rules import keep_scored as keep_scored
from bayesieve.sieve.weight_rules import keep_zeros as keep_zeros
