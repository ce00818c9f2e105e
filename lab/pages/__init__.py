"""The book's builder: runs the pages, lays the book out, and checks the pages and their claims.

`running` runs pages, `layout` pairs them with their `sources` and lays the book out, with the ledger of `verdicts`, the
facts of `execution` (`dependencies` records what the kernel of a page reads) and the pictures shown outside their page.
`checks` holds the rules for a page, and `typed_numbers` the rule for prose.
"""
