"""One file per published table or figure: data, settings, the paper's numbers, our check."""
