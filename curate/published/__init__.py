"""The decisions of a curation, and what is new compared with those of a finished one."""
