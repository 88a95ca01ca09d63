"""What every method keeps to, as checks that run: for the methods here and for a user's own.

Each check is a function of the tested method and a folder for its runs; what is not kept is raised
as `NotKept`, which names what was found. `wildflower test-method` calls them one by one, and so do
the tests below `tests/contract`, for every registered method.
"""
