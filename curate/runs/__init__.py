"""Do the kept networks run? Each is constructed by LEMUR's contract and run forward once, in the sandbox."""
