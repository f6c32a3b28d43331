"""Small token dumps for the tests, written by the trainers' own code: a script a trainer."""
