"""The site: how it is made from pages and code."""
