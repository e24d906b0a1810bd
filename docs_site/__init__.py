"""The documentation as a site: the pages of the repository and a reference that is made of the code, for MkDocs.

`make docs` builds it into build/site. What the pages say stands in docs/; here is only how they become a site.
"""
