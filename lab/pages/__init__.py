"""The book's builder: runs the pages, lays the book out, and checks that it tells the truth.

`running` runs pages, `layout` pairs them with their `sources` and lays the book out, with the ledger of `verdicts`,
the numbers `glued` by pages in place of their marks in prose, the facts of `execution` (what a page reads is found by
`watching` its kernel), `captions`, and the `pictures` that are shown outside their page. `checks` holds the rules of
a page, and `typed_numbers` the one of prose.
"""
