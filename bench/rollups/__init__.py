"""How fast a day is rolled up, beside other ways to the same numbers on the same machine."""
