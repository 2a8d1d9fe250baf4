"""`lemur run`: the whole pipeline once, on small real input; a stage is made only when something before it changed."""
