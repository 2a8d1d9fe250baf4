"""`lemur run`: the whole way once, on small real input; each part is made only when something before it changed."""
