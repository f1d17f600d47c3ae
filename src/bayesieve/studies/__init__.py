"""One file per published table or figure: data, engine, settings, the paper's numbers, our check."""
