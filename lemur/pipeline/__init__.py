"""`lemur run`: the whole pipeline once, on small real input; a stage is rebuilt only if its inputs changed."""
