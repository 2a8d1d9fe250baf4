"""Small records, folders, projects, servers and libraries, for any test: `from tests.builders import extractions`."""
