"""The nouns: layout, network, problem, likelihoods, priors, posteriors and shared formulas."""
