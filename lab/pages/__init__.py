"""The book's builder: runs the pages, lays the book out, and checks that it tells the truth.

`running` runs pages, `layout` pairs them with their `sources` and lays the book out, with the ledger of `verdicts`, the
facts of `execution` (`dependencies` notes which files the kernel of a page opens) and the pictures that are shown
outside their page. `checks` holds the rules of a page, and `typed_numbers` the one of prose.
"""
