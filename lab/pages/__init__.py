"""The book's builder: runs the pages, lays the book out, and checks that it tells the truth."""
